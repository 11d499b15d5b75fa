"""paper/*.toml: every sweep there can be planned, and is of the networks that it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from joulegrad import LayerType, Layout
from joulegrad.lab import experiment, models, sweep

ROOT = Path(__file__).parent.parent
FILES = [file for file in sorted((ROOT / "paper").glob("*.toml")) if "sweep" in experiment.load(file)]
SIZES = {  # entries, and how many cost 5
    "resnet18": (11_173_962, 5_130),
    "vgg11": (28_146_762, 18_923_530),
    "benchmarks.readings:fedavg_cnn_padded": (2_156_490, 2_102_794),
    "benchmarks.readings:mcmahan_cnn": (1_756_426, 1_649_098),
    "benchmarks.readings:lenet": (62_006, 59_134),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sweep_of_the_paper_can_be_planned(file, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the files say that they are played
    jobs = sweep.plan(experiment.load(file), tmp_path)
    assert len({job.experiment.seed for job in jobs}) >= 3 or file.name.startswith("frontier-")  # the finalists have
    assert {job.experiment.rounds for job in jobs} == {50}
    assert {job.experiment.partition.clients for job in jobs} == {10}
    local = jobs[0].experiment.local
    assert (local.lr, local.momentum, local.batch_size, local.epochs) == (0.05, 0.9, 64, 1)
    for name in {job.experiment.model for job in jobs}:
        layout = Layout.of(models.build(name, (3, 32, 32), 10))
        prices = LayerType().joules(layout)
        dear = sum(s.size for s, c in zip(layout.segments, prices.tolist(), strict=True) if c == 5.0)
        assert (layout.size, dear) == SIZES[name]
        assert torch.equal(prices.unique(), torch.tensor([1.0, 5.0], dtype=torch.float64))
