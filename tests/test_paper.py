"""paper/*.toml: every file is a sweep that can be planned, of the networks that it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from joulegrad import LayerType, Layout
from joulegrad.lab import experiment, models, sweep

FILES = sorted((Path(__file__).parent.parent / "paper").glob("*.toml"))
SIZES = {"resnet18": (11_173_962, 5_130), "vgg11": (28_146_762, 18_923_530)}  # entries, and how many cost 5


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sweep_of_the_paper_can_be_planned(file, tmp_path):
    jobs = sweep.plan(experiment.load(file), tmp_path)
    assert len({job.experiment.seed for job in jobs}) >= 3
    assert {job.experiment.rounds for job in jobs} == {50}
    assert {job.experiment.partition.clients for job in jobs} == {10}
    local = jobs[0].experiment.local
    assert (local.lr, local.momentum, local.batch_size, local.epochs) == (0.05, 0.9, 64, 1)
    [name] = {job.experiment.model for job in jobs}
    layout = Layout.of(models.build(name, (3, 32, 32), 10))
    prices = LayerType().joules(layout)
    dear = sum(s.size for s, c in zip(layout.segments, prices.tolist(), strict=True) if c == 5.0)
    assert (layout.size, dear) == SIZES[name]
    assert torch.equal(prices.unique(), torch.tensor([1.0, 5.0], dtype=torch.float64))
