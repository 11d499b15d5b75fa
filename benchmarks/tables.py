"""Write the numbers of the docs from the result files, or check that they are what the files give.

    python benchmarks/tables.py             # rewrite
    python benchmarks/tables.py --check     # exit 1 if a page is out of date

A page holds each table or sentence between `<!-- begin: MARKER -->` and `<!-- end -->`; `PAGES` says which function
gives it; tables of profiles, and of what an entry costs, come from the package itself, those of docs/results from
`campaign_tables.py`. Pictures are `plots.py`'s, which needs matplotlib; each names the result file that it was drawn
from, and here that is checked.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import campaign
import campaign_tables
import simulator_tables
from joulegrad import Device, Layout, profiles
from joulegrad.lab.models import build
from joulegrad.lab.report import papers

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODELS = {"resnet18": "ResNet-18", "vgg11": "VGG-11"}
PEERS = ("int32", "int64", "bitmap, zlib 6", "gaps, zlib 6", "gaps, zstd 3")
COMPRESSED = PEERS[2:]

END = "<!-- end -->"

Row = dict[str, Any]
Cases = dict[tuple[str, str, float], dict[str, Row]]  # model, rule and density -> method -> row


def wire() -> str:
    """Sizes, encoding times and decoding times of `wire.json`."""
    found = results("wire.json")
    head = found["header"]
    cases = by_support(found["rows"])
    software = ", ".join(f"{name} {head[name]}" for name in ("torch", "numpy", "numba", "zlib", "zstandard"))
    start, end = head["load_average_at_start"][0], head["load_average_at_end"][0]
    parts = [
        f"Measured {head['date'][:10]} on {head['cpu']}, {head['threads']} thread of {head['cores']} cores, load "
        f"average {start} before and {end} after; Python {head['python']}, {software}; medians of {head['repeats']} "
        f"repeats, seed {head['seed']}.",
        "**Bits an entry for the indices alone** (all bytes that are not values, headers included):",
        table(["Σ n H(k/n)", "joulegrad", *PEERS], cases, index_bits),
        "**The whole update in % of dense float32** (4 d bytes; float32 values unless another width is named):",
        table(["joulegrad", "joulegrad 8 bit", "joulegrad 1 bit", *PEERS], cases, share_of_dense),
    ]
    columns = ["joulegrad", "joulegrad 1 bit", "int32", *COMPRESSED, *(f"{name}, values raw" for name in COMPRESSED)]
    for way in ("encode", "decode"):
        parts += [
            f"**Milliseconds to {way}** and, in brackets, as a multiple of joulegrad's with float32 values:",
            table(columns, cases, partial(times, way=way)),
        ]
    return "\n\n".join(parts)


def by_support(rows: list[Row]) -> Cases:
    """The rows of `wire.json` by what was sent."""
    cases: Cases = {}
    for row in rows:
        if row["rule"] == "PerLayer(CWMP)":
            continue  # one price a layer: it is PerLayer(TopK), line for line
        case = cases.setdefault((row["model"], row["rule"], row["density"]), {})
        name = row["method"] if row["method"] != "joulegrad" else f"joulegrad {row['values']}"
        case[name] = row
    return cases


def index_bits(case: dict[str, Row]) -> list[str]:
    """Bits an entry: the entropy were each layer's support drawn at random, ours, each peer's."""
    ours = case["joulegrad float32"]
    bits = [8 * ours["entropy_bytes"] / ours["entries"]]
    bits += [8 * row["index_bytes"] / row["entries"] for row in (ours, *(case[p] for p in PEERS))]
    return [f"{b:.2f}" for b in bits]


def share_of_dense(case: dict[str, Row]) -> list[str]:
    """Whole bytes as a share of the dense update's."""
    names = [f"joulegrad {values}" for values in ("float32", "8 bit", "1 bit")]
    return [f"{case[name]['whole_bytes'] / (4 * case[name]['size']):.3%}" for name in (*names, *PEERS)]


def times(case: dict[str, Row], way: str) -> list[str]:
    """Milliseconds one way: ours, plain indices, the compressed ones, and those with only the indices compressed."""
    ours = case["joulegrad float32"][f"{way}_seconds"]
    plain = case["int32"]
    raw_values = plain[f"{way}_seconds"] - plain[f"{way}_index_seconds"]
    theirs = [case[name][f"{way}_seconds"] for name in ("joulegrad 1 bit", "int32", *COMPRESSED)]
    theirs += [case[name][f"{way}_index_seconds"] + raw_values for name in COMPRESSED]
    return [milliseconds(ours), *(f"{milliseconds(t)} ({multiple(t / ours)})" for t in theirs)]


def multiple(ratio: float) -> str:
    """Two digits, or whole ones where there are more."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def milliseconds(seconds: float) -> str:
    """Three digits, or whole milliseconds where there are more."""
    found = 1000 * seconds
    return f"{found:.0f}" if found >= 100 else f"{found:.3g}"


def table(columns: list[str], cases: Cases, cells: Callable[[dict[str, Row]], list[str]]) -> str:
    """A Markdown table of one line a support."""
    lines = [f"| support | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for (model, rule, density), case in cases.items():
        lines.append(f"| {MODELS[model]}, {rule}, {100 * density:g} % | {' | '.join(cells(case))} |")
    return "\n".join(lines)


def select() -> str:
    """Times of `select.json`, each beside the physical floor: 4 bytes an entry at the measured reading speed."""
    found = results("select.json")
    head, cases = found["header"], by_case(found["rows"])
    reading = one_reading(cases)
    software = ", ".join(f"{name} {head[name]}" for name in ("torch", "numpy", "numba"))
    start, end = head["load_average_at_start"][0], head["load_average_at_end"][0]
    parts = [
        f"Measured {head['date'][:10]} on {head['cpu']}, {head['threads']} threads of {head['cores']} cores, load "
        f"average {start} before and {end} after; Python {head['python']}, {software}; medians of {head['repeats']} "
        f"interleaved repeats, seed {head['seed']}; {head['entries']:,} entries. One reading of them took "
        f"{milliseconds(reading)} ms ({4e-9 * head['entries'] / reading:.0f} GB/s): the floor.",
        "**Selection, milliseconds**, and in brackets how many times as long the peer takes as CWMP:",
        select_table(cases),
        "**A client's whole step, milliseconds**, and in brackets as a multiple of the selection alone:",
        multiples(cases, "client step", "CWMP", {"one reading": reading}),
        "**Updates that mislead samples and pivots, milliseconds**, and in brackets as a multiple of CWMP:",
        hostile(cases, reading),
        "**The server: a hundred clients at 1 %, milliseconds**, and in brackets as a multiple of our mean:",
        multiples(cases, "server", "mean of 100 updates", server_floors(head["entries"], reading)),
    ]
    return "\n\n".join(parts)


def on_a_gpu() -> str:
    """Times of `select_gpu.json` beside the floor, and what was compared; or that nothing was measured."""
    if not (RESULTS / "select_gpu.json").exists():
        return (
            "Not measured: there is no `benchmarks/results/select_gpu.json` in this checkout. On a machine with a GPU "
            "of NVIDIA's, `python benchmarks/select_gpu.py --out benchmarks/results/select_gpu.json` measures, and "
            "`python benchmarks/tables.py` puts the tables here."
        )
    found = results("select_gpu.json")
    head, cases = found["header"], by_case(found["rows"])
    reading = gpu_reading(cases)
    compared, different = (sum(check[name] for check in found["checks"]) for name in ("cases", "different"))
    software = ", ".join(f"{name} {head[name]}" for name in ("torch", "triton", "numba"))
    machine = f"{head['gpu']}; {head['cpu']}, {head['cores']} cores; Python {head['python']}, {software}"
    parts = [
        f"Measured {head['date'][:10]} on {machine}, CUDA {head['cuda']}; medians of {head['repeats']} interleaved "
        f"repeats; {head['entries']:,} entries. The kernels were compared with the reference {compared:,} times, and "
        f"differed {different} times."
    ]
    if reading is not None:
        parts.append(
            f"One reading of the update took {microseconds(reading)} µs "
            f"({4e-9 * head['entries'] / reading:,.0f} GB/s): the floor."
        )
    found_aims = [aim.line() for aim in gpu_aims(cases) if aim.found]
    parts += ["\n".join([*AIMS, *found_aims])] if found_aims else []
    parts += ["**Microseconds**, and in brackets how many times as long as CWMP:", gpu_table(cases)]
    return "\n\n".join(parts)


def gpu_aims(cases: Cells) -> Iterator[Aim]:
    """What was asked of the GPU, where it was measured."""

    def ratios(name: str, of: str, to: str) -> dict[str, float]:
        among = {d: case for (input_, d), case in cases.items() if input_ == name and {of, to} <= case.keys()}
        return {f"{100 * d:g} %": case[of]["seconds"] / case[to]["seconds"] for d, case in among.items()}

    for how in ("", ", as a graph"):
        found = ratios("update", f"torch.topk and sort{how}", f"CWMP{how}")
        yield Aim(f"torch.topk and a sort over CWMP{how}", 3, True, found)
    yield Aim("BudgetedCWMP over CWMP", 3, False, ratios("two budgets", "BudgetedCWMP", "CWMP"))
    yield Aim(
        "ten torch.topk over CWMP of ten updates", 5, True, ratios("10 updates", "torch.topk, one by one", "CWMP")
    )


def gpu_reading(cases: Cells) -> float | None:
    """Seconds to read each entry once, without what starting it takes where a graph says so."""
    rows = [case for (name, _), case in cases.items() if name == "update"]
    for method in ("one reading, as a graph", "one reading"):
        if any(method in case for case in rows):
            return float(median(case[method]["seconds"] for case in rows if method in case))
    return None


def gpu_table(cases: Cells) -> str:
    """A line for each method on each input, a column a density; what was not measured is a dash."""
    densities = sorted({density for _, density in cases})
    lines = [f"| | {' | '.join(f'{100 * d:g} %' for d in densities)} |", "|---|" + "---:|" * len(densities)]
    methods = dict.fromkeys((name, method) for (name, _), case in cases.items() for method in case)
    for name, method in methods:
        cells = []
        for density in densities:
            case = cases.get((name, density), {})
            if method not in case:
                cells.append("—")
                continue
            taken = case[method]["seconds"]
            ratio = "" if method == "CWMP" else f" ({multiple(taken / case['CWMP']['seconds'])})"
            cells.append(f"{microseconds(taken)}{ratio}")
        lines.append(f"| {name}: {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def microseconds(seconds: float) -> str:
    """Three digits, or whole ones where there are more."""
    found = 1e6 * seconds
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}"


Cells = dict[tuple[str, float], dict[str, Row]]  # input and density -> method -> row


def by_case(rows: list[Row]) -> Cells:
    """The rows of `select.json` by what they were measured on."""
    cases: Cells = {}
    for row in rows:
        cases.setdefault((row["case"]["input"], row["case"]["density"]), {})[row["method"]] = row
    return cases


def select_table(cases: Cells) -> str:
    densities = [density for name, density in cases if name == "update"]
    lines = [f"| | {' | '.join(f'{100 * d:g} %' for d in densities)} |", "|---|" + "---:|" * len(densities)]
    for method in cases["update", densities[0]]:
        cells = []
        for density in densities:
            case = cases["update", density]
            ratio = case[method]["seconds"] / case["CWMP"]["seconds"]
            cells.append(with_ratio(case[method]["seconds"], ratio, method != "CWMP"))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def one_reading(cases: Cells) -> float:
    """Seconds to read every entry of an update once: the median over the densities, which do not matter to it."""
    return float(median(case["one reading"]["seconds"] for (name, _), case in cases.items() if name == "update"))


def server_floors(size: int, reading: float) -> dict[str, float]:
    """Seconds to read all that the server is given, and to write the mean, at the speed of one reading.

    A sparse entry has 12 bytes in memory, its index 8 and its value 4.
    """
    a_byte = reading / (4 * size)
    sparse, dense = 100 * 12 * int(0.01 * size), 100 * 4 * size
    return {
        "one reading of all sparse updates": (sparse + 4 * size) * a_byte,
        "one reading of all dense vectors": (dense + 4 * size) * a_byte,
    }


def multiples(cases: Cells, name: str, unit: str, floors: dict[str, float]) -> str:
    densities = [density for found, density in cases if found == name]
    lines = [f"| | {' | '.join(f'{100 * d:g} %' for d in densities)} |", "|---|" + "---:|" * len(densities)]
    for method in cases[name, densities[0]]:
        taken = [(cases[name, d][method]["seconds"], cases[name, d][unit]["seconds"]) for d in densities]
        lines.append(f"| {method} | {' | '.join(with_ratio(t, t / u, method != unit) for t, u in taken)} |")
    for floor, seconds in floors.items():
        units = [cases[name, d][unit]["seconds"] for d in densities]
        lines.append(f"| {floor} | {' | '.join(with_ratio(seconds, seconds / u, True) for u in units)} |")
    return "\n".join(lines)


def hostile(cases: Cells, reading: float) -> str:
    lines = ["| | CWMP | torch.topk | np.argpartition | one reading |", "|---|---:|---:|---:|---:|"]
    for (name, density), case in cases.items():
        if "BudgetedCWMP" in case or name in ("client step", "server"):
            continue
        ours = case["CWMP"]["seconds"]
        cells = [with_ratio(row["seconds"], row["seconds"] / ours, method != "CWMP") for method, row in case.items()]
        cells.append(with_ratio(reading, reading / ours, True))
        lines.append(f"| {name}, {100 * density:g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_ratio(seconds: float, ratio: float, shown: bool) -> str:
    return f"{milliseconds(seconds)} ({multiple(ratio)})" if shown else milliseconds(seconds)


AIMS = ("| time over time | asked | found | missed |", "|---|---|---|---|")


class Aim(NamedTuple):
    """What a time divided by another should be, and what it is, case by case."""

    what: str
    limit: float
    at_least: bool
    found: dict[str, float]

    def missed(self) -> dict[str, float]:
        """The cases in which it is not as asked."""
        return {case: r for case, r in self.found.items() if (r < self.limit if self.at_least else r > self.limit)}

    def line(self) -> str:
        """Its row of the table."""
        missed = [f"{r:.3g} at {case}" for case, r in self.missed().items()]
        asked = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        return f"| {self.what} | {asked} | {between(self.found.values())} | {'; '.join(missed) or 'none'} |"


def aims() -> str:
    """What was asked of the CPU, as ratios of times in `select.json`, and where it is missed."""
    return "\n".join([*AIMS, *(aim.line() for aim in every_aim(by_case(results("select.json")["rows"])))])


def every_aim(cases: Cells) -> Iterator[Aim]:
    updates = {density: case for (name, density), case in cases.items() if name == "update"}
    steps = {density: case for (name, density), case in cases.items() if name == "client step"}

    def ratios(of: str, to: str, among: dict[float, dict[str, Row]]) -> dict[str, float]:
        return {f"{100 * d:g} %": case[of]["seconds"] / case[to]["seconds"] for d, case in among.items()}

    sparse = {density: case for density, case in updates.items() if density < 0.2}
    dense = {density: case for density, case in updates.items() if density >= 0.2}
    for peer, below, above in (("torch.topk", 10, 7), ("np.argpartition", 5, 4)):
        yield Aim(f"{peer} over CWMP, below 20 %", below, True, ratios(peer, "CWMP", sparse))
        yield Aim(f"{peer} over CWMP, 20 %", above, True, ratios(peer, "CWMP", dense))
    hostile = {
        f"{name}, {100 * d:g} %": case["torch.topk"]["seconds"] / case["CWMP"]["seconds"]
        for (name, d), case in cases.items()
        if name not in ("update", "client step", "server")
    }
    yield Aim("torch.topk over CWMP, updates that mislead", 1, True, hostile)
    each = "a cost an entry"
    yield Aim(f"CWMP with {each} over CWMP", 2, False, ratios(f"CWMP, {each}", "CWMP", updates))
    yield Aim("BudgetedCWMP over CWMP", 4, False, ratios("BudgetedCWMP", "CWMP", updates))
    with_each = ratios(f"BudgetedCWMP, {each}", f"CWMP, {each}", updates)
    yield Aim(f"BudgetedCWMP over CWMP, both with {each}", 4, False, with_each)
    for bits in ("1 bit", "4 bits"):
        step = f"ErrorFeedback(Quantized(CWMP)), {bits}"
        yield Aim(f"{step}, over CWMP", 3, False, ratios(step, "CWMP", steps))
    server = {density: case for (name, density), case in cases.items() if name == "server"}
    payloads = ratios("dense, torch.stack and mean", "mean of 100 payloads", server)
    yield Aim("torch.stack and mean of 100 dense vectors over the mean of 100 payloads", 10, True, payloads)


def in_short() -> str:
    """What a reader of the README wants to know of `select.json` and `wire.json`."""
    found = results("select.json")
    head, cases = found["header"], by_case(found["rows"])
    updates = [case for (name, _), case in cases.items() if name == "update"]
    ours = [case["CWMP"]["seconds"] for case in updates]

    def against(peer: str) -> str:
        return between([case[peer]["seconds"] / case["CWMP"]["seconds"] for case in updates])

    real = [
        case
        for case in by_support(results("wire.json")["rows"]).values()
        if case["joulegrad float32"]["rule"] != "random"
    ]
    bits = [8 * case["joulegrad float32"]["index_bytes"] / case["joulegrad float32"]["entries"] for case in real]
    small = [case["joulegrad float32"] for case in real if case["joulegrad float32"]["density"] == 0.01]
    encode, decode = ([1000 * row[f"{way}_seconds"] for row in small] for way in ("encode", "decode"))
    densities = [100 * density for name, density in cases if name == "update"]
    return (
        f"On {head['threads']} threads of an {head['cpu']}, CWMP chooses {between(densities)} % of ResNet-18's "
        f"{head['entries']:,} entries in {between([1000 * t for t in ours])} ms; a bare reading of them takes "
        f"{milliseconds(one_reading(cases))} ms. `torch.topk(|g| / c)` takes {against('torch.topk')} times as long as "
        f"CWMP, `np.argpartition` {against('np.argpartition')} times, `BudgetedCWMP` {against('BudgetedCWMP')} times. "
        f"An index of a real update takes {between(bits)} bits on the wire, and what is chosen at 1 % is encoded in "
        f"{between(encode)} ms and decoded in {between(decode)} ms on one thread."
    )


def demo() -> str:
    """The five ways of `joulegrad demo`: means over the seeds of `demo.json`, and how the accuracies spread."""
    found = results("demo.json")
    ways: dict[str, list[Row]] = {}
    for row in found["rows"]:
        ways.setdefault(row["sends"], []).append(row)
    dense = mean(row["megabytes"] for row in ways["everything"])
    lines = ["| sends | accuracy | MB sent | energy, 10⁶ units | × fewer bytes |", "|---|---:|---:|---:|---:|"]
    for name, rows in ways.items():
        accuracies = [100 * row["accuracy"] for row in rows]
        sent, cost = mean(row["megabytes"] for row in rows), mean(row["cost"] for row in rows) / 1e6
        accuracy = f"{mean(accuracies):.1f} ± {stdev(accuracies):.1f} %"
        lines.append(f"| {name} | {accuracy} | {sent:.3f} | {cost:.3f} | {dense / sent:.1f} |")
    seeds = len(ways["everything"])
    return "\n".join(
        [*lines, "", f"Means of {seeds} seeds, and the standard deviation of the accuracy from seed to seed."]
    )


LETTERS = {"measured": "ᴹ", "published": "ᴾ", "recalled": "ᴿ", "assumed": "ᴬ"}


def profile_tables() -> str:
    """Every figure of the profiles, with its range and grade, and how many there are of each grade."""
    parts = []
    for kind, names in (("device", profiles.devices()), ("link", profiles.links())):
        found = [getattr(profiles, kind)(name) for name in names]
        fields = profiles.fields(type(found[0]))
        lines = [f"| {kind} | {' | '.join(f'`{field}`' for field in fields)} |", "|---|" + "---:|" * len(fields)]
        for profile in found:
            cells = ["–" if q is None else graded(q) for q in profiles.figures(profile).values()]
            lines.append(f"| `{profile.name}` | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    figures = [q for name in profiles.devices() for q in profiles.figures(profiles.device(name)).values() if q]
    figures += [q for name in profiles.links() for q in profiles.figures(profiles.link(name)).values() if q]
    counts = {grade: sum(q.grade == grade for q in figures) for grade in LETTERS}
    told = ", ".join(f"{n} {grade} {LETTERS[grade]}" for grade, n in counts.items())
    wide = sum(q.high > 2 * q.low for q in figures)
    head = f"Of {len(figures)} figures, {told}; {wide} may be off by more than a factor of two from end to end."
    return "\n\n".join([head, *parts])


def graded(q: profiles.Quantity) -> str:
    """A figure, its range below it, and the letter of its grade."""
    between = (
        "" if q.low == q.high else f"<br>{profiles.readable(q.low, q.unit)} to {profiles.readable(q.high, q.unit)}"
    )
    return f"{q}{LETTERS[q.grade]}{between}"


def five_to_one() -> str:
    """What an entry of a classifier costs over one of a convolution, by `Device`, at 1 %."""
    pairs = {
        "ResNet-18": (Layout.of(build("resnet18", (3, 32, 32), 10)), "fc.weight", 2_359_296),
        "VGG-11": (Layout.of(build("vgg11", (3, 32, 32), 10)), "", 73_728),
    }
    lines = [
        "| | ResNet-18: all | memory, cold | memory, warm | VGG-11: all | memory, cold | memory, warm |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for device, link in (
        ("rpi4", "wifi-rpi4"), ("phone", "wifi-ac"), ("phone", "lte-2012"), ("phone", "5g-mmwave"),
        ("jetson-orin-nano", "ethernet"), ("esp32", "wifi-esp32"),
    ):  # fmt: skip
        cells = []
        for layout, name, size in pairs.values():
            cost = Device(device, link, density=0.01)
            rows = {warm: replace(cost, warm=warm).explain(layout).rows for warm in (False, True)}
            fc = next(i for i, s in enumerate(layout.segments) if s.name == name or (not name and s.size == 4096**2))
            conv = next(i for i, s in enumerate(layout.segments) if s.size == size)
            cells.append(rows[False][fc].joules / rows[False][conv].joules)
            cells += [rows[warm][fc].memory_joules / rows[warm][conv].memory_joules for warm in (False, True)]
        lines.append(f"| `{device}`, `{link}` | {' | '.join(f'{x:.2f}' for x in cells)} |")
    return "\n".join(lines)


def per_operation() -> str:
    """A multiply-add of a linear layer over one of a convolution, where weights come from DRAM once a batch."""
    dram, mac = 640.0, 4.6  # pJ a 32-bit word and a float32 multiply-add at 45 nm
    maps = {"32 × 32": 1024, "8 × 8": 64, "4 × 4": 16}
    lines = [f"| batch | {' | '.join(f'conv on {name}' for name in maps)} |", "|---:|" + "---:|" * len(maps)]
    for batch in (1, 8, 32, 128):
        cells = [(dram / batch + mac) / (dram / (batch * places) + mac) for places in maps.values()]
        lines.append(f"| {batch} | {' | '.join(f'{x:.1f}' for x in cells)} |")
    return "\n".join(lines)


def sensitivity() -> str:
    """The demo's network under ratios from 0.2 to 10: means over the seeds of `sensitivity.json`, and their spread."""
    found = results("sensitivity.json")
    ways: dict[tuple[str, float | None], list[Row]] = {}
    for row in found["rows"]:
        ways.setdefault((row["sends"], row["ratio"]), []).append(row)
    lines = [
        "| sends | classifier : other | accuracy | classifier's share of what is sent | MB sent | J to send |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    order = ["Top-K", "CWMP", "ErrorFeedback(Top-K)", "ErrorFeedback(CWMP)"]
    for (name, ratio), rows in sorted(ways.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or 0)):
        accuracy, share, sent, joules = (
            [row[key] for row in rows] for key in ("accuracy", "classifier_share", "megabytes", "joules")
        )
        lines.append(
            f"| {name} | {'' if ratio is None else f'{ratio:g}'} | {100 * mean(accuracy):.1f} ± "
            f"{100 * stdev(accuracy):.1f} % | {100 * mean(share):.0f} % | {mean(sent):.3f} ± {stdev(sent):.3f} | "
            f"{mean(joules):.3f} |"
        )
    head = found["header"]
    return "\n".join(
        [
            *lines,
            "",
            f"Means of {len(ways['Top-K', None])} seeds ± their standard deviation; {head['rounds']} rounds, "
            f"{head['clients']} clients, {100 * head['density']:g} % of the entries. Joules: all payloads, on "
            f"`{head['link']}`.",
        ]
    )


def calibrations() -> str:
    """Of each device that was calibrated: what its work costs, and how well that foretold other work."""
    parts = []
    for path in sorted(RESULTS.glob("calibrate-*.json")):
        found = results(path.name)
        head, coefficients = found["header"], found.get("coefficients", {})
        seconds = [window["seconds"] for window in found["windows"]]
        lines = [
            f"**{head['device']}**, {head['date'][:10]}, by `{head['meter']}`, {head['precision']}: {len(seconds)} "
            f"windows of {between(seconds)} s; torch {head['torch']}.",
            "",
            "| what costs | each | 95 % |",
            "|---|---:|---:|",
        ]
        for name, c in coefficients.items():
            known = c["value"] is not None
            each = f"{c['value']:.3g} {c['unit']}" if known else "not told from noise"
            bounds = f"{c['low']:.3g} to {c['high']:.3g}" if known else f"< {c['high']:.3g} {c['unit']}"
            lines.append(f"| {name} | {each} | {bounds} |")
        lines += ["", "| not fitted on | measured | foretold | off by | by a ledger |", "|---|---:|---:|---:|---:|"]
        for name, told in grouped(found.get("predictions", [])).items():
            measured, predicted = (mean(p[key] / p["seconds"] for p in told) for key in ("measured", "predicted"))
            error, half = (max(p[key] / p["seconds"] for p in told) for key in ("measured_error", "high"))
            ledger = [p["by_busy_watts"] / p["measured"] - 1 for p in told if p["by_busy_watts"] is not None]
            by_ledger = f"{100 * mean(ledger):+.0f} %" if ledger else "–"
            lines.append(
                f"| {name} | {measured:.4g} ± {error:.2g} W | {predicted:.4g} ± {half - predicted:.2g} W | "
                f"{100 * (predicted / measured - 1):+.1f} % | {by_ledger} |"
            )
        parts.append("\n".join(lines))
    if not parts:
        return "No device has been calibrated for this page yet."
    parts.append(
        "Joules a second of the work; ± is 95 %. *By a ledger*: what training's watts, times the seconds, are off by."
    )
    return "\n\n".join(parts)


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows by their name."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row)
    return found


def between(numbers: Iterable[float]) -> str:
    """The least and the largest, in three digits."""
    ordered = sorted(numbers)
    least, largest = f"{ordered[0]:.3g}", f"{ordered[-1]:.3g}"
    return least if least == largest else f"{least} to {largest}"


def pareto() -> str:
    """What a report says of the runs of `pareto.json`: each way against Top-K at the same density."""
    found = results("pareto.json")
    (setting,) = found["settings"]
    return papers.table_markdown(found, setting, "units").strip()


def simulator_aims() -> str:
    """What was asked of the simulator, as ratios of times in `simulate.json`, and where it is missed."""
    lines = list(AIMS)
    for what, limit, found in simulator_tables.asked(results("simulate.json")):
        aim = Aim(f"{what}, {', '.join(found)}", limit, True, found)
        lines.append(aim.line())
    return "\n".join(lines)


def simulator() -> str:
    """Seconds a round of every tool, and what they learned."""
    found = results("simulate.json")
    return "\n\n".join(
        [
            simulator_tables.simulator(found),
            "**Accuracy after so many rounds**, which says that all have done the same work:",
            simulator_tables.accuracies(found),
        ]
    )


def many_clients() -> str:
    """Memory and time of `many_clients.json`."""
    return simulator_tables.many_clients(results("many_clients.json"))


def gpu_rounds() -> str:
    """Seconds a round on a GPU, of `simulate_gpu.json`."""
    return simulator_tables.gpu_rounds(results("simulate_gpu.json"))


PAGES: dict[str, list[tuple[str, Callable[[], str]]]] = {
    "README.md": [
        ("benchmarks, in short", in_short),
        ("benchmarks/demo.json", demo),
        ("results: VGG-11, paired", lambda: campaign_tables.paired(campaign.Campaign(), campaign.VGG)),
    ],
    "docs/wire.md": [("benchmarks/wire.json", wire)],
    "docs/concepts.md": [("benchmarks/pareto.json", pareto)],
    "docs/energy.md": [
        ("joulegrad/profiles", profile_tables),
        ("Device, classifier over convolution", five_to_one),
        ("a multiply-add, linear over convolution", per_operation),
        ("benchmarks/sensitivity.json", sensitivity),
    ],
    "docs/measuring.md": [("benchmarks/results/calibrate-*.json", calibrations)],
    "docs/performance.md": [
        ("benchmarks/select.json, what was asked", aims),
        ("benchmarks/select_gpu.json", on_a_gpu),
        ("benchmarks/select.json", select),
    ],
    "docs/simulator.md": [
        ("benchmarks/simulate.json, what was asked", simulator_aims),
        ("benchmarks/simulate.json", simulator),
        ("benchmarks/many_clients.json", many_clients),
        ("benchmarks/simulate_gpu.json", gpu_rounds),
    ],
    campaign.PAGE: campaign_tables.blocks(campaign.Campaign()),
}
PICTURES = {
    "docs/pictures/select.svg": "select.json", "docs/pictures/wire.svg": "wire.json",
    "docs/pictures/pareto.svg": "pareto.json", "docs/pictures/rounds.svg": "pareto.json",
}  # fmt: skip


def origin(name: str) -> str:
    """What a picture says of the result file that it was drawn from."""
    return f"benchmarks/results/{name}, SHA-256 {hashlib.sha256((RESULTS / name).read_bytes()).hexdigest()}"


def results(name: str) -> Any:
    """A result file's content."""
    return json.loads((RESULTS / name).read_text())


def filled(page: str, text: str) -> str:
    """A page's text with its tables as the result files give them."""
    for marker, make in PAGES[page]:
        begin = f"<!-- begin: {marker} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(END)
        if not (found and ended):
            raise ValueError(f"{page} must hold {begin.strip()}, and {END} after it")
        text = f"{before}{begin}\n{make()}\n\n{END}{after}"
    return text


def main() -> int:
    checking, stale = "--check" in sys.argv[1:], 0
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = filled(page, before)
        if before != after:
            stale += checking
            print(f"{page} is not what the result files give" if checking else f"{page} written")
            if not checking:
                path.write_text(after)
    for picture, name in PICTURES.items():
        path = ROOT / picture
        if not path.exists() or origin(name) not in path.read_text():
            stale += 1
            print(f"{picture} is not drawn from benchmarks/results/{name}: python benchmarks/plots.py")
    for said in campaign.stale(campaign.Campaign(), (ROOT / campaign.PAGE).parent):
        stale += 1
        print(said)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
