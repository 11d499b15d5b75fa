from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joulegrad import (
    CWMP,
    Blocks,
    BudgetedCWMP,
    ErrorFeedback,
    LayerType,
    Layout,
    PerEntry,
    PerLayer,
    RandomK,
    Table,
    Threshold,
    TopK,
    Uniform,
)
from joulegrad.compressor import how_many


def flat(n: int) -> Layout:
    return Layout.from_shapes({"w": (n,)})


def send(op, g, layout=None, dtype=torch.float32):
    update = torch.tensor(g, dtype=dtype)
    return op(update, op.init(layout or flat(len(g))))


def indices(op, g, layout=None) -> list[int]:
    return send(op, g, layout)[0].indices.tolist()


def brute_force_ranking(g, c, power, k) -> list[int]:
    score = [abs(float(np.float32(x))) ** power / y for x, y in zip(g, c, strict=True)]
    return sorted(range(len(g)), key=lambda j: (-score[j], j))[:k]


magnitudes = st.floats(-8, 8, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 3e38])
costs = st.floats(0.01, 100) | st.sampled_from([1.0, 2.0, 5.0])
instances = st.integers(1, 40).flatmap(
    lambda d: st.tuples(
        st.lists(magnitudes, min_size=d, max_size=d), st.lists(costs, min_size=d, max_size=d), st.integers(0, d + 2)
    )
)


@settings(max_examples=400, deadline=None)
@given(instances, st.sampled_from([1, 2]))
def test_cwmp_is_the_ranking_spelled_out(instance, power):
    g, c, k = instance
    op = CWMP(k=k, cost=PerEntry(torch.tensor(c, dtype=torch.float64)), power=power)
    assert indices(op, g) == sorted(brute_force_ranking(g, c, power, k))


@settings(max_examples=400, deadline=None)
@given(instances, st.floats(0, 400))
def test_cwmp_with_joules_is_the_longest_prefix_that_fits(instance, joules):
    g, c, k = instance
    ranked = brute_force_ranking(g, c, 1, k)
    n = max(n for n in range(len(ranked) + 1) if math.fsum(c[j] for j in ranked[:n]) <= joules)
    op = CWMP(k=k, cost=PerEntry(torch.tensor(c, dtype=torch.float64)), joules=joules)
    assert indices(op, g) == sorted(ranked[:n])


def brute_force_optimum(g, c, k, joules) -> float:
    best = 0.0
    for r in range(min(k, len(g)) + 1):
        for some in itertools.combinations(range(len(g)), r):
            if math.fsum(c[j] for j in some) <= joules:
                best = max(best, math.fsum(abs(g[j]) for j in some))
    return best


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda d: st.tuples(
            st.lists(st.integers(-6, 6).map(float) | st.floats(-8, 8, width=32), min_size=d, max_size=d),
            st.lists(st.integers(1, 4).map(float) | st.floats(0.1, 9), min_size=d, max_size=d),
            st.integers(0, d + 1),
            st.floats(0, 20) | st.integers(0, 12).map(float),
        )
    )
)
def test_budgeted_against_every_subset(instance):
    g, c, k, joules = instance
    op = BudgetedCWMP(k=k, joules=joules, cost=PerEntry(torch.tensor(c, dtype=torch.float64)))
    sent, state = send(op, g)
    certificate = state.certificate
    g = [float(np.float32(x)) for x in g]
    best = brute_force_optimum(g, c, k, joules)
    slack = 1e-12 * max(1.0, best)
    assert len(sent) <= k
    assert math.fsum(c[j] for j in sent.indices.tolist()) == certificate.joules <= joules
    assert math.isclose(sent.values.double().abs().sum().item(), certificate.value, abs_tol=1e-12)
    assert certificate.value <= best + slack
    assert best <= certificate.bound + slack
    assert certificate.value >= best - sum(sorted(map(abs, g))[-2:]) - slack
    assert certificate.gap >= 0


def test_budgeted_certificate_prices():
    g, c = [9.0, 6.0, 4.0, 1.0], torch.tensor([3.0, 2.0, 2.0, 1.0])
    _, state = send(BudgetedCWMP(k=4, joules=100.0, cost=PerEntry(c)), g)
    assert state.certificate == (20.0, 20.0, 8.0, 0.0, 1.0)  # nothing binds but the count, and one more adds 1
    _, state = send(BudgetedCWMP(k=4, joules=5.0, cost=PerEntry(c)), g)
    assert state.certificate.value == 15.0
    assert state.certificate.gap == 0
    assert state.certificate.energy_price in (2.0, 3.0)


def test_budgeted_edges():
    g, c = [3.0, -2.0, 1.0], torch.tensor([3.0, 2.0, 4.0])
    make = lambda k, joules: BudgetedCWMP(k=k, joules=joules, cost=PerEntry(c))  # noqa: E731
    assert indices(make(0, 9.0), g) == []
    assert indices(make(3, 0.0), g) == []
    assert indices(make(3, 1.9), g) == []  # below the cheapest entry
    assert indices(make(3, 2.0), g) == [1]
    assert indices(make(99, 1e9), g) == [0, 1, 2]
    assert indices(make(3, 9.0), [0.0, 0.0, 0.0]) == []  # zeros are worth nothing
    _, state = send(make(3, 1.9), g)
    assert state.certificate.bound == 0


def test_what_prefix_and_budgeted_make_of_a_dear_first_entry():
    g, cost = [10.0, 1.0, 1.0], PerEntry(torch.tensor([5.0, 1.0, 1.0]))
    assert indices(CWMP(k=2, cost=cost, joules=3.0), g) == []
    assert indices(BudgetedCWMP(k=2, cost=cost, joules=3.0), g) == [1, 2]


@pytest.mark.parametrize("make", [TopK, lambda **k: CWMP(cost=Uniform(), **k)])
def test_counts_and_ties(make):
    g = [1.0, -1.0, 0.0, 1.0, 2.0]
    assert indices(make(k=0), g) == []
    assert indices(make(k=2), g) == [0, 4]  # ties go to the lower index
    assert indices(make(k=3), g) == [0, 1, 4]
    assert indices(make(k=5), g) == [0, 1, 2, 3, 4]
    assert indices(make(k=500), g) == [0, 1, 2, 3, 4]
    assert indices(make(k=2), [0.0] * 5) == [0, 1]  # k entries are k entries
    assert indices(make(density=1.0), g) == [0, 1, 2, 3, 4]


def test_density_is_its_decimal_word_rounded_down_and_at_least_one():
    assert len(send(TopK(density=0.29), [1.0] * 100)[0]) == 29  # 0.29 * 100 is 28.999999999999996
    assert len(send(TopK(density=0.01), [1.0] * 50)[0]) == 1
    assert len(send(TopK(density=0.1), [1.0] * 19)[0]) == 1
    paper = Layout.from_shapes({"resnet18": (11_173_962,)})
    assert how_many(TopK(density=0.01), paper.size) == 111_739


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(), r"TopK needs k \(a count\) or density \(a fraction\)"),
        (lambda: TopK(k=1, density=0.1), "k or density, not both"),
        (lambda: TopK(k=-1), "k must be a whole number ≥ 0, got -1"),
        (lambda: TopK(k=0.01), r"got 0.01; for a fraction write density=0.01"),
        (lambda: TopK(k=True), "got True"),
        (lambda: TopK(density=1.5), r"density must be in \(0, 1\], got 1.5"),
        (lambda: TopK(density=0), r"density must be in \(0, 1\], got 0"),
        (lambda: TopK(density=math.nan), r"density must be in \(0, 1\], got nan"),
        (lambda: CWMP(k=1, cost=Uniform(), power=3), "power must be 1 .* or 2 .*, got 3"),
        (lambda: CWMP(k=1, cost=Uniform(), joules=-1.0), "joules must be a finite number ≥ 0, got -1.0"),
        (lambda: BudgetedCWMP(k=1, cost=Uniform(), joules=math.inf), "joules must be a finite number"),
        (lambda: Threshold(at=-1), "at must be a finite number ≥ 0"),
        (lambda: RandomK(k=1, seed=-1), "seed must be a whole number ≥ 0"),
        (lambda: Blocks(TopK(k=1), entries=0), "entries must be a whole number ≥ 1, got 0"),
        (lambda: PerLayer(ErrorFeedback(TopK(k=1))), "PerLayer chooses entries, so it goes around a selection rule"),
        (lambda: Blocks(3), "Blocks chooses entries"),
        (lambda: Blocks(RandomK(k=1, unbiased=True)), "scales values, which Blocks would lose"),
    ],
)
def test_bad_arguments_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_name_layer_and_position(bad):
    layout = Layout.from_shapes({"conv": (2, 3), "head": (4,)})
    g = [1.0] * 10
    g[8] = bad
    for op in (TopK(k=1), BudgetedCWMP(k=1, joules=9.0, cost=Uniform()), ErrorFeedback(PerLayer(TopK(k=1)))):
        with pytest.raises(ValueError, match=rf"the update holds {bad} at entry 8, head\[2\]"):
            send(op, g, layout)


def test_updates_that_do_not_fit():
    op = TopK(k=1)
    with pytest.raises(ValueError, match=r"a flat update of 3 entries, got shape \(4,\)"):
        op(torch.zeros(4), op.init(flat(3)))
    with pytest.raises(ValueError, match=r"got shape \(3, 1\)"):
        op(torch.zeros(3, 1), op.init(flat(3)))
    with pytest.raises(ValueError, match=r"a flat torch tensor, as Layout.grad gives, got ndarray"):
        op(np.zeros(3), op.init(flat(3)))
    with pytest.raises(ValueError, match=r"float32, float16 or bfloat16, got torch.float64"):
        op(torch.zeros(3, dtype=torch.float64), op.init(flat(3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_updates_are_sent_as_they_are(dtype):
    sent, _ = send(CWMP(k=2, cost=Uniform()), [1.0, -3.0, 2.0], dtype=dtype)
    assert sent.indices.tolist() == [1, 2]
    assert sent.values.dtype == dtype


def test_threshold():
    layout = Layout.from_shapes({"conv": (2,), "head": (2,)})
    cost = Table({"conv": 1.0, "head": 5.0})
    g = [1.0, 0.5, 4.0, 6.0]  # scores 1, 0.5, 0.8, 1.2
    assert indices(Threshold(at=0.8, cost=cost), g, layout) == [0, 2, 3]
    assert indices(Threshold(at=0.8, cost=cost, k=2), g, layout) == [0, 3]
    assert indices(Threshold(at=0.8, cost=cost, density=0.5), g, layout) == [0, 3]
    assert indices(Threshold(at=0.0), [0.0, 1.0]) == [0, 1]
    assert indices(Threshold(at=9.0), [0.0, 1.0]) == []


def test_one_threshold_is_the_best_split_of_a_fleets_joules():
    rng = np.random.default_rng(0)
    g = torch.tensor(rng.standard_normal((2, 200)) * [[1.0], [4.0]], dtype=torch.float32)
    prices = [Uniform(1.0), Uniform(2.0)]
    price = 1.2
    sent = [(op := Threshold(at=price, cost=c))(u, op.init(flat(200)))[0] for u, c in zip(g, prices, strict=True)]
    value = sum(float(s.values.abs().sum()) for s in sent)
    spent = len(sent[0]) * 1.0 + len(sent[1]) * 2.0
    both = PerEntry(torch.cat([torch.full((200,), 1.0), torch.full((200,), 2.0)]))
    op = BudgetedCWMP(density=1.0, joules=spent, cost=both)
    _, state = op(g.flatten(), op.init(flat(400)))
    assert value == pytest.approx(state.certificate.bound, rel=1e-6)


def test_random_k_is_uniform_unbiased_and_its_own():
    op = RandomK(k=2, seed=1, unbiased=True)
    layout, g = flat(6), torch.arange(1.0, 7.0)
    state, total, n = op.init(layout), torch.zeros(6), 6000
    for _ in range(n):
        sent, state = op(g, state)
        assert len(sent) == 2
        total += sent.to_dense()
    torch.testing.assert_close(total / n, g, rtol=0.07, atol=0)
    again, _ = op(g, op.init(layout))
    assert again == op(g, op.init(layout))[0]
    other = RandomK(k=3, seed=2)
    assert other(g, other.init(layout))[0] != RandomK(k=3, seed=1)(g, state)[0]
    assert len(send(RandomK(k=99), [1.0, 2.0])[0]) == 2


def test_per_layer_random_draws_differ_between_layers_of_one_size():
    layout = Layout.from_shapes({"a": (500,), "b": (500,)})
    sent = torch.tensor(indices(PerLayer(RandomK(k=20)), [1.0] * 1000, layout))
    assert (sent[:20] + 500).tolist() != sent[20:].tolist()


def test_blocks_start_with_their_layer_and_a_last_one_may_be_short():
    layout = Layout.from_shapes({"a": (5,), "b": (4,)})
    g = [0.0, 0.0, 0.0, 0.0, 9.0, 1.0, 1.0, 1.0, 1.0]
    assert indices(Blocks(TopK(k=1), entries=4), g, layout) == [4]
    assert indices(Blocks(TopK(k=2), entries=4), g, layout) == [4, 5, 6, 7, 8]
    assert indices(Blocks(TopK(k=1), entries=100), g, layout) == [0, 1, 2, 3, 4]
    assert indices(Blocks(TopK(k=3), entries=1), g, layout) == indices(TopK(k=3), g, layout)


def test_blocks_sum_worth_by_power_and_cost_by_entry():
    layout = Layout.from_shapes({"a": (4,), "b": (2,)})
    cost = Table({"a": 1.0, "b": 5.0})
    g = [3.0, 0.0, 2.0, 2.0, 11.0, 11.0]
    assert indices(Blocks(CWMP(k=1, cost=cost), entries=2), g, layout) == [4, 5]  # 3/2, 4/2, 22/10
    assert indices(Blocks(TopK(k=1), entries=2), [*g[:4], 0, 0], layout) == [2, 3]
    assert indices(Blocks(CWMP(k=1, cost=cost, power=2), entries=2), [*g[:4], 0, 0], layout) == [0, 1]  # 9 > 8
    assert indices(Blocks(CWMP(k=3, cost=cost, joules=9.0), entries=2), g, layout) == []
    assert indices(Blocks(BudgetedCWMP(k=3, cost=cost, joules=9.0), entries=2), g, layout) == [0, 1, 2, 3]


def test_per_layer_prices_are_the_whole_models():
    layout = Layout.from_shapes(
        {"conv.weight": (2,), "mid.weight": (2,), "norm.weight": (1,), "fc.weight": (2,)},
        {"conv.weight": "conv", "mid.weight": "linear", "norm.weight": "norm", "fc.weight": "linear"},
    )
    state = PerLayer(CWMP(k=1, cost=LayerType())).init(layout)
    assert [s.prices.joules.item() for s in state.inner] == [1, 1, 1, 5]


def test_a_million_entries_in_a_moment_with_a_tight_certificate():
    rng = np.random.default_rng(0)
    g = torch.tensor(rng.standard_t(3, 10**6), dtype=torch.float32)
    op = BudgetedCWMP(density=0.05, joules=1e5, cost=PerEntry(torch.from_numpy(rng.lognormal(1, 1, 10**6))))
    sent, state = op(g, op.init(flat(10**6)))
    assert state.certificate.gap / state.certificate.bound <= 1e-4
    assert len(sent) <= 50_000
