"""What seeds allow to say: means with confidence intervals, paired comparisons, fronts and the area below them.

A figure "by seed" maps each seed to a number. Two ways that were played with the same seeds saw the same data, the same
clients and the same first model, so their differences are taken seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = [
    "CONFIDENCE",
    "Interval",
    "Verdict",
    "difference",
    "first_to_reach",
    "front",
    "interval",
    "ratio",
    "students_t",
    "verdict",
    "volume",
    "within",
]

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and where it may lie; without bounds where there are fewer than two numbers."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside; never where there are no bounds."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean ± t · s / √n, with Student's t of n − 1 degrees of freedom.

    Example:
        >>> interval([1.0, 2.0, 3.0])
        Interval(mean=2.0, low=-0.484..., high=4.484..., n=3)
        >>> interval([1.0])
        Interval(mean=1.0, low=None, high=None, n=1)
    """
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(mean, None, None, n)
    half = students_t(n - 1, confidence) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Ours minus theirs: seed by seed where they share seeds, else Welch's; None where one has no number.

    Example:
        >>> difference({0: 3.0, 1: 5.0, 2: 9.0}, {0: 2.0, 1: 3.0, 5: 0.0})
        Interval(mean=1.5, low=-4.85..., high=7.85..., n=2)
        >>> difference({0: 3.0}, {}) is None
        True
    """
    if not ours or not theirs:
        return None
    common = sorted(ours.keys() & theirs.keys())
    if common:
        return interval([ours[seed] - theirs[seed] for seed in common], confidence)
    a, b = list(ours.values()), list(theirs.values())
    mean, n = fmean(a) - fmean(b), min(len(a), len(b))
    if n < 2:
        return Interval(mean, None, None, n)
    va, vb = stdev(a) ** 2 / len(a), stdev(b) ** 2 / len(b)
    if va + vb == 0:
        return Interval(mean, mean, mean, n)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = students_t(freedom, confidence) * math.sqrt(va + vb)
    return Interval(mean, mean - half, mean + half, n)


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = CONFIDENCE) -> Interval | None:
    """Ours over theirs, as geometric mean: exp of the `difference` of logarithms; None where a number is not positive.

    Example:
        >>> found = ratio({0: 1.0, 1: 4.0}, {0: 2.0, 1: 8.0})
        >>> round(found.mean, 9), found.n
        (0.5, 2)
    """
    if any(value <= 0 for value in [*ours.values(), *theirs.values()]):
        return None
    logs = [{seed: math.log(value) for seed, value in values.items()} for values in (ours, theirs)]
    found = difference(logs[0], logs[1], confidence)
    if found is None:
        return None
    if found.low is None or found.high is None:
        return found._replace(mean=math.exp(found.mean))
    return Interval(math.exp(found.mean), math.exp(found.low), math.exp(found.high), found.n)


def first_to_reach(accuracies: Sequence[float | None], spent: Sequence[float], target: float) -> float | None:
    """What had been spent at the first evaluation that was at least the target; None where none was.

    Example:
        >>> first_to_reach([0.5, None, 0.7, 0.6], [10.0, 20.0, 30.0, 40.0], target=0.6)
        30.0
    """
    pairs = zip(accuracies, spent, strict=True)
    return next((cost for accuracy, cost in pairs if accuracy is not None and accuracy >= target), None)


def within(accuracies: Sequence[float | None], spent: Sequence[float], budget: float) -> float | None:
    """The last accuracy that was evaluated before more than the budget had been spent; None where none was.

    Example:
        >>> within([0.5, 0.7, 0.6], [10.0, 20.0, 30.0], budget=25.0)
        0.7
    """
    pairs = zip(accuracies, spent, strict=True)
    known = [accuracy for accuracy, cost in pairs if accuracy is not None and cost <= budget]
    return known[-1] if known else None


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which (cost, accuracy) no other equals at less cost, or beats at no more; cheapest first.

    Example:
        >>> front([(3.0, 0.9), (1.0, 0.5), (2.0, 0.4), (3.0, 0.8)])
        [1, 0]
    """
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not kept or points[place][1] > points[kept[-1]][1]:
            kept.append(place)
    return kept


def volume(points: Sequence[tuple[float, float]], least: float, most: float) -> float | None:
    """The share of the plane that the points dominate: accuracy from 0 to 1 over the logarithm of cost, least to most.

        HV = 1 / (ln most − ln least) · ∫ max {accuracy_i : cost_i ≤ c} d ln c

    Example:
        >>> round(volume([(1.0, 0.5), (10.0, 0.9)], least=1.0, most=100.0), 9)
        0.7
    """
    if not (0 < least < most):
        return None
    area, best = 0.0, 0.0
    edges = [(max(cost, least), accuracy) for cost, accuracy in sorted(points) if cost < most]
    if not edges:
        return 0.0
    for (cost, accuracy), (following, _) in zip(edges, [*edges[1:], (most, 0.0)], strict=True):
        best = max(best, accuracy)
        area += best * math.log(following / cost)
    return area / math.log(most / least)


class Verdict(NamedTuple):
    """What two intervals say together, in words."""

    cheaper: bool | None  # None: within chance
    better: bool | None
    words: str


def verdict(cost: Interval | None, accuracy: Interval | None) -> Verdict:
    """Whether something costs less (a `ratio`) and learns more (a `difference`), beyond chance.

    Example:
        >>> verdict(Interval(0.6, 0.5, 0.7, 3), Interval(0.01, -0.01, 0.03, 3)).words
        'costs less; accuracy within chance'
    """
    if cost is None or accuracy is None:
        return Verdict(None, None, "cannot be compared")
    if cost.low is None or accuracy.low is None:
        return Verdict(None, None, "one seed: no verdict")
    cheaper = cost.mean < 1 if cost.excludes(1) else None
    better = accuracy.mean > 0 if accuracy.excludes(0) else None
    costs = {True: "costs less", False: "costs more", None: "cost within chance"}[cheaper]
    learns = {True: "more accurate", False: "less accurate", None: "accuracy within chance"}[better]
    return Verdict(cheaper, better, f"{costs}; {learns}")


def students_t(freedom: float, confidence: float) -> float:
    """The quantile of Student's t that so much of it lies within, on both sides of 0."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))
