"""Selection on the GPU: about two readings of the update in one launch (`ranking.py`), and no word to the host but one.

The host asks once, at the end, whether all was finite. While a CUDA graph is captured it must not ask: then indices of
−1 say that it was not. All programs of that launch run at once, as many as there is room for; where that cannot be, as
in Triton's interpreter, its phases are launches of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from joulegrad.cost import Prices
from joulegrad.kernels import phases, ranking, reference, tiles
from joulegrad.kernels.scores import NotFinite, Scores

__all__ = ["all_finite", "at_least", "largest", "levels", "scales", "values_of"]

all_finite, scales, levels, values_of = reference.all_finite, reference.scales, reference.levels, reference.values_of

BLOCK, WARPS = 2048, 4  # entries a tile, and who reads them
TILE, SELECT_WARPS = 4096, 8  # the same for the program that does everything
MOST_AT_ONCE = 4  # such programs on a multiprocessor: more take longer to meet
SAMPLE = 4096  # entries drawn
BITS, CROWD, LIST = 12, 1024, 1024  # of the number of bins; so few are compared each with each; listed entries at once
MOST = 2**31 - 2 * TILE  # entries of one update: an index has 31 bits here; beyond, the reference serves
ROOM, SKEW = 512, 8  # entries that a list has room for; times as many as are expected, since layers differ
LIST_BLOCK, LIST_PROGRAMS, LIST_WARPS = 1024, 264, 8
RUNS = 4  # of different cost, whose keys are computed at once
ERRORS, SPARE = 4.5, 8  # the bracket allows for so many standard errors of a sample's rank, and so many ranks more
CERTAIN = 12  # if so many of a sample are expected above a mark, one is
FUSED = isinstance(ranking.select, triton.JITFunction)  # all phases in one launch: the interpreter cannot
REGISTERS = {False: 64, True: 80}  # of a thread of the fused one: four, or three, such programs fit a multiprocessor
PROGRAMS = 264  # of each phase, where they are not


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
    cuts: dict[tuple[int, int], tuple[Tensor, int, int]]  # what `pieces` found

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
        return cls(own, torch.tensor(ends, device=device), table, each, starts, np.array(costs), np.array(ends), {})

    def pieces(self, most: int) -> tuple[Tensor, int, int]:
        """The update in `most` equal parts, or fewer if they are small; how many they are, and the largest's size.

        Where each part's pieces begin, and of each piece its first entry, its last plus one, and its run.
        """
        if (most, TILE) not in self.cuts:
            d, stops = int(self.stops[-1]), self.stops.tolist()
            size = _rounded(-(-d // min(most, -(-d // TILE))))
            begins, pieces, run = [0], list[tuple[int, int, int]](), 0
            for start in range(0, d, size):
                stop = min(start + size, d)
                while start < stop:
                    end = min(stop, stops[run])
                    pieces.append((start, end, run))
                    run += end == stops[run]
                    start = end
                begins.append(len(pieces))
            parts = len(begins) - 1
            begins += [0] * (_rounded(parts) + 16 - len(begins))
            table = torch.tensor(begins + [n for piece in pieces for n in piece], dtype=torch.int32)
            self.cuts[most, TILE] = table.to(self.ends.device), parts, size
        return self.cuts[most, TILE]

    @property
    def likes(self) -> tuple[Tensor, ...]:
        """Tensors like those that the programs are given: costs, ends, pieces, boards, scratch, out."""
        return self.costs, self.ends, self.table, self.table, self.table, self.ends

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
    update, plan = scores.update, Plan.of(scores)
    rows, d = _rows(update)
    out = torch.empty(rows, k, dtype=torch.int64, device=update.device)
    m = min(d, SAMPLE)
    rank = (m * k - 1) // d
    slack = 0 if m == d else int(ERRORS * math.sqrt(m * (k / d) * (1 - k / d))) + SPARE
    high = max(rank - slack - 1, 0 if rank > CERTAIN and m < d else -1)
    room = (2 * slack + 2) * SKEW / m  # of a program's part, for its list
    at_once = programs(plan, update, scores.power)
    bad = [
        _selected(plan, update[i : i + at_once] if rows > at_once else update, scores.power, k, m,
                  (rank + slack, high), room, out[i : i + at_once] if rows > at_once else out, at_once)
        for i in range(0, rows, at_once)
    ]  # fmt: skip
    if not _capturing(update) and any(found.item() for found in bad):
        raise NotFinite
    return out


def _selected(
    plan: Plan, update: Tensor, power: int, k: int, m: int, ranks: tuple[int, int], room: float, out: Tensor, most: int
) -> Tensor:
    """Select from as many rows as there may be at once; what comes back is not 0 where something is not finite."""
    rows, d = _rows(update)
    pieces, parts, size = plan.pieces(max(most // rows, 1))
    capacity = min(-(-int(size * room + ROOM) // 16) * 16, size)
    each_row = 2 * phases.FIELDS.value + (3 << BITS)
    boards = torch.zeros(rows * each_row, dtype=torch.int32, device=update.device)
    words = 4 * _rounded(m) + 3 * CROWD + 3 * _rounded(parts) + 2 * parts * capacity
    scratch = torch.empty(rows * words, dtype=torch.int32, device=update.device)
    given = (
        update, plan.costs, plan.ends, pieces, boards, scratch, out,
        d, plan.runs, plan.steps, k, m, *ranks, capacity,
    )  # fmt: skip

    how_fused = options(plan)

    def phase(first: Any, last: Any, turn: int = 0) -> None:
        how = {"FROM": first.value, "TO": last.value, "POWER": power, "EACH": plan.each} | sizes(plan)
        launch(ranking.select, (parts, rows), SELECT_WARPS, *given, turn, **how, options=how_fused)

    if FUSED:
        phase(ranking.DRAW, ranking.EMIT)
    else:
        for one in (ranking.DRAW, ranking.RANK, ranking.SURVEY):
            phase(one, one)
        turn, inside = 0, boards[: rows * 2 * phases.FIELDS.value].view(torch.int64).view(rows, -1)
        while turn < 96 // (BITS - 1) + 3:  # then the last bit of any mark is known
            phase(ranking.COUNT, ranking.COUNT, turn)
            phase(ranking.NARROW, ranking.NARROW, turn)
            turn += 1
            left = inside[:, phases.KEPT.value + turn % 2 * 8 + 5]
            if not _capturing(update) and int(left.max()) <= CROWD:
                break
        for one in (ranking.SETTLE, ranking.CHOOSE, ranking.EMIT):
            phase(one, one, turn)
    return boards[2 * phases.ANY.value]


def sizes(plan: Plan) -> dict[str, int]:
    """How much one program looks at, at once."""
    return {"BLOCK": TILE // 2 if plan.each else TILE, "LIST": LIST, "BITS": BITS, "CROWD": CROWD}


def programs(plan: Plan, update: Tensor, power: int) -> int:
    """How many programs of a selection there are, of all rows together."""
    how = {"FROM": ranking.DRAW.value, "TO": ranking.EMIT.value, "POWER": power, "EACH": plan.each} | sizes(plan)
    return at_once(ranking.select, (update, *plan.likes, *[0] * 9), how, options(plan))


def at_once(program: Any, like: Sequence[Any], how: dict[str, Any], options: dict[str, Any]) -> int:
    """How many of a program run at once, as many as can meet: their registers and shared memory say."""
    if not FUSED or not isinstance(program, triton.JITFunction):
        return 1 if FUSED else PROGRAMS
    update = like[0]
    key = program, update.dtype, update.device, *how.values()
    if key not in _AT_ONCE:
        found, _ = compiled(program, SELECT_WARPS, like, how, options)
        found._init_handles()  # as Triton's own tutorials do: only then the registers are known
        device = torch.cuda.get_device_properties(update.device)
        warps = 4 * (16384 // (-(-found.n_regs * 32 // 256) * 256))  # a multiprocessor has four times 2^14 registers
        fit = min(warps, 64) // SELECT_WARPS, 200 * 1024 // (found.metadata.shared + 1024), MOST_AT_ONCE
        most = device.multi_processor_count * max(min(fit), 1)
        _AT_ONCE[key] = most - most % 8  # so that every so many rows begin at aligned memory
    return _AT_ONCE[key]


def options(plan: Plan) -> dict[str, Any]:
    """How the program that does everything is compiled: all must run at once; the more they are, the more they read."""
    return {"launch_cooperative_grid": True, "maxnreg": REGISTERS[plan.each]} if FUSED else {}


PLAIN = {"launch_cooperative_grid": True, "maxnreg": 64, "enable_fp_fusion": False}
_AT_ONCE: dict[Hashable, int] = {}


def _rounded(n: int) -> int:
    return -(-n // 16) * 16


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


def launch(
    program: Any, grid: tuple[int, int], warps: int, *arguments: Any, options: Any = None, **constants: Any
) -> None:
    """Start a program, compiled when it is first asked for with such constants, on such an update and device.

    Triton's own call looks at each argument every time, which takes longer than most of our programs run. Ours differ
    in their numbers only, which are not specialised on, and in the update, whose memory is aligned (`aligned`).
    """
    if not isinstance(program, triton.JITFunction):  # the interpreter's
        program[grid](*arguments, **constants, num_warps=warps)
        return
    found, constant = compiled(program, warps, arguments, constants, options or {})
    found[*grid, 1](*arguments, *constant)


def compiled(
    program: Any, warps: int, arguments: Sequence[Any], constants: dict[str, Any], options: Any
) -> tuple[Any, list[Any]]:
    """A program as it is for such constants, and these in order; kept."""
    first = arguments[0]
    kind = (first.dtype, first.device.index) if isinstance(first, Tensor) else torch.cuda.current_device()
    key = program, warps, kind, *constants.values()
    if key not in _COMPILED:
        found = program.warmup(*arguments, **constants, grid=(1,), num_warps=warps, **options)
        _COMPILED[key] = found, [constants[name] for name in program.arg_names[len(arguments) :]]
    return _COMPILED[key]


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
