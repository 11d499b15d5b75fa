"""What a device's work costs, from windows that were measured: E = Σ_i e_i x_i with e ≥ 0, and how sure that is.

A window says how many joules it took and how much of each thing was done in it: seconds, operations, bits. The least
squares weigh each window by how well the meter can tell it. What cannot be told is refused, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

__all__ = ["Coefficient", "Fit", "Prediction", "Unresolved", "Window", "fit", "shortest", "spread"]

MOVES = 20  # of the sensor: a window with fewer is too short
DRAWS = 1000  # of the bootstrap
SIGNAL = 3.0  # standard errors of a window that a coefficient must make up in at least one
CONDITION = 100.0  # of the design, columns of length 1: beyond, two things were never done apart
QUANTILES = (0.025, 0.975)


class Unresolved(ValueError):
    """The windows do not say what is asked of them."""


class Window(NamedTuple):
    """What was measured while something was done over and over.

    Args:
        name: what was done.
        seconds: how long.
        joules: what the meter said.
        amounts: how much of each thing that costs: {"memory bits": 1e12, …}.
        moves: seconds between two moves of the meter.
    """

    name: str
    seconds: float
    joules: float
    amounts: Mapping[str, float]
    moves: float = 0.0

    @property
    def watts(self) -> float:
        """Joules per second."""
        return self.joules / self.seconds


class Coefficient(NamedTuple):
    """What one of a thing costs, in joules: between low and high in 95 of 100 draws.

    Args:
        why: why there is none, where `joules` is None; then `high` is the most that it can be.
    """

    joules: float | None
    low: float
    high: float
    why: str = ""


class Prediction(NamedTuple):
    """What the fit says of a window that it has not seen, and what the meter said; joules, and two standard errors."""

    name: str
    seconds: float
    measured: float
    measured_error: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """How far off, as a share of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Fit:
    """Coefficients, and all draws of them for what is predicted.

    Args:
        coefficients: by the name of the thing.
        residuals: of each window: its name, and (fitted − measured) / measured.
        condition: of the design.
        spread: relative standard deviation from window to window of the same work, for as much done.
        misfit: by how much the residuals exceed what the meter's own errors allow; 1: not at all. Errors of
            coefficients and predictions are that much wider.
        best: the least squares' answer, also where a coefficient is not resolved.
        draws: one row a draw, a column a coefficient.
    """

    coefficients: dict[str, Coefficient]
    residuals: list[tuple[str, float]]
    condition: float
    spread: float
    misfit: float
    best: NDArray[np.float64]
    draws: NDArray[np.float64]

    def predict(self, window: Window) -> Prediction:
        """What the coefficients say of a window."""
        x = np.array([window.amounts.get(name, 0.0) for name in self.coefficients])
        unknown = [name for name, amount in window.amounts.items() if amount and name not in self.coefficients]
        if unknown:
            raise Unresolved(f"{window.name} has {unknown[0]}, for which nothing was fitted")
        low, high = np.quantile(self.draws @ x, QUANTILES)
        middle = float(self.best @ x)
        error = 2 * standard_error(window, self.spread)
        return Prediction(
            window.name, window.seconds, window.joules, error, middle, min(float(low), middle), max(float(high), middle)
        )


def fit(windows: Sequence[Window], *, seed: int = 0) -> Fit:
    """Non-negative least squares over windows, weighted; confidence by a parametric bootstrap.

    Args:
        windows: each kind of work that is to be told apart, several times.
        seed: of the draws.

    Example:
        >>> windows = [Window("rest", 5.0, 50.0, {"rest s": 5.0}),
        ...            Window("product", 5.0, 150.0, {"rest s": 5.0, "FLOP": 1e12})]
        >>> found = fit(windows)
        >>> {name: round(c.joules, 12) for name, c in found.coefficients.items()}
        {'rest s': 10.0, 'FLOP': 1e-10}
    """
    names = list(dict.fromkeys(name for window in windows for name, amount in window.amounts.items() if amount))
    x = np.array([[window.amounts.get(name, 0.0) for name in names] for window in windows], dtype=np.float64)
    y = np.array([window.joules for window in windows], dtype=np.float64)
    if not len(y):
        raise Unresolved("there is no window to fit")
    condition = _condition(names, x)
    first = _solved(x, y, np.array([standard_error(window, 0.0) for window in windows]))
    varies = spread(windows, x @ first)
    sigma = np.array([standard_error(window, varies) for window in windows])
    best = _solved(x, y, sigma)
    freedom = len(y) - len(names)
    misfit = max(1.0, math.sqrt(float((((x @ best - y) / sigma) ** 2).sum()) / freedom)) if freedom else 1.0
    sigma = misfit * sigma
    draws = np.random.default_rng(seed).normal(y, sigma, (DRAWS, len(y)))
    drawn = np.array([_solved(x, draw, sigma) for draw in draws])
    coefficients = {
        name: _judged(float(best[i]), drawn[:, i], x[:, i], sigma, y) for i, name in enumerate(names)
    }  # fmt: skip
    fitted = x @ best
    residuals = [(window.name, float(f / window.joules - 1)) for window, f in zip(windows, fitted, strict=True)]
    return Fit(coefficients, residuals, condition, varies, misfit, best, drawn)


def shortest(moves: float) -> float:
    """The shortest window, in seconds, that a meter can tell."""
    return MOVES * moves


def spread(windows: Sequence[Window], fitted: NDArray[np.float64]) -> float:
    """How much joules of the same work differ from window to window, for as much done: relative, pooled over works."""
    ratios: dict[str, list[float]] = {}
    for window, joules in zip(windows, fitted, strict=True):
        ratios.setdefault(window.name, []).append(window.joules / joules)
    several = [np.array(r) for r in ratios.values() if len(r) > 1]
    freedom = sum(len(r) - 1 for r in several)
    return math.sqrt(sum(float(((r / r.mean() - 1) ** 2).sum()) for r in several) / freedom) if freedom else 0.0


def standard_error(window: Window, varies: float) -> float:
    """Of its joules: both ends fall between two moves of the meter, and the same work is not always the same."""
    ends = window.watts * window.moves * math.sqrt(2 / 12)  # two uniform errors
    return math.hypot(ends, varies * window.joules, 1e-6 * window.joules)


def _condition(names: list[str], x: NDArray[np.float64]) -> float:
    """Of the design; refused where two columns go together."""
    if len(x) < len(names):
        raise Unresolved(f"{len(x)} windows cannot tell {len(names)} costs apart: {', '.join(names)}")
    unit = x / np.linalg.norm(x, axis=0)
    values = np.linalg.svd(unit, compute_uv=False)
    condition = float(values[0] / values[-1]) if values[-1] > 0 else math.inf
    if condition > CONDITION:
        together = unit.T @ unit - np.eye(len(names))
        i, j = np.unravel_index(int(together.argmax()), together.shape)
        raise Unresolved(
            f"{names[i]} and {names[j]} go together in every window (condition {condition:.3g}): no fit can tell them "
            "apart; more kinds of work are needed"
        )
    return condition


def _solved(x: NDArray[np.float64], y: NDArray[np.float64], sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column is scaled to length 1: a joule a second and a picojoule a bit differ by 12 powers of ten."""
    weighted = x / sigma[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    found, _ = nnls(weighted / scale, y / sigma)
    return np.asarray(found / scale, dtype=np.float64)


def _judged(
    joules: float, drawn: NDArray[np.float64], amounts: NDArray[np.float64], sigma: NDArray[np.float64],
    measured: NDArray[np.float64],
) -> Coefficient:  # fmt: skip
    """A coefficient, or why there is none."""
    low, high = (float(q) for q in np.quantile(drawn, QUANTILES))
    low, high = min(low, joules), max(high, joules)
    strongest = float((joules * amounts / sigma).max())
    if strongest < SIGNAL or low <= 0:
        share = float((high * amounts / measured).max())
        why = f"below what the meter can tell: at most {share:.1%} of any window"
        return Coefficient(None, 0.0, high, why)
    return Coefficient(joules, low, high)
