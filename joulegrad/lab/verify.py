"""The theory, checked against independent solvers: what `joulegrad verify` runs.

Each check draws random instances from a seed, compares our code with something that does not share it (an LP
or an integer program solved by HiGHS, a Monte Carlo mean, a count of counter-examples) and reports the worst
case it met beside the limit that the theory sets.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joulegrad import kernels
from joulegrad.cost import Cost, PerEntry, Prices
from joulegrad.kernels import reference
from joulegrad.layout import Layout
from joulegrad.selection import CWMP, BudgetedCWMP, Certificate, TopK

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One line of the table: the worst case met, and the limit that it must keep."""

    claim: str
    instances: int
    worst: float
    limit: float
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the claim held on every instance (NaN: it did not)."""
        return self.worst <= self.limit


def checks(seed: int = 0) -> list[tuple[str, Callable[[], Check]]]:
    """The checks to run, each with its own generator, so that one can be run alone."""
    todo: list[tuple[str, Callable[[np.random.Generator], Check]]] = [
        ("Lemma 1", lemma_1),
        ("C1 and C2: feasible", feasible),
        ("C1 and C2: optimum ≤ bound", bounded),
        ("C1 and C2: two entries", nearly_optimal),
        ("C1 and C2: a million entries", million),
        ("Proposition 2", proposition_2),
        ("Proposition 2: equality", proposition_2_equality),
        ("Unconditional", unconditional),
    ]
    return [(name, _timed(check, np.random.default_rng([seed, i]))) for i, (name, check) in enumerate(todo)]


def _timed(check: Callable[[np.random.Generator], Check], rng: np.random.Generator) -> Callable[[], Check]:
    def run() -> Check:
        start = time.perf_counter()
        found = check(rng)
        return replace(found, seconds=time.perf_counter() - start)

    return run


def lemma_1(rng: np.random.Generator, instances: int = 60) -> Check:
    """Without C1, filling the budget in order of |g|/c solves the LP relaxation."""
    from scipy.optimize import linprog

    worst = 0.0
    for _ in range(instances):
        d = int(rng.integers(1, 400))
        g, c = _draw(rng, d)
        budget = float(c.sum() * rng.uniform(0, 1.1))
        lp = linprog(-np.abs(g), A_ub=c[None], b_ub=[budget], bounds=(0, 1), method="highs")
        worst = max(worst, abs(_fractional(g, c, budget) + lp.fun) / max(1e-30, float(-lp.fun)))
    return Check("ranking by |g|/c = LP optimum (relative difference)", instances, worst, 1e-9)


def _fractional(g: Floats, c: Floats, budget: float) -> float:
    """The ranking's solution of the relaxation: a prefix, and the fraction of the next entry that still fits."""
    update, prices = torch.from_numpy(g), _prices(c)
    scores = kernels.Scores(update, 1, prices)
    whole, s = kernels.prefix_within(scores, len(g), budget), reference.values(scores)
    value, left = float(np.abs(g[whole.numpy()]).sum()), budget - prices.total(whole)
    s[whole] = -1.0
    following = int(s.argmax())
    return value if s[following] < 0 else value + min(1.0, left / float(c[following])) * abs(float(g[following]))


def feasible(rng: np.random.Generator, instances: int = 150) -> Check:
    """BudgetedCWMP keeps both budgets."""
    excess = 0.0
    for g, c, k, budget in _knapsacks(rng, instances):
        indices, certificate = _solve(g, c, k, budget)
        excess = max(excess, len(indices) - k, certificate.joules - budget)
    return Check("|S| ≤ k and μ(S) ≤ E (largest excess)", instances, excess, 0.0)


def bounded(rng: np.random.Generator, instances: int = 150) -> Check:
    """The integer optimum lies between what is achieved and the bound."""
    worst = -math.inf
    for g, c, k, budget in _knapsacks(rng, instances):
        _, certificate = _solve(g, c, k, budget)
        best = _integer_optimum(g, c, k, budget)
        scale = max(best, 1e-30)
        worst = max(worst, (certificate.value - best) / scale, (best - certificate.bound) / scale)
    claim = "achieved ≤ integer optimum ≤ bound (largest relative violation)"
    return Check(claim, instances, worst, 1e-9)


def nearly_optimal(rng: np.random.Generator, instances: int = 150) -> Check:
    """Rounding loses at most two entries' worth."""
    worst = -math.inf
    for g, c, k, budget in _knapsacks(rng, instances):
        _, certificate = _solve(g, c, k, budget)
        best = _integer_optimum(g, c, k, budget)
        two = float(np.sort(np.abs(g))[-2:].sum())
        worst = max(worst, (best - certificate.value) / max(two, 1e-30))
    claim = "(optimum − achieved) / two largest values"
    return Check(claim, instances, worst, 1.0 + 1e-9)


def million(rng: np.random.Generator) -> Check:
    """At a million entries the certificate is tight."""
    d, worst, n = 1_000_000, 0.0, 0
    g = rng.standard_t(3, d) * np.repeat(rng.lognormal(0, 1, 20), d // 20)
    g = _float32(g)
    for costs in (rng.lognormal(0, 1, d), np.repeat(rng.choice([1.0, 2.0, 5.0], 20), d // 20)):
        for density, share in ((0.01, 0.5), (0.1, 0.8), (1.0, 0.01)):
            k = int(density * d)
            top = np.argpartition(-np.abs(g), k - 1)[:k]
            _, certificate = _solve(g, costs, k, float(costs[top].sum() * share))
            worst, n = max(worst, certificate.gap / certificate.bound), n + 1
    return Check("relative gap, d = 10⁶", n, worst, 1e-4)


def proposition_2(rng: np.random.Generator, repeats: int = 200) -> Check:
    """Independent g and c: CWMP costs less on average."""
    d, k, worst = 2_000, 100, -math.inf
    pairs = _independent()
    for magnitudes, costs in pairs:
        saved = np.array([_saving(magnitudes(rng, d), costs(rng, d), k) for _ in range(repeats)])
        half = 2.576 * saved.std(ddof=1) / math.sqrt(repeats)
        worst = max(worst, float(half - saved.mean()))
    claim = "E μ(CWMP) − E μ(TopK), relative: upper end of the 99 % interval"
    return Check(claim, repeats * len(pairs), worst, -1e-12)


def proposition_2_equality(rng: np.random.Generator, repeats: int = 200) -> Check:
    """Constant costs: the very same set."""
    worst = 0.0
    for _ in range(repeats):
        g, c = _draw(rng, 2_000)[0], np.full(2_000, rng.lognormal(0, 3))
        topk, cwmp = _chosen(g, c, 100)
        worst = max(worst, len(np.setdiff1d(topk.numpy(), cwmp.numpy())))
    return Check("entries in which CWMP and Top-K differ at constant c", repeats, worst, 0.0)


def unconditional(rng: np.random.Generator, instances: int = 2_000) -> Check:
    """For every g and c, however dependent, CWMP costs no more than Top-K at the same k."""
    worst = -math.inf
    for i in range(instances):
        d = int(rng.integers(1, 60))
        g, c = _draw(rng, d)
        if i % 3 == 1:
            c = np.abs(g) ** rng.uniform(-2, 2) + 1e-3  # costs that follow, or oppose, the magnitudes
        if i % 3 == 2:
            g, c = rng.integers(0, 3, d).astype(float), rng.integers(1, 4, d).astype(float)  # ties
        worst = max(worst, -_saving(g, c, int(rng.integers(0, d + 1))))
    claim = "μ(CWMP) − μ(TopK), relative, any g and c: the largest"
    return Check(claim, instances, worst, 1e-12)


def _saving(g: Floats, c: Floats, k: int) -> float:
    """(μ(TopK) − μ(CWMP)) / μ(TopK)."""
    dear, cheap = (_prices(c).total(indices) for indices in _chosen(g, c, k))
    return (dear - cheap) / dear if dear else 0.0


def _chosen(g: Floats, c: Floats, k: int) -> tuple[Tensor, Tensor]:
    """What Top-K and CWMP send."""
    layout, update = _layout(len(g)), torch.from_numpy(g).float()
    topk, cwmp = TopK(k=k), CWMP(k=k, cost=_cost(c))
    return topk(update, topk.init(layout))[0].indices, cwmp(update, cwmp.init(layout))[0].indices


def _solve(g: Floats, c: Floats, k: int, joules: float) -> tuple[Tensor, Certificate]:
    op = BudgetedCWMP(k=k, joules=joules, cost=_cost(c))
    state: Any
    sent, state = op(torch.from_numpy(g).float(), op.init(_layout(len(g))))
    return sent.indices, state.certificate


def _integer_optimum(g: Floats, c: Floats, k: int, joules: float) -> float:
    from scipy.optimize import Bounds, LinearConstraint, milp

    with _silence():
        found = milp(
            -np.abs(g),
            constraints=LinearConstraint(np.vstack([c, np.ones_like(c)]), ub=[joules, k]),
            integrality=np.ones_like(g),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0},
        )
    # HiGHS may break a budget by its own tolerance; count only what a whole and feasible answer is worth.
    return float(np.abs(g)[np.round(found.x) == 1].sum())


@contextmanager
def _silence() -> Iterator[None]:
    """HiGHS writes some lines past Python, straight to the process's standard output."""
    sys.stdout.flush()
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


def _knapsacks(rng: np.random.Generator, instances: int) -> Iterator[tuple[Floats, Floats, int, float]]:
    """Instances of every temper: ties, equal costs, loose and tight budgets, none at all."""
    for i in range(instances):
        d = int(rng.integers(1, 300))
        g, c = _draw(rng, d)
        match i % 5:
            case 1:
                c = np.full(d, 2.0)
            case 2:
                g = rng.integers(0, 4, d).astype(float)
                c = rng.integers(1, 4, d).astype(float)
            case 3:
                g = np.ones(d)
        k = int(rng.integers(0, d + 1))
        yield g, c, k, float(np.sort(c)[: max(k, 1)].sum() * rng.choice([0.0, 0.05, 0.5, 0.9, 1.0, 1.5, 4.0]))


def _draw(rng: np.random.Generator, d: int) -> tuple[Floats, Floats]:
    g = rng.standard_normal(d) * rng.lognormal(0, 1, d)
    c = rng.choice([1.0, 5.0], d) if rng.random() < 0.5 else rng.lognormal(0, 1, d)
    return _float32(g), c


def _float32(g: Floats) -> Floats:
    """What an update can hold, so that solvers see the very same numbers."""
    return g.astype(np.float32).astype(np.float64)


Draw = Callable[[np.random.Generator, int], Floats]


def _independent() -> list[tuple[Draw, Draw]]:
    return [
        (lambda r, d: r.standard_normal(d), lambda r, d: r.uniform(0.5, 5.0, d)),
        (lambda r, d: r.exponential(1.0, d), lambda r, d: r.lognormal(0.0, 1.0, d)),
        (lambda r, d: r.pareto(1.5, d), lambda r, d: r.choice([1.0, 5.0], d)),
        (lambda r, d: r.standard_t(2, d), lambda r, d: 1.0 + r.pareto(3.0, d)),
        (lambda r, d: r.uniform(0.0, 1.0, d), lambda r, d: r.gamma(2.0, 1.0, d) + 1e-3),
    ]


def _layout(d: int) -> Layout:
    return Layout.from_shapes({"g": (d,)})


def _cost(c: Floats) -> Cost:
    return PerEntry(torch.from_numpy(c))


def _prices(c: Floats) -> Prices:
    return Prices.of(_cost(c), _layout(len(c)))
