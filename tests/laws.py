"""What must hold of every operator. Each law takes a row of the table and raises AssertionError if broken."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from operators import SIZE, Row
from torch import Tensor

import joulegrad as jg

SHAPES = {"conv": (8, 3, 3), "norm": (8,), "head.weight": (10, 8), "head.bias": (10,)}
LAYOUT = jg.Layout.from_shapes(SHAPES)
assert LAYOUT.size == SIZE
PRICES = {"conv": 0.7, "norm": 0.1, "head.*": 5.0}  # 0.1 and 0.7: sums of products would round differently


def table(factor: float = 1.0) -> jg.Cost:
    return jg.Table({name: c * factor for name, c in PRICES.items()})


def per_entry(factor: float = 1.0) -> jg.Cost:
    c = np.random.default_rng(5).lognormal(0, 1, SIZE)
    return jg.PerEntry(torch.from_numpy(c) * factor)


COSTS: dict[str, Callable[..., jg.Cost]] = {"table": table, "per-entry": per_entry}


def updates(n: int = 3, seed: int = 0) -> dict[str, list[Tensor]]:
    """A few rounds of each temper."""
    rng = np.random.default_rng(seed)
    scale = np.repeat([1.0, 0.1, 3.0, 0.01], [s.size for s in LAYOUT.segments])
    tempers = {
        "heavy": lambda: rng.standard_t(2, SIZE) * scale,
        "ties": lambda: rng.integers(-2, 3, SIZE),
        "sparse": lambda: rng.standard_normal(SIZE) * (rng.random(SIZE) < 0.05),
        "zero": lambda: np.zeros(SIZE),
        "tiny": lambda: rng.standard_normal(SIZE) * 1e-41,
        "huge": lambda: rng.standard_normal(SIZE) * 1e37,
    }
    return {name: [torch.tensor(draw(), dtype=torch.float32) for _ in range(n)] for name, draw in tempers.items()}


def run(op: jg.Compressor, rounds: list[Tensor], layout: jg.Layout = LAYOUT) -> tuple[list[jg.SparseUpdate], Any]:
    state, sent = op.init(layout), []
    for update in rounds:
        one, state = op(update, state)
        sent.append(one)
    return sent, state


def budget_kept(row: Row) -> None:
    """At most k entries, at most E joules, in the very float64 sum that is reported."""
    for cost in COSTS.values():
        for rounds in updates().values():
            for sent in run(row.make(cost(), 1.0), rounds)[0]:
                assert len(sent) <= row.most
                joules = jg.joules_of(sent, cost(), LAYOUT)
                each = jg.Prices.of(cost(), LAYOUT).at(sent.indices)
                assert joules == math.fsum(each.tolist())  # exact, then rounded once
                if row.joules is not None:
                    assert joules <= row.joules


def indices_increase(row: Row) -> None:
    """Strictly increasing int64 indices inside the layout, one finite value each."""
    for rounds in updates().values():
        for sent in run(row.make(table(), 1.0), rounds)[0]:
            i = sent.indices
            assert i.dtype == torch.int64
            assert bool((i.diff() > 0).all())
            assert len(i) == 0 or (i[0] >= 0 and i[-1] < SIZE)
            assert len(sent.values) == len(i)
            assert bool(torch.isfinite(sent.values).all())


def deterministic(row: Row) -> None:
    """The same update and state give the same bits, whatever the global generators hold."""
    for cost in COSTS.values():
        op = row.make(cost(), 1.0)
        for rounds in updates().values():
            torch.manual_seed(0)
            np.random.seed(0)
            first, state_1 = run(op, rounds)
            torch.manual_seed(1)
            np.random.seed(1)
            second, state_2 = run(op, rounds)
            assert first == second
            assert same_state(state_1, state_2)


def inputs_untouched(row: Row) -> None:
    """Neither the update nor the state is changed, so that a lost payload is as if never sent."""
    op = row.make(table(), 1.0)
    for rounds in updates().values():
        _, state = run(op, rounds)
        update = rounds[0].clone()
        kept = {name: t.clone() for name, t in jg.state_dict(state).items()}
        first, _ = op(update, state)
        assert torch.equal(update, rounds[0])
        now = jg.state_dict(state)
        assert all(torch.equal(now[name], t) for name, t in kept.items())
        assert op(update, state)[0] == first


def sent_plus_residual_is_given(row: Row) -> None:
    """Inside ErrorFeedback nothing is lost: what is sent plus what is kept is what was given."""
    inner = row.make(table(), 1.0)
    if row.alone:
        assert refused(lambda: jg.ErrorFeedback(inner))
        return
    remembers = isinstance(inner, jg.ErrorFeedback | jg.MomentumCorrection) or hasattr(inner, "remembers")
    op = inner if remembers else jg.ErrorFeedback(inner)
    for rounds in updates().values():
        state = op.init(LAYOUT)
        for update in rounds:
            if isinstance(op, jg.MomentumCorrection):
                given = update + op.momentum * state.velocity + state.residual
            else:
                given = update + getattr(op, "decay", 1.0) * state.residual
            sent, state = op(update, state)
            difference = given.double() - sent.to_dense().double()
            assert torch.equal(state.residual, difference.float())  # the float32 nearest to what is missing
            if sent.codes is None:  # then the difference is a float32 itself
                assert torch.equal(sent.to_dense() + state.residual, given)


def equal_costs_make_it_topk(row: Row) -> None:
    """When every entry costs the same, cost weighting changes nothing."""
    ones = jg.PerEntry(torch.ones(SIZE))
    for name, rounds in updates().items():
        twin, _ = run(row.twin(), rounds)
        for cost in (jg.Uniform(1.0), ones):
            sent, _ = run(row.make(cost, 1.0), rounds)
            for a, b in zip(sent, twin, strict=True):
                assert torch.equal(a.to_dense(), b.to_dense()), name
                assert bool(torch.isin(a.indices, b.indices).all())  # BudgetedCWMP leaves zeros behind


def units_do_not_matter(row: Row) -> None:
    """Joules or millijoules: costs and budgets in other units select the same entries."""
    for cost in COSTS.values():
        for name, rounds in updates().items():
            # Powers of two are exact; for other factors a tie may turn on the last bit of c.
            factors = (2.0**-10, 2.0**30) if name in ("ties", "sparse", "zero") else (2.0**-10, 2.0**30, 3.7, 1e-9)
            sent, _ = run(row.make(cost(), 1.0), rounds)
            for factor in factors:
                assert run(row.make(cost(factor), factor), rounds)[0] == sent


def layers_may_move(row: Row) -> None:
    """Another order of the layers gives the same entries at their new places."""
    order = ["head.bias", "conv", "head.weight", "norm"]
    moved = jg.Layout.from_shapes({name: SHAPES[name] for name in order})
    old = {s.name: s for s in LAYOUT.segments}
    places = torch.cat([torch.arange(old[n].start, old[n].stop) for n in order])
    op = row.make(table(), 1.0)
    rounds = updates()["heavy"]
    for a, b in zip(run(op, rounds)[0], run(op, [u[places] for u in rounds], moved)[0], strict=True):
        if row.random:
            assert len(a) == len(b)
        else:
            assert torch.equal(a.to_dense()[places], b.to_dense())


def pickles(row: Row) -> None:
    """Operators and states survive a pickle, equal and working."""
    op = row.make(table(), 1.0)
    rounds = updates()["heavy"]
    sent, state = run(op, rounds[:2])
    try:
        op_2, state_2, sent_2 = pickle.loads(pickle.dumps((op, state, sent)))
    except (pickle.PicklingError, AttributeError, TypeError) as why:
        raise AssertionError(f"not picklable: {why}") from why
    assert op_2 == op
    assert repr(op_2) == repr(op)
    assert sent_2 == sent
    assert op_2(rounds[2], state_2)[0] == op(rounds[2], state)[0]


def strides_do_not_matter(row: Row) -> None:
    """A view with gaps is the same update."""
    op = row.make(table(), 1.0)
    for rounds in updates().values():
        gaps = [torch.stack([u, torch.full_like(u, 9.0)], dim=1)[:, 0] for u in rounds]
        assert not gaps[0].is_contiguous()
        assert run(op, gaps)[0] == run(op, rounds)[0]


def resumes(row: Row) -> None:
    """A state saved and loaded goes on bit for bit."""
    rounds = updates(4)["heavy"]
    whole, _ = run(row.make(table(), 1.0), rounds)
    _, state = run(row.make(table(), 1.0), rounds[:2])
    op = row.make(table(), 1.0)  # as in a new process: nothing but the saved state is left
    state = jg.load_state_dict(op.init(LAYOUT), jg.state_dict(state))
    for update, expected in zip(rounds[2:], whole[2:], strict=True):
        sent, state = op(update, state)
        assert sent == expected


LAWS = [
    budget_kept,
    indices_increase,
    deterministic,
    inputs_untouched,
    sent_plus_residual_is_given,
    equal_costs_make_it_topk,
    units_do_not_matter,
    layers_may_move,
    pickles,
    strides_do_not_matter,
    resumes,
]


def same_state(a: Any, b: Any) -> bool:
    x, y = jg.state_dict(a), jg.state_dict(b)
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


def refused(make: Callable[[], object]) -> bool:
    try:
        make()
    except ValueError:
        return True
    return False
