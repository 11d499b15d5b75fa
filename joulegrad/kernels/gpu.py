"""Selection on the GPU: about two readings of the update, and no word to the host but one.

To find the k largest of d scores, a sample of them says between which two the k-th largest must lie. A first pass
(`tiles.survey`) counts what lies above the upper one and lists the few entries between the two; among these the k-th is
found (`narrow`, `settle`); a second pass (`emit`) writes down what reaches it. If the sample misled, which the counts
tell, all of it is done once more with a bracket that cannot, so the answer is always the reference's.

The host asks once, at the end, whether there was an answer. While a CUDA graph is captured it must not ask: then
indices of −1 say that there was none, because the update was not finite or, as rarely as the sample misleads, by bad
luck.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.cost import Prices
from joulegrad.kernels import reference, tiles
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["all_finite", "at_least", "largest", "levels", "scales", "values_of"]

all_finite, scales, levels, values_of = reference.all_finite, reference.scales, reference.levels, reference.values_of

BLOCK, WARPS = 2048, 4  # entries a tile, and who reads them
SAMPLE, OWN = 4096, 8  # entries drawn, and how many of them each program ranks
BINS = 8192
MOST = 2**31 - 2 * BLOCK  # entries of one update: an index has 31 bits here; beyond, the reference serves
ROOM = 4096  # that the list always has
CROWD = 1024  # so few are ranked by comparing each with each
LIST_BLOCK, LIST_PROGRAMS, LIST_WARPS = 1024, 264, 8
RUNS = 4  # of different cost, whose keys are computed at once
ERRORS, SPARE = 4.5, 8  # the bracket allows for so many standard errors of a sample's rank, and so many ranks more
ROUNDS = 8  # of narrowing, after which a mark of 64 + 32 bits is known whatever the scores


def largest(scores: Scores, k: int) -> Tensor:
    """Indices of the min(k, d) largest scores, ties to the lower index; of several updates at once, a row each."""
    update = scores.update
    rows, d = _rows(update)
    if k == 0 or k >= d:
        out = torch.arange(min(k, d), device=update.device).expand(rows, -1).contiguous()
        if _capturing(update):
            out = torch.where(torch.isfinite(update).all(), out, -1)
        elif not all_finite(update):
            raise NotFinite
    elif d > MOST:
        out = torch.stack([reference.largest(scores._replace(update=one), k) for one in update.view(rows, d)])
    else:
        with torch.cuda.device_of(update):
            out = _largest(aligned(scores), k)
    return out if update.dim() == 2 else out.squeeze(0)


def at_least(scores: Scores, threshold: float, k: int | None = None) -> Tensor:
    """Indices of all scores ≥ threshold; where they are more than k, the k largest."""
    if k == 0:
        return largest(scores, 0)
    if len(scores.update) > MOST:
        return reference.at_least(scores, threshold, k)
    scores = aligned(scores)
    with torch.cuda.device_of(scores.update):
        return _at_least(scores, threshold, k)


def _at_least(scores: Scores, threshold: float, k: int | None) -> Tensor:
    plan, g, power = Plan.of(scores), scores.update, scores.power
    state, words = carved(torch.int64, g.device, tiles.FIELDS.value, plan.tiles)
    (keys,) = carved(torch.int32, g.device, 4 * plan.runs)
    bits = struct.unpack("<q", struct.pack("<d", threshold))[0] if threshold > 0 else 0
    tiles.threshold[(1,)](bits, plan.costs, plan.runs, keys, state, POWER=power, EACH=plan.each, RUNS=RUNS)
    survey(plan, scores, state, keys, words, (keys, keys), 0)
    found = state.tolist()
    if found[tiles.STATUS.value] != tiles.DONE.value:
        raise NotFinite
    n = found[tiles.COUNTED.value] >> 32
    if k is not None and n > k:
        return largest(scores, k)
    out = torch.empty(1, n, dtype=torch.int64, device=g.device)
    emit(plan, scores, state, keys, words, out)
    return out.squeeze(0)


class Plan(NamedTuple):
    """How an update is cut into tiles of one cost; made once for the prices of a model."""

    costs: Tensor  # of each run of entries with one cost, or of each entry
    ends: Tensor  # of the runs
    table: Tensor  # of the tiles: where each begins, ends, and its run
    each: bool  # whether each entry has a cost of its own
    starts: Tensor  # of the tiles, and an index above all
    paid: NDArray[np.float64]  # what the runs cost, on the host
    stops: NDArray[np.int64]  # and where they end

    @classmethod
    def of(cls, scores: Scores) -> Plan:
        """The plan for an update, kept as long as its prices are."""
        _, d = _rows(scores.update)
        if scores.prices is None:
            return _uniform(d, BLOCK, scores.update.device)
        kept = _KEPT.setdefault(scores.prices, {})
        if BLOCK not in kept:
            kept[BLOCK] = cls.made(scores.prices, d, scores.update.device)
        return kept[BLOCK]

    @classmethod
    def made(cls, prices: Prices | None, d: int, device: torch.device) -> Plan:
        """Cut runs of equal cost into tiles that begin at multiples of 16; a cost an entry needs no runs."""
        each = prices is not None and not prices.piecewise
        costs, ends = [1.0], [d]
        if prices is not None and not each:
            costs, ends = [], []
            for segment, cost in zip(prices.layout.segments, prices.joules.tolist(), strict=True):
                if costs and costs[-1] == cost:
                    ends[-1] = segment.stop
                elif segment.size:
                    costs.append(cost)
                    ends.append(segment.stop)
        tiles = [
            (max(start, first), min(start + BLOCK, last), run)
            for run, (first, last) in enumerate(pairwise([0, *ends]))
            for start in range(first // 16 * 16, last, BLOCK)
        ]
        table = torch.tensor(tiles, dtype=torch.int32).T.contiguous().to(device)
        of_runs = torch.tensor(costs, dtype=torch.float64, device=device)
        own = of_runs
        if prices is not None and each:
            own = prices.joules.contiguous()
            own = own.clone() if own.data_ptr() % 16 else own  # programs are compiled for aligned memory
        starts = torch.tensor([*(first for first, _, _ in tiles), 2**31 - 1], dtype=torch.int32, device=device)
        return cls(own, torch.tensor(ends, device=device), table, each, starts, np.array(costs), np.array(ends))

    @property
    def runs(self) -> int:
        return len(self.ends)

    @property
    def tiles(self) -> int:
        return self.table.shape[1]

    @property
    def steps(self) -> int:
        """Halvings that find a run among all."""
        return (self.runs - 1).bit_length()


_KEPT: WeakKeyDictionary[Prices, dict[int, Plan]] = WeakKeyDictionary()


@lru_cache(maxsize=64)
def _uniform(d: int, block: int, device: torch.device) -> Plan:
    return Plan.made(None, d, device)


def _largest(scores: Scores, k: int) -> Tensor:
    rows, d = _rows(scores.update)
    capturing = _capturing(scores.update)
    out = torch.empty(rows, k, dtype=torch.int64, device=scores.update.device)
    m = min(d, SAMPLE)
    rank = (m * k - 1) // d
    slack = 0 if m == d else int(ERRORS * math.sqrt(m * (k / d) * (1 - k / d))) + SPARE
    room = min(d, (2 * slack + 2) * -(-d // m) * 3 // 2 + ROOM)
    search = _Search(scores, k, out, room)
    search.begin(rank + slack, rank - slack - 1)
    for _ in range(ROUNDS if capturing else 1):
        search.narrow()
    search.finish()
    if capturing:
        return out
    while (status := search.status()) != tiles.DONE.value:
        if status & tiles.NOT_FINITE.value:
            raise NotFinite
        if status & tiles.MISLED.value:
            search = _Search(scores, k, out, d)
            search.begin(-1, -1)
        search.state[tiles.STATUS.value :: tiles.FIELDS.value] = tiles.DONE.value
        search.narrow()
        search.finish()
    return out


class _Search:
    """The kernels of one search, in their order, with the memory that they share."""

    def __init__(self, scores: Scores, k: int, out: Tensor, room: int) -> None:
        self.scores, self.k, self.out, self.room = scores, k, out, room
        self.plan = Plan.of(scores)
        self.rows, self.d = _rows(scores.update)
        device, rows = scores.update.device, self.rows
        m = self.m = min(self.d, SAMPLE)
        self.state, self.words, self.drawn, self.few = carved(
            torch.int64, device, *(rows * n for n in (tiles.FIELDS.value, self.plan.tiles, m, CROWD))
        )
        self.keys, self.bins, self.drawn_at, self.few_at, *self.listed = carved(
            torch.int32,
            device,
            rows * 4 * self.plan.runs,
            rows * BINS,
            rows * m,
            rows * CROWD,
            rows * room,
            rows * room,
        )
        self.how = {"POWER": scores.power, "EACH": self.plan.each}

    def begin(self, rank_low: int, rank_high: int) -> None:
        """Sample, bracket, survey."""
        plan, m = self.plan, self.m
        launch(
            tiles.sample, (-(-m // 128), self.rows), 4,
            self.scores.update, self.d, plan.costs, plan.ends, plan.runs, self.state, self.bins,
            self.drawn, self.drawn_at, m, **self.how, STEPS=plan.steps, BLOCK=128, BINS=BINS,
        )  # fmt: skip
        launch(
            tiles.bracket, (-(-m // OWN), self.rows), 8,
            self.d, self.drawn, self.drawn_at, m, rank_low, rank_high, plan.costs, plan.runs, self.keys, self.state,
            **self.how, OWN=OWN, BLOCK=1024, BINS=BINS, RUNS=RUNS,
        )  # fmt: skip
        survey(plan, self.scores, self.state, self.keys, self.words, self.listed, self.room)

    def narrow(self) -> None:
        """One round, unless so few are left that there is no need."""
        plan = self.plan
        launch(
            tiles.narrow, (LIST_PROGRAMS, self.rows), LIST_WARPS,
            *self.listed, self.room, plan.costs, plan.ends, plan.runs, self.k, self.state, self.bins,
            **self.how, STEPS=plan.steps, BLOCK=LIST_BLOCK, BINS=BINS, CROWD=CROWD,
        )  # fmt: skip

    def finish(self) -> None:
        """Settle, emit."""
        plan = self.plan
        launch(
            tiles.settle, (LIST_PROGRAMS, self.rows), LIST_WARPS,
            *self.listed, self.room, plan.costs, plan.ends, plan.runs, self.state, self.few, self.few_at, self.keys,
            **self.how, STEPS=plan.steps, BLOCK=LIST_BLOCK, CROWD=CROWD, OWN=64, OTHERS=256, RUNS=RUNS,
        )  # fmt: skip
        emit(plan, self.scores, self.state, self.keys, self.words, self.out)

    def status(self) -> int:
        """Of all rows together; waits for the GPU."""
        found: list[int] = self.state[tiles.STATUS.value :: tiles.FIELDS.value].tolist()
        return reduce(or_, found)


def survey(
    plan: Plan,
    scores: Scores,
    state: Tensor,
    keys: Tensor,
    words: Tensor,
    listed: Sequence[Tensor],
    room: int,
    counts: Tensor | None = None,
) -> None:
    rows, d = _rows(scores.update)
    launch(
        tiles.survey, (plan.tiles, rows), WARPS,
        scores.update, d, plan.costs, plan.table, plan.runs, keys, state, words,
        keys if counts is None else counts, *listed, room,
        POWER=scores.power, EACH=plan.each, BY_RUN=counts is not None, BLOCK=BLOCK,
    )  # fmt: skip


def emit(
    plan: Plan,
    scores: Scores,
    state: Tensor,
    keys: Tensor,
    words: Tensor,
    out: Tensor,
    others: Sequence[Tensor] | None = None,
) -> None:
    rows, d = _rows(scores.update)
    launch(
        tiles.emit, (plan.tiles, rows), WARPS,
        scores.update, d, plan.costs, plan.table, plan.runs, keys, state, words, *(others or (keys, keys)),
        out, out.shape[1],
        POWER=scores.power, EACH=plan.each, OTHERS=others is not None, BLOCK=BLOCK,
    )  # fmt: skip


def _capturing(update: Tensor) -> bool:
    return update.is_cuda and torch.cuda.is_current_stream_capturing()


_COMPILED: dict[Hashable, tuple[Any, list[Any]]] = {}


def launch(program: Any, grid: tuple[int, int], warps: int, *arguments: Any, **constants: Any) -> None:
    """Start a program, compiled when it is first asked for with such constants, on such an update and device.

    Triton's own call looks at each argument every time, which takes longer than most of our programs run. Ours differ
    in their numbers only, which are not specialised on, and in the update, whose memory is aligned (`_aligned`).
    """
    if not isinstance(program, triton.JITFunction):  # the interpreter's
        program[grid](*arguments, **constants, num_warps=warps)
        return
    first = arguments[0]
    kind = (first.dtype, first.device.index) if isinstance(first, Tensor) else torch.cuda.current_device()
    key = program, warps, kind, *constants.values()
    if key not in _COMPILED:
        compiled = program.warmup(*arguments, **constants, grid=grid, num_warps=warps)
        _COMPILED[key] = compiled, [constants[name] for name in program.arg_names[len(arguments) :]]
    compiled, constant = _COMPILED[key]
    compiled[*grid, 1](*arguments, *constant)


def aligned(scores: Scores) -> Scores:
    """The same, entry after entry in memory that large words can be read from: nearly always as it is."""
    update = scores.update.contiguous()
    if update.data_ptr() % 16:
        update = update.clone()
    return scores if update is scores.update else scores._replace(update=update)


def carved(dtype: torch.dtype, device: torch.device, *sizes: int) -> Sequence[Tensor]:
    """Uninitialised tensors of so many numbers, in one piece of memory: asking for each takes as long as for all."""
    rounded = [-(-n // 16) * 16 for n in sizes]  # so that each is aligned
    pieces: Sequence[Tensor] = torch.empty(sum(rounded), dtype=dtype, device=device).split(rounded)
    return pieces


def _rows(update: Tensor) -> tuple[int, int]:
    """How many updates, and of how many entries."""
    return (1, len(update)) if update.dim() == 1 else (update.shape[0], update.shape[1])
