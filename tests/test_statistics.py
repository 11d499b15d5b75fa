"""The report's statistics against numbers worked out by hand, with the t of printed tables."""

from __future__ import annotations

import math

import pytest

from joulegrad.lab.report.statistics import (
    Interval,
    difference,
    first_to_reach,
    front,
    interval,
    ratio,
    verdict,
    volume,
    within,
)

T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # two-sided 95 %, by degrees of freedom: any printed table


def test_an_interval_is_students():
    found = interval([4.0, 6.0, 8.0])  # s = 2, n = 3
    assert found.mean == 6
    assert found.high - 6 == 6 - found.low == pytest.approx(T[2] * 2 / math.sqrt(3), rel=1e-3)
    assert interval([1.0, 1.0]) == Interval(1, 1, 1, 2)
    assert interval([5.0]) == Interval(5, None, None, 1)


def test_another_confidence():
    found = interval([4.0, 6.0, 8.0], confidence=0.9)
    assert found.high - 6 == pytest.approx(2.920 * 2 / math.sqrt(3), rel=1e-3)


def test_seeds_are_paired_and_what_has_no_partner_is_left_out():
    ours, theirs = {0: 0.70, 1: 0.80, 2: 0.90, 7: 0.1}, {0: 0.60, 1: 0.72, 2: 0.78}  # apart: 0.10, 0.08, 0.12
    found = difference(ours, theirs)
    assert found.n == 3
    assert found.mean == pytest.approx(0.10)
    assert found.low == pytest.approx(0.10 - T[2] * 0.02 / math.sqrt(3), rel=1e-3)
    # the seeds vary five times as much as the differences: unpaired, nothing could be said
    assert difference({n + 10: value for n, value in ours.items() if n < 7}, theirs).low < 0 < found.low


def test_without_common_seeds_it_is_welchs():
    # means 4 and 1; variances 4 and 1, each over 3: se² = 5/3, freedom = (5/3)² / ((4/3)²/2 + (1/3)²/2) = 2.941
    found = difference({0: 2.0, 1: 4.0, 2: 6.0}, {3: 0.0, 4: 1.0, 5: 2.0})
    assert (found.mean, found.n) == (3, 3)
    assert T[3] < (found.high - 3) / math.sqrt(5 / 3) < 3.25  # a little less freedom than 3
    assert difference({0: 2.0}, {1: 1.0}) == Interval(1, None, None, 1)
    assert difference({0: 2.0, 1: 2.0}, {3: 1.0, 4: 1.0}) == Interval(1, 1, 1, 2)


def test_a_ratio_is_geometric():
    found = ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 1.0})  # logs: ln 2, ln 8: mean ln 4, s = ln 4 / √2, s/√n = ln 2
    assert found.mean == pytest.approx(4)
    assert found.high == pytest.approx(4 * 2 ** T[1], rel=1e-2)
    assert found.low * found.high == pytest.approx(16)
    assert ratio({0: 0.0}, {0: 1.0}) is None
    assert ratio({}, {0: 1.0}) is None


def test_first_to_reach_and_within():
    accuracies, spent = [None, 0.4, 0.6, 0.5, 0.9], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert first_to_reach(accuracies, spent, 0.5) == 3.0  # not later, when it had fallen again
    assert first_to_reach(accuracies, spent, 0.95) is None
    assert within(accuracies, spent, 4.5) == 0.5  # the last, not the best
    assert within(accuracies, spent, 5.0) == 0.9
    assert within(accuracies, spent, 1.0) is None


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1.0, 0.5)], [0]),
        ([(1.0, 0.5), (1.0, 0.6)], [1]),
        ([(1.0, 0.5), (2.0, 0.5)], [0]),
        ([(3.0, 0.9), (2.0, 0.7), (1.0, 0.8)], [2, 0]),
    ],
)
def test_the_front(points, expected):
    assert front(points) == expected


def test_the_volume_below_a_staircase():
    points = [(1.0, 0.2), (10.0, 0.4), (100.0, 0.3)]
    # by decades of the four from 1 to 10⁴: 0.2 for one, 0.4 for three (0.3 adds nothing)
    assert volume(points, 1.0, 1e4) == pytest.approx((0.2 + 3 * 0.4) / 4)
    assert volume([(0.1, 0.5)], 1.0, 1e4) == pytest.approx(0.5)  # cheaper than the plane is wide
    assert volume([(1e4, 0.5)], 1.0, 1e4) == 0
    assert volume(points, 0.0, 1.0) is None
    assert volume([*points, (2.0, 0.1)], 1.0, 1e4) == volume(points, 1.0, 1e4)  # what is dominated adds nothing


@pytest.mark.parametrize(
    ("cost", "accuracy", "words"),
    [
        ((0.5, 0.4, 0.6), (0.1, 0.05, 0.15), "costs less; more accurate"),
        ((0.5, 0.4, 1.1), (0.1, -0.05, 0.15), "cost within chance; accuracy within chance"),
        ((2.0, 1.4, 2.6), (-0.1, -0.15, -0.05), "costs more; less accurate"),
        ((2.0, None, None), (0.1, None, None), "one seed: no verdict"),
    ],
)
def test_a_verdict_needs_more_than_chance(cost, accuracy, words):
    assert verdict(Interval(*cost, 3), Interval(*accuracy, 3)).words == words


def test_what_cannot_be_compared():
    assert verdict(None, Interval(1, 0, 2, 3)).words == "cannot be compared"
