"""What `simulate.json` and `many_clients.json` say, as Markdown for `tables.py`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

Row = dict[str, Any]
Times = dict[str, dict[str, float]]  # workload -> tool -> seconds a round

PEERS = {"Flower": "Flower", "pfl-research": "pfl"}  # what each tool's name begins with


class Asked(NamedTuple):
    """Times over times, and the least that each should be."""

    what: str
    limit: float
    found: dict[str, float]


def rows_of(found: Any, memory: bool) -> list[Row]:
    """Those of all parts of the result file that measured times, or memory."""
    return [row for part in found["parts"] if part["memory"] == memory for row in part["rows"]]


def times(found: Any) -> Times:
    """Medians of the rounds after the first of all turns."""
    rounds: dict[str, dict[str, list[float]]] = {}
    for row in rows_of(found, memory=False):
        rounds.setdefault(row["workload"], {}).setdefault(row["tool"], []).extend(row["rounds"][1:])
    return {
        workload: {tool: median(seconds) for tool, seconds in tools.items()}
        for workload, tools in sorted(rounds.items())
    }


def best(tools: dict[str, float], begins: str, tuned: bool = False) -> float:
    """The fastest setting of a peer: as it comes, or with our tuning in float32."""
    return min(
        seconds
        for tool, seconds in tools.items()
        if tool.startswith(begins) and ("tuned" in tool) == tuned and "bf16" not in tool
    )


def asked(found: Any) -> Iterator[Asked]:
    """What was asked of the simulator."""
    by = times(found)
    limits = {
        ("A", "Flower"): 1.9,
        ("A", "pfl-research"): 1.9,
        ("B-CNN", "Flower"): 3.0,
        ("B-CNN", "pfl-research"): 1.9,
    }
    limits |= {("B-LR", "Flower"): 20.0, ("B-LR", "pfl-research"): 2.5}
    for (workload, peer), limit in limits.items():
        if workload in by:
            ratio = best(by[workload], PEERS[peer]) / by[workload]["joulegrad"]
            yield Asked(f"{peer} as it comes over joulegrad", limit, {workload: ratio})
    if "A" in by:
        for peer, begins in PEERS.items():
            ratio = best(by["A"], begins) / by["A"]["joulegrad, bf16"]
            yield Asked(f"{peer} as it comes over joulegrad in bf16", 3.0, {"A": ratio})
    for peer, begins in PEERS.items():
        ratios = {w: best(tools, begins, tuned=True) / tools["joulegrad"] for w, tools in by.items()}
        yield Asked(f"{peer} with our tuning over joulegrad", 1.0, ratios)
    for ours in ("joulegrad", "joulegrad, dense"):
        ratios = {w: best(tools, "plain loop") / tools[ours] for w, tools in by.items()}
        yield Asked(f"the plain loop over {ours}", 1.0, ratios)


def simulator(found: Any) -> str:
    """Seconds a round, start-up and memory of every tool."""
    heads = [part["header"] for part in found["parts"]]
    loads = [load["load_average_at_start"][0] for load in heads] + [load["load_average_at_end"][0] for load in heads]
    head, by = heads[-1], times(found)
    timed, weighed = rows_of(found, memory=False), rows_of(found, memory=True)
    lines = [f"| | {' | '.join(by)} | start-up, A | memory, A |", "|---|" + "---:|" * (len(by) + 2)]
    for tool in dict.fromkeys(row["tool"] for row in timed):
        cells = [_with_ratio(tools.get(tool), tools["joulegrad"]) for tools in by.values()]
        starts = [row["start_seconds"] for row in timed if (row["tool"], row["workload"]) == (tool, "A")]
        peaks = [row["peak_bytes"] for row in weighed if (row["tool"], row["workload"]) == (tool, "A")]
        cells.append(f"{median(starts):.1f} s" if starts else "")
        cells.append(f"{max(peaks) / 1e6:,.0f} MB" if peaks else "not measured")
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n\n".join(
        [
            f"Measured {head['date'][:10]} on {head['cpu']}, {head['cores']} cores, load average {min(loads):.2g} to "
            f"{max(loads):.2g}; Python {head['python']}, torch {head['torch']}, flwr 1.41.0, pfl 0.6.0. Milliseconds a "
            "round, the median of the rounds after the first, and in brackets as a multiple of joulegrad's:",
            "\n".join(lines),
        ]
    )


def accuracies(found: Any) -> str:
    """Whether all did the same work: the accuracy at the end of the rounds that were measured."""
    rows = rows_of(found, memory=False)
    names = sorted({row["workload"] for row in rows})
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for tool in dict.fromkeys(row["tool"] for row in rows):
        cells = []
        for name in names:
            those = [row for row in rows if (row["tool"], row["workload"]) == (tool, name)]
            cells.append(f"{100 * those[0]['accuracy']:.0f} % after {len(those[0]['rounds'])}" if those else "")
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n".join(lines)


def many_clients(found: Any) -> str:
    """Memory and time, as the clients grow in number."""
    head, rows = found["header"], found["rows"]
    start, end = head["load_average_at_start"][0], head["load_average_at_end"][0]
    lines = [
        "| clients | have trained | ms a round | ms, the last tenth of the rounds | memory | file |",
        "|---:|" + "---:|" * 5,
    ]
    for row in rows:
        lines.append(
            f"| {row['clients']:,} | {row['clients_that_trained']:,} | {1000 * row['seconds']:.0f} | "
            f"{1000 * row['seconds_last_tenth']:.0f} | {row['peak_bytes'] / 1e6:,.0f} MB | "
            f"{row['bytes_on_disk'] / 1e6:,.0f} MB |"
        )
    one = rows[0]
    return "\n\n".join(
        [
            f"Measured {head['date'][:10]} on {head['cpu']}, {head['cores']} cores, load average {start} before and "
            f"{end} after; {one['parameters']:,} parameters, {one['sampled']} clients sampled in each of "
            f"{one['rounds']} rounds, error feedback on CWMP at 1 %. Memory is that of all processes.",
            "\n".join(lines),
        ]
    )


def gpu_rounds(found: Any) -> str:
    """Seconds a round of the paper's experiment on a GPU, and what each precision learns."""
    head, rows = found["header"], found["rows"]
    precise = {row["precision"]: row for row in rows if row["operator"] == "dense"}
    lines = [
        "| operator | precision | rounds | s a round, median | least to most | first round | start |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        seconds = row["round_seconds"]
        lines.append(
            f"| {row['operator']} | {row['precision']} | {row['rounds']} | {median(seconds):.2f} | "
            f"{min(seconds):.2f} to {max(seconds):.2f} | {row['first_round_seconds']:.1f} | "
            f"{row['start_seconds']:.1f} s |"
        )
    rounds = min((row["rounds"] for row in precise.values()), default=0)
    shown = [n for n in (4, 8, 12, 16) if n <= rounds]
    learned = [f"| accuracy of dense after round | {' | '.join(map(str, shown))} |", "|---|" + "---:|" * len(shown)]
    for precision, row in precise.items():
        reached = [f"{100 * row['accuracy'][n - 1]:.1f} %" for n in shown]
        learned.append(f"| {precision} | {' | '.join(reached)} |")
    parts = [
        f"Measured {head['date'][:10]} on one {head['gpu']}; Python {head['python']}, torch {head['torch']}; "
        f"data: {head['data']}. A round is ten clients, 50,000 images, batches of 64, one epoch; 1.3 s asked in "
        "bfloat16. The medians leave the first round out, which compiles kernels that no process had compiled before.",
        "\n".join(lines),
    ]
    return "\n\n".join([*parts, "\n".join(learned)] if shown else parts)


def _with_ratio(seconds: float | None, ours: float) -> str:
    if seconds is None:
        return ""
    shown = f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"
    return shown if seconds == ours else f"{shown} ({seconds / ours:.2g})"
