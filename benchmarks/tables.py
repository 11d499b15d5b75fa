"""Write the tables of the docs from the result files, or check that they are what the files give.

    python benchmarks/tables.py             # rewrite
    python benchmarks/tables.py --check     # exit 1 if a page is out of date

A page holds each table between `<!-- begin: MARKER -->` and `<!-- end -->`; `PAGES` says which function gives it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
    cases: Cases = {}
    for row in found["rows"]:
        if row["rule"] == "PerLayer(CWMP)":
            continue  # one price a layer: it is PerLayer(TopK), line for line
        case = cases.setdefault((row["model"], row["rule"], row["density"]), {})
        name = row["method"] if row["method"] != "joulegrad" else f"joulegrad {row['values']}"
        case[name] = row
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
    reading = cases["update", 0.01]["one reading"]["seconds"]
    software = ", ".join(f"{name} {head[name]}" for name in ("torch", "numpy", "numba"))
    start, end = head["load_average_at_start"][0], head["load_average_at_end"][0]
    parts = [
        f"Measured {head['date'][:10]} on {head['cpu']}, {head['threads']} threads of {head['cores']} cores, load "
        f"average {start} before and {end} after; Python {head['python']}, {software}; medians of {head['repeats']} "
        f"interleaved repeats, seed {head['seed']}; {head['entries']:,} entries. One reading of them took "
        f"{milliseconds(reading)} ms ({4e-9 * head['entries'] / reading:.0f} GB/s, mostly from cache): the floor.",
        "**Selection, milliseconds**, and in brackets how many times as long the peer takes as CWMP:",
        select_table(cases),
        "**A client's whole step, milliseconds**, and in brackets as a multiple of the selection alone:",
        multiples(cases, "client step", "CWMP"),
        "**Updates that mislead samples and pivots, milliseconds**, and in brackets as a multiple of CWMP:",
        hostile(cases),
        "**The server: a hundred clients at 1 %, milliseconds**:",
        multiples(cases, "server", "mean of 100 updates"),
    ]
    return "\n\n".join(parts)


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


def multiples(cases: Cells, name: str, unit: str) -> str:
    densities = [density for found, density in cases if found == name]
    lines = [f"| | {' | '.join(f'{100 * d:g} %' for d in densities)} |", "|---|" + "---:|" * len(densities)]
    for method in cases[name, densities[0]]:
        taken = [(cases[name, d][method]["seconds"], cases[name, d][unit]["seconds"]) for d in densities]
        lines.append(f"| {method} | {' | '.join(with_ratio(t, t / u, method != unit) for t, u in taken)} |")
    return "\n".join(lines)


def hostile(cases: Cells) -> str:
    lines = ["| | CWMP | torch.topk | np.argpartition |", "|---|---:|---:|---:|"]
    for (name, density), case in cases.items():
        if "BudgetedCWMP" in case or name in ("client step", "server"):
            continue
        ours = case["CWMP"]["seconds"]
        cells = [with_ratio(row["seconds"], row["seconds"] / ours, method != "CWMP") for method, row in case.items()]
        lines.append(f"| {name}, {100 * density:g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_ratio(seconds: float, ratio: float, shown: bool) -> str:
    return f"{milliseconds(seconds)} ({multiple(ratio)})" if shown else milliseconds(seconds)


PAGES: dict[str, list[tuple[str, Callable[[], str]]]] = {
    "docs/wire.md": [("benchmarks/wire.json", wire)],
    "docs/performance.md": [("benchmarks/select.json", select)],
}


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
    stale = []
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = filled(page, before)
        if before != after:
            stale.append(page)
            if "--check" not in sys.argv[1:]:
                path.write_text(after)
    for page in stale:
        print(f"{page} is not what the result files give" if "--check" in sys.argv[1:] else f"{page} written")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
