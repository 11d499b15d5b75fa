"""paper/frontier-*.toml: what is compared there can be compared, and every operator named there works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import joulegrad
from joulegrad import Layout
from joulegrad.compressor import nested
from joulegrad.lab import experiment, models, sweep
from joulegrad.lab.experiment import DENSE, Server

FILES = sorted((Path(__file__).parent.parent / "paper").glob("frontier-*.toml"))
LAYOUT = Layout.of(models.build("cnn", (3, 32, 32), 10))


def experiments(file):
    return [job.experiment for job in sweep.plan(experiment.load(file), Path("runs"))]


ALL = {file.stem.removeprefix("frontier-"): experiments(file) for file in FILES}
OPERATORS = {op: None for found in ALL.values() for e in found for op in (e.compress, e.downlink)}


def test_there_are_the_sweeps_that_are_named():
    assert {"finalists", "uplink", "baselines", "faster"} <= set(ALL)


def test_runs_differ_in_what_is_compared_alone():
    """In the operators, the seed, and how the server steps; in all else they are one experiment."""
    alike = {
        replace(e, compress=DENSE, downlink="dense", server=Server(), seed=0).fingerprint
        for found in ALL.values()
        for e in found
    }
    assert len(alike) == 1


def test_they_have_two_links_and_their_baseline():
    finalists = ALL["finalists"]
    assert {e.seed for e in finalists} == {0, 1, 2}
    assert {ledger.link for ledger in finalists[0].ledgers} == {"wifi-ac", "lte-2012"}
    assert len({(e.compress, e.downlink) for e in finalists}) == len(finalists) // 3 == 4
    assert any(e.compress == DENSE and e.downlink == "dense" for e in finalists)


@pytest.mark.parametrize("op", [op for op in OPERATORS if not isinstance(op, str)], ids=experiment.notation.write)
def test_each_operator_chooses_and_its_payload_is_read_back(op):
    rng = torch.Generator().manual_seed(0)
    state = op.init(LAYOUT)
    for _ in range(2):
        sent, state = op(torch.randn(LAYOUT.size, generator=rng), state)
        assert 0 < len(sent) <= LAYOUT.size
        assert joulegrad.decode(joulegrad.encode(sent, LAYOUT), LAYOUT) == sent


def test_the_baselines_are_the_methods_that_a_reviewer_asks_for():
    made = {tuple(type(part).__name__ for part in nested(e.compress)) for e in ALL["baselines"]}
    for kinds in (
        ("ErrorFeedback", "RandomK"),
        ("ErrorFeedback", "Quantized", "TopK"),
        ("Clipped", "MomentumCorrection", "WarmUp", "PerLayer", "TopK"),
        ("Quantized", "TopK"),
        ("ErrorFeedback", "LayerWise"),
        ("ErrorFeedback", "Quantized", "PerChunk"),
    ):
        assert kinds in made, kinds
