"""`joulegrad verify`, and the theorem that hypothesis tries to break."""

from __future__ import annotations

import pytest
import torch
from broken import Scored
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulegrad as jg
from joulegrad import kernels
from joulegrad.cli import app
from joulegrad.kernels import reference
from joulegrad.lab import verify

value = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, -1.0, 2.0])
price = st.floats(1e-3, 1e3) | st.sampled_from([1.0, 2.0, 5.0])
pairs = st.lists(st.tuples(value, price), min_size=1, max_size=40)


def energy(op: jg.Compressor, layout: jg.Layout, cost: jg.Cost, g: torch.Tensor) -> float:
    return jg.joules_of(op(g, op.init(layout))[0], cost, layout)


def never_dearer_than_topk(make, entries, share) -> None:
    """μ(CWMP_k) ≤ μ(TopK_k), up to the rounding of a score (docs/theory.md)."""
    g = torch.tensor([v for v, _ in entries], dtype=torch.float32)
    cost = jg.PerEntry(torch.tensor([c for _, c in entries], dtype=torch.float64))
    layout, k = jg.Layout.from_shapes({"g": (len(entries),)}), round(share * len(entries))
    topk = energy(jg.TopK(k=k), layout, cost, g)
    assert energy(make(k, cost), layout, cost, g) <= topk * (1 + 1e-12)


@settings(max_examples=1000, deadline=None)
@given(pairs, st.floats(0, 1), st.sampled_from([1, 2]))
def test_cwmp_is_never_dearer_than_topk(entries, share, power):
    never_dearer_than_topk(lambda k, c: jg.CWMP(k=k, cost=c, power=power), entries, share)


@settings(max_examples=500, deadline=None)
@given(st.lists(value, min_size=1, max_size=40), st.floats(-2, 2), st.floats(0, 1))
def test_nor_when_costs_follow_the_magnitudes(values, exponent, share):
    entries = [(v, (abs(v) + 1e-3) ** exponent) for v in values]
    never_dearer_than_topk(lambda k, c: jg.CWMP(k=k, cost=c), entries, share)


def test_the_law_fails_on_an_operator_that_multiplies_by_cost():
    def dearest(k: int, cost: jg.Cost) -> jg.Rule:
        return Scored(cost, lambda g, c: g * c)

    entries = [(1.0 + i / 50, 1.0 + (i * 7) % 20) for i in range(40)]
    with pytest.raises(AssertionError):
        never_dearer_than_topk(dearest, entries, 17 / 40)


def test_verify_holds_and_says_so():
    result = CliRunner().invoke(app, ["verify", "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert "all 8 claims hold (seed 3)" in result.output


honest = kernels.budgeted


def cheat(**changes):
    """BudgetedCWMP with something wrong."""

    def budgeted(scores, k, joules):
        found = honest(scores, k, joules)
        return found._replace(**{name: change(found) for name, change in changes.items()})

    return budgeted


def ranked_by(wrong):
    """Top-k by something other than the scores; `wrong` gets the worths, and the costs where there are any."""

    def largest(scores, k):
        worth = reference.values(scores.worth)
        return reference.best(wrong(worth, None if scores.prices is None else scores.prices.joules), k)

    return largest


@pytest.mark.parametrize(
    ("target", "wrong", "caught"),
    [
        ("budgeted", cheat(bound=lambda f: 0.99 * f.bound), "C1 and C2: optimum ≤ bound"),
        ("budgeted", cheat(indices=lambda f: f.indices[:0], value=lambda f: 0.0), "C1 and C2: two entries"),
        ("budgeted", lambda s, k, e: honest(s, k + 1, e), "C1 and C2: feasible"),
        ("budgeted", cheat(bound=lambda f: 1.001 * f.bound), "C1 and C2: a million entries"),
        ("prefix_within", lambda s, k, e: reference.prefix_within(s, k, 0.9 * e), "Lemma 1"),
        ("largest", ranked_by(lambda w, c: w), "Proposition 2"),
        ("largest", ranked_by(lambda w, c: torch.arange(len(w)) * (1 if c is None else -1)), "Proposition 2: equality"),
        ("largest", ranked_by(lambda w, c: w if c is None else w * c), "Unconditional"),
    ],
)
def test_verify_sees_each_claim_broken(monkeypatch, target, wrong, caught):
    """The check that guards a claim goes red when the claim is false, and only green ones report success."""
    run = dict(verify.checks(0))[caught]
    assert run().holds
    monkeypatch.setattr(kernels, target, wrong)
    assert not run().holds


def test_verify_exits_with_one_and_names_what_failed(monkeypatch):
    monkeypatch.setattr(kernels, "budgeted", cheat(bound=lambda f: 0.99 * f.bound))
    result = CliRunner().invoke(app, ["verify"])
    assert result.exit_code == 1
    assert "of 8 claims did not hold" in result.output
