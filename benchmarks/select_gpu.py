"""Selection on a GPU: first that it equals the reference, then what it takes beside torch.topk.

    python benchmarks/select_gpu.py --out benchmarks/results/select_gpu.json [--seconds 60] [--repeats 15]

The update and the costs are those of `select.py`. What matters most comes first: the file is written anew after each
case, and none is begun once `--seconds` have passed; what is left of them at the end goes to more comparisons with the
reference. All methods run in turn within each repeat, and each is waited for: the time is what a user waits for a call,
with all that the host does. *As a graph* is the same captured once and replayed. Triton and numba compile in processes
beside, which keep what they made on disk; meanwhile CWMP is compared with the reference, and nothing is measured. That
is part of the seconds, but of no time in the file.

`--variants` measures, last, CWMP with fewer and more registers, threads and entries a tile, and each of its phases.

Where there is no GPU, `TRITON_INTERPRET=1 … --entries 3000 --repeats 1` tries the script, and measures nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # this folder last: it has a select.py

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import joulegrad as jg
import machine
from joulegrad import kernels
from joulegrad.kernels import Scores, afar, dual, frugal, gpu, priced, reference
from joulegrad.lab.models import resnet18

DENSITIES: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
CLIENTS = 10
SHARE = 0.7  # of what the k largest would cost, the joules that both budgets allow
Methods = dict[str, Callable[[], Any]]
Costs = dict[str, jg.Prices]
MORE, EARLY = "more comparisons", ("CWMP, compared", "ten updates, compared")  # while others compile
WARM, PHASES = "--compile", "phases"
VARIANTS = (  # registers a thread, warps, entries a tile, programs a multiprocessor
    (64, 8, 4096, 4), (80, 8, 4096, 3), (128, 8, 4096, 2),
    (64, 16, 8192, 2), (64, 8, 8192, 4), (64, 4, 2048, 8), (64, 8, 2048, 4),
)  # fmt: skip
BEGUN = perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--entries", type=int, help="of a smaller model, to try the script")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = jg.Layout.of(resnet18(), buffers="local")
    if given.entries is not None:
        layout = shrunk(layout, given.entries)
    made = compiling(given.variants) if device.type == "cuda" else []
    kept = Kept(given.out, layout, device, given.repeats)
    reference.best = by_sorting if device.type == "cuda" else reference.best
    for name, part in parts(layout, device, given.repeats):
        if name not in EARLY:
            finish(made)
        if perf_counter() - BEGUN > given.seconds:
            print(f"no time for: {name}", flush=True)
            if name == MORE:
                break
            continue
        for row in part():
            kept.add(row)
            if perf_counter() - BEGUN > given.seconds:
                break
    if given.variants and device.type == "cuda":
        kept.variants = list(varied(layout, device, given.repeats))
        kept.write()
    return kept.end()


def compiling(variants: bool) -> list[subprocess.Popen[bytes]]:
    """Processes that compile, each some of what is needed, and keep it on disk."""
    names = list(PARTS) + [*map(str, range(len(VARIANTS))), PHASES] * variants
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return [subprocess.Popen([sys.executable, __file__, WARM, name], **quiet) for name in names]  # type: ignore[call-overload]


def finish(made: list[subprocess.Popen[bytes]]) -> None:
    """Wait for them, not for ever: what they did not compile is compiled when it is needed."""
    while made:
        one = made.pop()
        try:
            one.wait(max(1.0, 45 - (perf_counter() - BEGUN)))
        except subprocess.TimeoutExpired:
            one.kill()


def small_scores(device: torch.device, power: int, *, each: bool = False) -> Scores:
    """An update of some thousand entries in two runs of cost, or with a cost an entry."""
    layout = jg.Layout.from_shapes({"a": (30_000,), "b": (1000,)})
    update = torch.randn(layout.size, generator=torch.Generator().manual_seed(0)).to(device)
    model = jg.PerEntry(torch.rand(layout.size) + 0.5) if each else jg.Table({"a": 1.0, "b": 5.0})
    return Scores(update, power, jg.Prices.of(model, layout).to(device))


def compile_searches(device: torch.device) -> None:
    """Where both budgets bind, or so nearly."""
    frugal.budgeted = lambda *_: None
    for joules in (60.0, 300.25, 3001.5, 9000.5):
        priced.budgeted(small_scores(device, 1), 3000, joules)
        priced.budgeted(small_scores(device, 1), 31_000, joules)


def compile_afar(device: torch.device) -> None:
    """With a cost an entry."""
    for joules in (60.0, 300.25):
        scores = small_scores(device, 1, each=True)
        dual.solved(afar.There(scores), scores, 3000, joules, kernels.largest, reference.merge)


PARTS: dict[str, Callable[[torch.device], Any]] = {
    "a cost an entry": lambda device: [kernels.largest(small_scores(device, p, each=True), 300) for p in (1, 2)],
    "power 2": lambda device: kernels.largest(small_scores(device, 2), 300),
    "two budgets": lambda device: priced.budgeted(small_scores(device, 1), 3000, 1500.5),
    "two budgets, power 2": lambda device: priced.budgeted(small_scores(device, 2), 3000, 1500.5),
    "both bind": compile_searches,
    "two budgets, a cost an entry": compile_afar,
}


def use(variant: tuple[int, int, int, int]) -> None:
    """Have CWMP compiled so."""
    gpu.REGISTERS[False], gpu.SELECT_WARPS, gpu.TILE, gpu.MOST_AT_ONCE = variant
    gpu._AT_ONCE.clear()
    gpu._COMPILED.clear()


def varied(layout: jg.Layout, device: torch.device, repeats: int) -> Iterator[dict[str, Any]]:
    """CWMP of one update, as a graph and not, and of ten; compiled in one way and another. Last, phase by phase."""
    update = heavy_tailed(layout, np.random.default_rng(0), device)
    prices = jg.Prices.of(jg.LayerType(), layout).to(device)
    ten = torch.stack([update * (1 + 0.1 * i) for i in range(CLIENTS)])
    usual = gpu.REGISTERS[False], gpu.SELECT_WARPS, gpu.TILE, gpu.MOST_AT_ONCE
    for variant in VARIANTS:
        use(variant)
        row: dict[str, Any] = {"variant": variant}
        for density in (DENSITIES[0], DENSITIES[-1]):
            k = int(density * len(update))
            one, many = Scores(update, 1, prices), Scores(ten, 1, prices)
            calls: Methods = {"CWMP": partial(kernels.largest, one, k), "10 updates": partial(kernels.largest, many, k)}
            calls["CWMP, as a graph"] = captured(calls["CWMP"])
            for found in measured({}, calls, repeats)["rows"]:
                row[f"{found['method']}, {density:.0%}"] = round(1e6 * found["seconds"])
        row["programs"] = list(gpu._AT_ONCE.values())
        print(row, flush=True)
        yield row
    use(usual)
    gpu.FUSED, gpu.PROGRAMS, usual_launch, taken = False, 528, gpu.launch, list[tuple[Any, Any]]()

    def timed(*given: Any, **how: Any) -> None:
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        usual_launch(*given, **how)
        pair[1].record()
        taken.append(pair)

    gpu.launch = timed
    for density in (DENSITIES[0], DENSITIES[-1]):
        for _ in range(3):
            taken.clear()
            kernels.largest(Scores(update, 1, prices), int(density * len(update)))
        wait()
        row = {"phases, microseconds": [round(1000 * begun.elapsed_time(ended), 1) for begun, ended in taken]}
        print(density, row, flush=True)
        yield row | {"density": density}
    gpu.FUSED, gpu.launch = True, usual_launch


class Kept:
    """The result file, whole at any moment."""

    def __init__(self, out: Path, layout: jg.Layout, device: torch.device, repeats: int) -> None:
        self.out, self.rows, self.checks = out, list[dict[str, Any]](), list[dict[str, Any]]()
        self.variants = list[dict[str, Any]]()
        import triton

        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "none: Triton's interpreter"
        self.head = machine.header("benchmarks/select_gpu.py", sys.argv[1:]) | {
            "gpu": name,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "entries": layout.size,
            "repeats": repeats,
        }
        out.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a comparison or a case's times, and say so."""
        at = f"{perf_counter() - BEGUN:5.1f} s"
        if "checked" in row:
            self.checks.append(row)
            rest = {name: found for name, found in row.items() if name not in ("checked", "cases", "different")}
            print(at, f"{row['checked']}: {row['different']} of {row['cases']} differ", rest or "", flush=True)
        else:
            self.rows += row["rows"]
            times = {r["method"]: f"{1e6 * r['seconds']:.0f} µs" for r in row["rows"]}
            print(at, row["rows"][0]["case"], times, flush=True)
        self.write()

    def write(self) -> None:
        """All that there is."""
        head = self.head | {"seconds_in_all": round(perf_counter() - BEGUN, 1)}
        whole = {"header": head, "checks": self.checks, "rows": self.rows}
        whole |= {"variants": self.variants} if self.variants else {}
        self.out.write_text(json.dumps(whole, indent=1) + "\n")

    def end(self) -> int:
        """1 where anything differed."""
        cases, different = (sum(check[name] for check in self.checks) for name in ("cases", "different"))
        print(f"{cases} comparisons with the reference, {different} differ", flush=True)
        return int(different > 0)


def parts(
    layout: jg.Layout, device: torch.device, repeats: int
) -> Iterator[tuple[str, Callable[[], Iterator[dict[str, Any]]]]]:
    """All that is done, what matters most first."""
    rng = np.random.default_rng(0)
    update = heavy_tailed(layout, rng, device)
    costs = {"layers": jg.Prices.of(jg.LayerType(), layout).to(device)}
    each = jg.PerEntry(torch.from_numpy(rng.lognormal(0, 0.5, layout.size)))
    hostile = adversarial(update, rng)
    measure = partial(measured, repeats=repeats)

    yield "CWMP, compared", lambda: compared_largest("layers, power 1", layout, costs["layers"], update, hostile, 200)
    yield "ten updates, compared", lambda: iter([ten_compared(update, costs["layers"])])
    yield "CWMP", lambda: (measure(*case) for case in selection(update, costs["layers"]))
    yield "BudgetedCWMP, compared", lambda: iter([large_budgets(update, costs["layers"])])
    yield "BudgetedCWMP", lambda: (measure(*case) for case in budgeted(update, costs["layers"]))
    yield "ten updates", lambda: ten(update, costs["layers"], measure)
    yield "updates that mislead", lambda: (measure(*case) for case in misleading(hostile, costs["layers"]))
    yield "BudgetedCWMP, small ones compared", lambda: iter([small_budgets(device, 60)])
    costs["entries"] = jg.Prices.of(each, layout).to(device)
    yield (
        "a cost an entry, compared",
        lambda: compared_largest("a cost an entry", layout, costs["entries"], update, hostile, 100),
    )
    yield "a cost an entry", lambda: (measure(*case) for case in an_entry(update, costs))
    for seed in count(1):
        yield MORE, partial(more, device, seed)


def shrunk(layout: jg.Layout, entries: int) -> jg.Layout:
    """A layout of the same names with about so many entries in all."""
    share = entries / layout.size
    shapes = {s.name: (max(1, int(share * s.size)),) for s in layout.segments}
    return jg.Layout.from_shapes(shapes, {s.name: s.kind for s in layout.segments})


def by_sorting(s: Tensor, k: int) -> Tensor:
    """`reference.best`, for numbers on a GPU: there torch.kthvalue takes seconds, a stable sort takes milliseconds."""
    return s.sort(descending=True, stable=True).indices[:k].sort().values


def heavy_tailed(layout: jg.Layout, rng: np.random.Generator, device: torch.device) -> Tensor:
    """Student's t with three degrees of freedom, and a lognormal scale a layer."""
    sizes = [s.size for s in layout.segments]
    scale = np.repeat(rng.lognormal(0, 1, len(sizes)), sizes)
    return torch.tensor(rng.standard_t(3, layout.size) * scale, dtype=torch.float32, device=device)


def adversarial(update: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
    """Updates on which a sample or a pivot may do badly."""
    d = len(update)
    huge = update.clone()
    huge[: d // 5] *= 1e6
    return {
        "all equal": torch.ones_like(update),
        "sorted": update.sort().values,
        "one huge layer": huge,
        "90 % zeros": update * torch.from_numpy(rng.random(d) < 0.1).to(update.device),
        "two values": torch.from_numpy(np.where(rng.random(d) < 0.5, 1.0, 2.0)).float().to(update.device),
    }


class Compared:
    """How many cases were compared, and which differ."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.different, self.note = name, 0, 0, ""

    def largest(self, name: str, scores: Scores, k: int) -> None:
        """The k largest, also where the result must fill a graph's memory: of one update or several."""
        found = kernels.largest(scores, k)
        updates = scores.update if scores.update.dim() == 2 else scores.update[None]
        expected = torch.stack([reference.largest(scores._replace(update=one), k) for one in updates])
        self.note_down(name, k, torch.equal(found.view_as(expected), expected))

    def budgeted(self, name: str, scores: Scores, k: int, joules: float) -> None:
        """Both budgets: the indices, and the certificate to the last bit."""
        found, expected = kernels.budgeted(scores, k, joules), reference.budgeted(scores, k, joules)
        self.note_down(name, k, torch.equal(found.indices, expected.indices) and found[1:] == expected[1:])

    def note_down(self, name: str, k: int, same: bool) -> None:
        """Count a case, and keep the name of the first that differs."""
        self.cases += 1
        self.different += not same
        if not same:
            self.note = self.note or f"first: {name}, k = {k}"

    def row(self) -> dict[str, Any]:
        """For the file."""
        note = {"note": self.note} if self.note else {}
        return {"checked": self.name, "cases": self.cases, "different": self.different, **note}


def compared_largest(
    what: str, layout: jg.Layout, prices: jg.Prices, update: Tensor, hostile: dict[str, Tensor], n: int
) -> Iterator[dict[str, Any]]:
    """All of an update, and what misleads; then many small updates of two runs of cost."""
    compared = Compared(f"CWMP, {what}, {layout.size:,} entries")
    for name, whole in {"update": update, **hostile}.items():
        for density in (0.01, 0.2):
            compared.largest(name, Scores(whole, 1, prices), int(density * len(whole)))
    yield compared.row()
    yield small(f"CWMP, {what}, small updates", update.device, n, 0, (1,), each=not prices.piecewise)


def small(
    what: str,
    device: torch.device,
    n: int,
    seed: int,
    powers: tuple[int, ...],
    *,
    each: bool = False,
    both: bool = False,
) -> dict[str, Any]:
    """Updates of a few to many thousand entries, of every temper, in two runs of cost, or with a cost an entry."""
    rng, compared = np.random.default_rng(seed), Compared(what)
    for i in range(n if device.type == "cuda" else min(n, 3)):
        sizes = rng.integers(1, int(rng.choice([20, 1000, 60_000])) if device.type == "cuda" else 300, 2)
        layout = jg.Layout.from_shapes({name: (int(size),) for name, size in zip("ab", sizes, strict=True)})
        name, values = tempered(i, rng, layout.size)
        one = jg.Table({"a": 1.0, "b": float(rng.choice([5.0, rng.lognormal(0, 3)]))})
        model = jg.PerEntry(torch.from_numpy(rng.lognormal(0, 1, layout.size))) if each else one
        scores = Scores(torch.tensor(values, dtype=torch.float32, device=device), powers[i % len(powers)])
        scores = scores._replace(prices=jg.Prices.of(model, layout).to(device))
        k = max(1, int(layout.size * rng.choice([0.0, 0.01, 0.2, rng.random()])))
        if both:
            energy = scores.prices.total(reference.largest(scores.worth, k)) if scores.prices else 0.0
            compared.budgeted(name, scores, k, energy * float(rng.choice([rng.random(), 0.7, 1.1])))
        else:
            compared.largest(name, scores, k)
    return compared.row()


def tempered(i: int, rng: np.random.Generator, d: int) -> tuple[str, Any]:
    """Numbers of one kind or another."""
    kinds: dict[str, Callable[[], Any]] = {
        "heavy": lambda: rng.standard_t(2, d),
        "normal": lambda: rng.standard_normal(d),
        "small integers": lambda: rng.integers(-3, 4, d),
        "all equal": lambda: np.full(d, rng.lognormal()),
        "nine tenths zero": lambda: rng.standard_normal(d) * (rng.random(d) < 0.1),
        "sorted": lambda: np.sort(rng.standard_normal(d)),
        "denormal": lambda: rng.standard_normal(d) * 1e-42,
        "huge": lambda: np.clip(rng.standard_normal(d) * 5e37, -3e38, 3e38),
        "zero": lambda: np.zeros(d),
    }
    name = list(kinds)[i % len(kinds)]
    return name, kinds[name]()


def large_budgets(update: Tensor, prices: jg.Prices) -> dict[str, Any]:
    """Two of the very cases that are measured."""
    compared = Compared(f"BudgetedCWMP, {len(update):,} entries")
    with Answers() as answers:
        for density in (0.01, 0.2):
            k, scores = int(density * len(update)), Scores(update, 1, prices)
            compared.budgeted("update", scores, k, SHARE * prices.total(kernels.largest(scores.worth, k)))
    return compared.row() | answers.row


def small_budgets(device: torch.device, n: int) -> dict[str, Any]:
    """Small updates, with all that is left to the search on the CPU."""
    with Answers() as answers:
        row = small("BudgetedCWMP, small updates", device, n, 5, (1,), both=True)
    return row | answers.row


class Answers:
    """How often `priced.budgeted` has an answer, and how often without a search."""

    def __enter__(self) -> Answers:
        self.found, self.at_once, self.usual, self.frugal = 0, 0, priced.budgeted, frugal.budgeted
        priced.budgeted = self.asked
        setattr(frugal, "budgeted", self.asked_first)  # noqa: B010
        return self

    def asked(self, scores: Scores, k: int, joules: float) -> reference.Budgeted | None:
        """Its answer, counted."""
        found = self.usual(scores, k, joules)
        self.found += found is not None
        return found

    def asked_first(self, *given: Any) -> reference.Budgeted | None:
        """The same of `frugal.budgeted`."""
        found = self.frugal(*given)
        self.at_once += found is not None
        return found

    @property
    def row(self) -> dict[str, int]:
        """For the file."""
        return {"answered_by_the_kernels": self.found, "without_a_search": self.at_once}

    def __exit__(self, *_: object) -> None:
        priced.budgeted, frugal.budgeted = self.usual, self.frugal


def more(device: torch.device, seed: int) -> Iterator[dict[str, Any]]:
    """What is left of the time."""
    n = 200 if device.type == "cuda" else 2
    yield small(f"CWMP, power 2, small updates, {seed}", device, n, seed, (2,))
    yield small(f"CWMP, small updates, {seed}", device, 5 * n, seed, (1, 2))
    yield small(f"CWMP, a cost an entry, small updates, {seed}", device, n, seed, (1, 2), each=True)
    yield small(f"BudgetedCWMP, small updates, {seed}", device, n // 4 + 1, seed, (1, 2), both=True)


def measured(case: dict[str, Any], methods: Methods, repeats: int) -> dict[str, Any]:
    """Median, least and largest seconds of each method, after two calls that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in (*methods.values(), *methods.values()):
        method()
    for _ in range(repeats):
        for name, method in methods.items():
            wait()
            start = perf_counter()
            method()
            wait()
            seconds[name].append(perf_counter() - start)
    return {
        "rows": [
            {"case": case, "method": name, "seconds": median(taken), "least": min(taken), "largest": max(taken)}
            for name, taken in seconds.items()
        ]
    }


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Case(NamedTuple):
    """What is measured at once."""

    case: dict[str, Any]
    methods: Methods


def spelled_out(prices: jg.Prices) -> Tensor:
    """What torch.topk needs to be given: a cost an entry, in float32."""
    return prices.at(torch.arange(prices.layout.size, device=prices.joules.device)).float()


def selection(update: Tensor, prices: jg.Prices) -> Iterator[Case]:
    scores, costs = Scores(update, 1, prices), spelled_out(prices)
    for density in DENSITIES:
        k = int(density * len(update))
        operator = jg.CWMP(density=density, cost=jg.LayerType())
        _, state = operator(update, operator.init(prices.layout))
        ours, peer = partial(kernels.largest, scores, k), partial(topk_and_sort, update, costs, k)
        methods: Methods = {
            "CWMP": ours,
            "CWMP operator": partial(operator, update, state),
            "torch.topk": partial(topk, update, costs, k),
            "torch.topk and sort": peer,
            "one reading": update.sum,
        }
        if update.is_cuda:
            methods |= {
                "CWMP, as a graph": captured(ours),
                "torch.topk and sort, as a graph": captured(peer),
                "one reading, as a graph": captured(update.sum),
            }
        yield Case({"input": "update", "density": density}, methods)


def topk(update: Tensor, costs: Tensor, k: int) -> Tensor:
    return torch.topk(update.abs() / costs, k, sorted=False).indices


def topk_and_sort(update: Tensor, costs: Tensor, k: int) -> Any:
    return topk(update, costs, k).sort()


def budgeted(update: Tensor, prices: jg.Prices) -> Iterator[Case]:
    scores = Scores(update, 1, prices)
    for density in DENSITIES:
        k = int(density * len(update))
        joules = SHARE * prices.total(kernels.largest(scores.worth, k))
        methods: Methods = {
            "CWMP": partial(kernels.largest, scores, k),
            "BudgetedCWMP": partial(kernels.budgeted, scores, k, joules),
        }
        yield Case({"input": "two budgets", "density": density}, methods)


def ten(update: Tensor, prices: jg.Prices, measure: Callable[..., dict[str, Any]]) -> Iterator[dict[str, Any]]:
    updates = several(update)
    scores, costs = Scores(updates, 1, prices), spelled_out(prices)
    for density in DENSITIES:
        k = int(density * len(update))
        methods: Methods = {
            "CWMP": partial(kernels.largest, scores, k),
            "torch.topk, one by one": partial(one_by_one, updates, costs, k),
            "one reading": updates.sum,
        }
        yield measure({"input": f"{CLIENTS} updates", "density": density}, methods)


def several(update: Tensor) -> Tensor:
    """A client's update a row."""
    return torch.stack([update * (1 + 0.1 * i) for i in range(CLIENTS)]).roll(7, 1)


def ten_compared(update: Tensor, prices: jg.Prices) -> dict[str, Any]:
    """All rows at once."""
    compared = Compared(f"CWMP, {CLIENTS} × {len(update):,} entries")
    for density in (DENSITIES[0], DENSITIES[-1]):
        compared.largest("updates", Scores(several(update), 1, prices), int(density * len(update)))
    return compared.row()


def one_by_one(updates: Tensor, costs: Tensor, k: int) -> list[Tensor]:
    return [topk(update, costs, k) for update in updates]


def misleading(hostile: dict[str, Tensor], prices: jg.Prices) -> Iterator[Case]:
    costs = spelled_out(prices)
    for name, update in hostile.items():
        for density in (DENSITIES[0], DENSITIES[-1]):
            k, scores = int(density * len(update)), Scores(update, 1, prices)
            methods: Methods = {
                "CWMP": partial(kernels.largest, scores, k),
                "torch.topk": partial(topk, update, costs, k),
            }
            yield Case({"input": name, "density": density}, methods)


def an_entry(update: Tensor, costs: Costs) -> Iterator[Case]:
    for density in (DENSITIES[0], DENSITIES[-1]):
        k = int(density * len(update))
        methods: Methods = {
            "CWMP": partial(kernels.largest, Scores(update, 1, costs["layers"]), k),
            "CWMP, a cost an entry": partial(kernels.largest, Scores(update, 1, costs["entries"]), k),
        }
        scores = Scores(update, 1, costs["entries"])
        joules = SHARE * costs["entries"].total(kernels.largest(scores.worth, k))
        methods["BudgetedCWMP, a cost an entry"] = partial(kernels.budgeted, scores, k, joules)
        yield Case({"input": "a cost an entry", "density": density}, methods)


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    """The same work as a CUDA graph, replayed."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    return graph.replay


if __name__ == "__main__":
    if (
        not torch.cuda.is_available()
    ):  # in the interpreter: the kernels, on the CPU, with less of all that is slow there
        DENSITIES, CLIENTS = (0.01, 0.2), 2
        gpu.LIST_PROGRAMS, gpu.SAMPLE, priced.SAMPLE, priced.TABLE = 2, 64, 512, 1024
        gpu.PROGRAMS, gpu.TILE, gpu.BITS = 2, 256, 8
        kernels.chosen = lambda device, dtype=torch.float32: gpu if dtype != torch.float64 else reference
    if sys.argv[1:2] == [WARM]:
        if sys.argv[2] in PARTS:
            PARTS[sys.argv[2]](torch.device("cuda"))
        else:
            gpu.FUSED = sys.argv[2] != PHASES
            use(VARIANTS[int(sys.argv[2])] if gpu.FUSED else VARIANTS[0])
            kernels.largest(small_scores(torch.device("cuda"), 1), 300)
    else:
        sys.exit(main())
