"""The blocks of docs/results/index.md: each a table, or a sentence that says why there is none.

An error bar or an interval is over seeds; a verdict needs three.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import tomllib
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, stdev
from typing import Any

import readings
from campaign import (
    EQUAL,
    EXAMPLES,
    LINKS,
    READINGS,
    RESNET,
    SEEDS,
    VGG,
    BySeed,
    Campaign,
    accuracies,
    both,
    counterpart,
    everything,
    figures,
    joules,
    named,
    otherwise,
    units,
    up,
)
from joulegrad.energy import Ledger
from joulegrad.lab import models, results, sessions
from joulegrad.lab.accounts import flop_per_example
from joulegrad.lab.report.runs import Run
from joulegrad.lab.report.statistics import Interval, difference, first_to_reach, ratio
from joulegrad.lab.report.ways import Way
from joulegrad.lab.sweep import Job
from joulegrad.lab.tables import flat

# --- in words ------------------------------------------------------------------------------------------------------


def percent(values: BySeed) -> str:
    """A mean and the standard deviation over seeds."""
    return spread([100 * v for v in values.values()], ".2f", " %")


def spread(values: list[float], form: str, unit: str = "") -> str:
    """A mean ± a standard deviation; without one where there is one seed."""
    told = f"{fmean(values):{form}}"
    return (f"{told} ± {stdev(values):{form}}" if len(values) > 1 else told) + unit


def points(found: Interval | None) -> str:
    """A difference of accuracies and where it may lie."""
    return _bounded(found, lambda v: f"{100 * v:+.2f}")


def saved(found: Interval | None) -> str:
    """A ratio as what is saved by it."""
    return _bounded(found, lambda v: f"{100 * (v - 1):+.1f}", " %")


def _bounded(found: Interval | None, told: Callable[[float], str], unit: str = "") -> str:
    """A mean, and its bounds where it has any."""
    if found is None:
        return "–"
    mean = told(found.mean) + unit
    return mean if found.low is None or found.high is None else f"{mean} ({told(found.low)} to {told(found.high)})"


def times(numbers: BySeed, less: BySeed) -> str:
    """How many times fewer, over the seeds that both have."""
    found = ratio(numbers, less)
    return "–" if found is None else f"{found.mean:,.0f}" if found.mean >= 100 else f"{found.mean:.3g}"


def seeds(values: Iterable[int]) -> str:
    """Their numbers."""
    return ", ".join(map(str, sorted(values)))


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """Markdown; the first columns are text."""
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * left + "---:|" * (len(heads) - left)]
    return "\n".join([*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)])


# --- blocks of the page ----------------------------------------------------------------------------------------------


def coverage(c: Campaign) -> str:
    """Which runs are here, and which are not."""
    rows, absent = [], []
    every = {results.fingerprint(run) for runs in c.runs.values() for run in runs}  # some are of several sweeps
    for stem, jobs in c.plans.items():
        wanted = {job.experiment.fingerprint: job for job in jobs}
        there = {results.fingerprint(run) for run in c.runs.get(stem, [])} | (every & wanted.keys())
        rows.append(
            [f"`paper/{stem}.toml`", str(len(jobs)), str(len(there & wanted.keys())), str(len(there - wanted.keys()))]
        )
        if not there & wanted.keys():
            absent.append(f"- `{stem}`: all {len(jobs)}")
            continue
        lost: dict[str, list[int]] = {}
        for fingerprint, job in wanted.items():
            if fingerprint not in there:
                lost.setdefault(_chosen(job, c.swept[stem]), []).append(job.experiment.seed)
        absent += [f"- `{stem}`: `{name}`, seeds {seeds(those)}" for name, those in lost.items()]
    others = [stem for stem in c.runs if stem not in c.plans]
    rows += [[f"`results/{stem}`, of no sweep here", "–", "–", str(len(c.runs[stem]))] for stem in others]
    parts = [table(["sweep", "planned", "finished, here", "other runs there"], rows)]
    parts.append("**Missing:**\n\n" + "\n".join(absent) if absent else "No run is missing.")
    return "\n\n".join([*parts, _provenance(c)])


def _chosen(job: Job, swept: Iterable[str]) -> str:
    """What a sweep's run sends, and what else the sweep goes over, but for the seed."""
    plain = flat(job.experiment.to_dict())
    others = [key for key in swept if key not in ("seed", "compress") and "compress." not in key]
    own = [f"{name}={value}" for name, value in plain.items() for key in others if f"{name}.".startswith(f"{key}.")]
    return " ".join([str(plain["compress"]), *own])


def _provenance(c: Campaign) -> str:
    """GPU, versions and commits of all runs here."""
    headers = [run.header for runs in c.runs.values() for run in runs]
    if not headers:
        return "There are no runs yet, so nothing below shows a figure of ours."
    facts: dict[str, dict[str, None]] = {}
    for header in headers:
        told = {
            "GPU": header.get("gpu") if header.get("device") == "cuda" else None, "device": header.get("device"),
            "python": header.get("python"), **(header.get("versions") or {}),
            "commit": (header.get("commit") or "")[:8],
        }  # fmt: skip
        for name, value in told.items():
            if value:
                facts.setdefault(name, {})[str(value)] = None
    said = "; ".join(f"{name} {', '.join(values)}" for name, values in facts.items())
    return f"{len(headers)} runs, from {min(h['started'] for h in headers)[:10]} on: {said}."


def asked(c: Campaign) -> str:
    """What was asked for, what was found, and where it is missed."""
    rows = [
        ["VGG-11: less Σc than Top-K at equal accuracy, paired", "at least 40 % (aim: 60 %)", *_vgg(c)],
        [
            f"ResNet-18: fewer uplink bytes than dense, accuracy within {_p(EQUAL)} points",
            "at least 400 × (aim: 1,000 ×)",
            *_fewer(c, up, 400),
        ],
        [
            f"ResNet-18: fewer bytes both ways, accuracy within {_p(EQUAL)} points",
            "at least 100 ×",
            *_fewer(c, both, 100),
        ],
    ]
    told = (
        f"*Equal accuracy* is a mean over at least {SEEDS} seeds, paired by seed, that is at most {_p(EQUAL)} points "
        "below the other's: of *dense* for bytes, of Top-K with the same operators around it and at the same density "
        "for Σc. Accuracy is that after the last round, never the best of them. What is found is the best way of all "
        "that are here and finished; its 95 % intervals are in the tables below."
    )
    return "\n\n".join([table(["what", "asked", "found", "missed"], rows, left=4), told])


def _p(share: float) -> str:
    return f"{100 * share:g}"


UNKNOWN = ["not known", f"not known: no {SEEDS} seeds of both"]


def _vgg(c: Campaign) -> list[str]:
    best: tuple[float, Way, Interval] | None = None
    compared = False
    ways = c.ways(*c.kin(VGG))
    for way in ways:
        other = counterpart(ways, way)
        if other is None or len(accuracies(way).keys() & accuracies(other).keys()) < SEEDS:
            continue
        compared = True
        gained, cost = difference(accuracies(way), accuracies(other)), ratio(units(way), units(other))
        if gained is not None and cost is not None and gained.mean >= -EQUAL and (best is None or cost.mean < best[0]):
            best = (cost.mean, way, gained)
    if best is None:
        return ["none at equal accuracy", "missed"] if compared else UNKNOWN
    cost_of, way, gained = best
    found = f"{100 * (1 - cost_of):.1f} %: {way.name}, accuracy {100 * gained.mean:+.2f} points"
    return [found, "none" if cost_of <= 0.6 else "missed"]


def _fewer(c: Campaign, of: Callable[[Way], BySeed], limit: float) -> list[str]:
    ways = c.ways(*c.kin(RESNET))
    best: tuple[float, Way, float] | None = None
    nearest: tuple[float, Way, float] | None = None  # of those with few enough bytes, the most accurate
    compared = False
    for way in ways:
        dense = everything(ways, way)
        if (
            dense is None
            or way.family.startswith("everything")
            or len(accuracies(way).keys() & accuracies(dense).keys()) < SEEDS
        ):
            continue
        gained, fewer = difference(accuracies(way), accuracies(dense)), ratio(of(dense), of(way))
        if gained is None or fewer is None:
            continue
        compared = True
        if gained.mean >= -EQUAL and (best is None or fewer.mean > best[0]):
            best = (fewer.mean, way, gained.mean)
        if fewer.mean >= limit and (nearest is None or gained.mean > nearest[2]):
            nearest = (fewer.mean, way, gained.mean)
    if not compared:
        return UNKNOWN
    found = "none at equal accuracy" if best is None else _fewer_words(best)
    if best is None or best[0] < limit:
        return [found + (f"; the most accurate with as few: {_fewer_words(nearest)}" if nearest else ""), "missed"]
    way = best[1]
    papers = named(ways, "everything")
    if otherwise(way) and papers is not None:
        less = points(difference(accuracies(way), accuracies(papers)))
        found += f"; {less} against the dense of `{RESNET}`, which does not do {otherwise(way)}"
    return [found, "none"]


def _fewer_words(found: tuple[float, Way, float]) -> str:
    fewer, way, gain = found
    return f"{fewer:,.0f} ×: {way.name}, accuracy {100 * gain:+.2f} points"


def beside(c: Campaign) -> str:
    """Every number of the paper, and ours."""
    ways = c.ways(RESNET)
    rows = []
    for number in _reported(c)["number"]:
        rows.append([number["key"], _theirs(number), _ours(number, ways), f"{number['where']}"])
    return table(["", "the paper", "here", "where the paper says it"], rows)


def _reported(c: Campaign) -> dict[str, Any]:
    return tomllib.loads((c.paper / "reported.toml").read_text("utf-8"))


def _theirs(number: Mapping[str, Any]) -> str:
    value = number["value"]
    return {
        "accuracy": lambda: f"{100 * value:.2f} %", "units": lambda: f"{value / 1e6:g} · 10⁶ units",
        "ratio": lambda: f"× {value:g}", "rounds": lambda: f"within {value}",
    }[number["kind"]]()  # fmt: skip


def _ours(number: Mapping[str, Any], ways: list[Way]) -> str:
    knob, kind = f"density={number['density']:g}", number["kind"]
    if kind == "ratio":
        pair = named(ways, "TopK", knob), named(ways, "CWMP", knob)
        found = ratio(units(pair[0]), units(pair[1])) if pair[0] and pair[1] else None
        return "not run" if found is None else f"× {found.mean:.3f}"
    way = named(ways, number["rule"], knob)
    if way is None:
        return "not run"
    if kind == "accuracy":
        return f"{percent(accuracies(way))}, {_n(way)}"
    if kind == "units":
        return f"{spread([u / 1e6 for u in units(way).values()], '.4f')} · 10⁶, {_n(way)}"
    reached = {run.seed: _round_of(run, number["accuracy"]) for run in way.runs}
    return "; ".join(f"seed {seed}: {'never' if at is None else at}" for seed, at in sorted(reached.items()))


def _n(way: Way) -> str:
    return f"{len(way.runs)} seed{'s' * (len(way.runs) > 1)}"


def _round_of(run: Run, accuracy: float) -> int | None:
    at = first_to_reach([row["accuracy"] for row in run.rows], [float(row["round"]) for row in run.rows], accuracy)
    return None if at is None else round(at)


def contradictions(c: Campaign) -> str:
    """What of the paper's numbers cannot be true together."""
    said = _reported(c)["contradiction"]
    return "\n".join(f"- {' and '.join(f'*{key}*' for key in each['between'])}: {each['why']}." for each in said)


def grid(c: Campaign, stem: str) -> str:
    """All ways of a sweep."""
    ways = c.ways(stem)
    if not ways:
        return f"No run of `paper/{stem}.toml` is here yet."
    dense = named(ways, "everything")
    rows = []
    for way in sorted(ways, key=lambda way: (way.family, _size(way))):
        fewer = ["–", "–"] if dense is None else [times(of(dense), of(way)) for of in (up, both)]
        rows.append([
            way.name, _n(way), percent(accuracies(way)), spread([u / 1e3 for u in units(way).values()], ",.1f"),
            f"{fmean(up(way).values()) / 1e6:,.1f}", *fewer,
        ])  # fmt: skip
    heads = [
        "sends",
        "seeds",
        "accuracy",
        "Σc, 10³ units a client and round",
        "MB up",
        "× fewer up",
        "× fewer both ways",
    ]
    return table(heads, rows, left=2)


def _size(way: Way) -> float:
    return fmean(row["entries"] for run in way.runs for row in run.rows)


def paired(c: Campaign, stem: str) -> str:
    """CWMP less Top-K with the same operators around it, at the same density, seed by seed."""
    ways = c.ways(*c.kin(stem))
    rows = []
    for way in sorted(ways, key=lambda way: (way.family, _size(way))):
        other = counterpart(ways, way)
        if other is None:
            continue
        ours, theirs = accuracies(way), accuracies(other)
        each = ", ".join(f"{100 * (ours[seed] - theirs[seed]):+.2f}" for seed in sorted(ours.keys() & theirs.keys()))
        rows.append([
            way.name, points(difference(ours, theirs)), each or "no seed in common",
            saved(ratio(units(way), units(other))), saved(ratio(up(way), up(other))), _verdict(ours, theirs),
        ])  # fmt: skip
    if not rows:
        return "No pair of CWMP and Top-K is here yet."
    heads = ["CWMP less Top-K", "points of accuracy (95 %)", "seed by seed", "Σc (95 %)", "bytes up (95 %)", "accuracy"]
    return table(heads, rows)


def _verdict(ours: BySeed, theirs: BySeed) -> str:
    found = difference(ours, theirs)
    if found is None or len(ours.keys() & theirs.keys()) < SEEDS:
        return f"fewer than {SEEDS} seeds"
    if abs(found.mean) <= EQUAL:
        return "equal"
    word = "better" if found.mean > 0 else "worse"
    return word if found.excludes(0.0) else f"{word} on average, within chance"


def cheapest(c: Campaign) -> str:
    """Each way of VGG-11 against the Top-K that reaches its accuracy for the least Σc, whatever that one's density."""
    ways = c.ways(*c.kin(VGG))
    baselines = [way for way in ways if "TopK" in way.family and len(way.runs) >= SEEDS]
    rows = []
    for way in sorted(ways, key=lambda way: fmean(units(way).values())):
        if "TopK" in way.family or way.family == "everything" or len(way.runs) < SEEDS:
            continue
        level = fmean(accuracies(way).values()) - EQUAL
        able = [b for b in baselines if fmean(accuracies(b).values()) >= level and otherwise(b) == otherwise(way)]
        other = min(able, key=lambda other: fmean(units(other).values()), default=None)
        cells = (
            ["no Top-K here is as accurate", "–"]
            if other is None
            else [other.name, saved(ratio(units(way), units(other)))]
        )
        rows.append([way.name, percent(accuracies(way)), *cells])
    if not rows:
        return f"Not known: no way other than Top-K has {SEEDS} finished seeds."
    return table(["sends", "accuracy", "the cheapest Top-K as accurate", "Σc against it (95 %)"], rows)


def frontier(c: Campaign) -> str:
    """All that was tried on ResNet-18 against everything sent, the fewest bytes first."""
    ways = c.ways(*c.kin(RESNET))
    if not any(everything(ways, way) for way in ways):
        return "No run that sends everything is here yet, so there is nothing to compare with."
    kinds = [otherwise(way) for way in ways if otherwise(way)]
    usual = max(kinds, key=kinds.count) if kinds else None
    rows = []
    for way in sorted(ways, key=lambda way: fmean(up(way).values())):
        entries = sum(row["entries"] for run in way.runs for row in run.rows)
        bits = f"{8 * sum(up(way).values()) / entries:.1f}" if entries else "–"
        dense = everything(ways, way)
        less = "–" if dense is None or dense is way else points(difference(accuracies(way), accuracies(dense)))
        fewer = ["–" if dense is None else times(of(dense), of(way)) for of in (up, both)]
        sent = [f"{fmean(joules(way, link).values()) / 1e3:.3g}" for link in LINKS]
        name = way.name if otherwise(way) != usual else f"† {_without(way, usual)}"
        rows.append([name, _n(way), percent(accuracies(way)), less, *fewer, bits, *sent])
    heads = [
        "sends",
        "seeds",
        "accuracy",
        "less dense, points (95 %)",
        "× fewer up",
        "× fewer both ways",
        "bits an entry up",
    ]
    notes = [
        "kJ: modelled from coded bytes, for all clients and rounds, on a phone by "
        + " and ".join(f"`{link}`" for link in LINKS)
        + f"; both ways, with the radio's tail. Training comes on top, {training(c):,.0f} kJ as modelled for the same "
        "phone, whatever is sent. *Dense* is everything sent both ways, all else alike: – where that has not been run."
    ]
    notes += [f"† {usual}"] if usual else []
    told = table([*heads, *(f"kJ, {name}" for name in LINKS.values())], rows, left=2)
    return "\n\n".join([told, *notes])


def _without(way: Way, told: str) -> str:
    """A way's name but for what a mark says of it."""
    family, *own = way.family.split("; ")
    kept = [each for each in own if each not in told.split("; ")]
    return "; ".join([family, *kept]) + (f", {way.knob}" if way.knob else "")


def training(c: Campaign) -> float:
    """KJ of training in a whole run, on all phones together: its operations at the profile's speed and watts."""
    settings = c.plans[RESNET][0].experiment
    flop = flop_per_example(models.build(settings.model, readings.SHAPE, readings.CLASSES), readings.SHAPE)
    return (Ledger("phone").train(flop=flop * EXAMPLES * settings.local.epochs * settings.rounds).joules or 0.0) / 1e3


def trained_readings(c: Campaign) -> str:
    """What the networks came to under which the paper's energies may arise, and how near that is."""
    ways = c.ways(READINGS)
    if not ways:
        return f"None of these networks has been trained for this page yet (`paper/{READINGS}.toml`)."
    said = {(n["rule"], n["density"]): n["value"] for n in _reported(c)["number"] if n["kind"] == "accuracy"}
    rows, sums = [], {}
    for way in sorted(ways, key=lambda way: (_network(way), _size(way), way.family)):
        rule, density = way.family.partition("; ")[0], float(way.knob.partition("=")[2])
        sums[_network(way), rule, density] = units(way)
        theirs = f"{100 * said[rule, density]:.2f} %" if (rule, density) in said else "–"
        cost = spread([u / 1e6 for u in units(way).values()], ".4f")
        rows.append([f"`{_network(way)}`", f"{rule}, {way.knob}", _n(way), percent(accuracies(way)), theirs, cost])
    heads = ["network", "sends", "seeds", "accuracy", "the paper's", "Σc, 10⁶ units a client and round"]
    near = [_nearest(name, sums) for name in dict.fromkeys(_network(way) for way in ways)]
    about = ["network", "counted, nearest", "CWMP, 10⁶ units", "Top-K", "Top-K over CWMP", "off the paper's by"]
    return "\n\n".join([table(heads, rows, left=3), "At 1 %:", table(about, [row for row in near if row], left=2)])


def _network(way: Way) -> str:
    return str(way.runs[0].header["experiment"]["model"]).rpartition(":")[2]


def _nearest(name: str, sums: Mapping[tuple[str, str, float], BySeed]) -> list[str] | None:
    """A network's sums at 1 %, counted so that they come nearest to the paper's."""
    pair = [sums.get((name, rule, readings.DENSITY)) for rule in ("CWMP", "TopK")]
    if pair[0] is None or pair[1] is None:
        return None
    means = [fmean(each.values()) for each in pair if each is not None]

    def error(counting: readings.Counting) -> float:
        return max(abs(counting.times * u / t - 1) for u, (t, _) in zip(means, readings.targets(), strict=True))

    best = min((counting for counting in readings.COUNTINGS if counting.dear > counting.cheap), key=error)
    cwmp, topk = (f"{best.times * mean / 1e6:.4f}" for mean in means)
    return [f"`{name}`", best.name, cwmp, topk, f"× {means[1] / means[0]:.2f}", f"{100 * error(best):.0f} %"]


def others(c: Campaign) -> str:
    """Sweeps that none of the tables above shows."""
    shown = {*c.kin(RESNET), *c.kin(VGG), READINGS}
    parts = [f"**{stem}**\n\n{grid(c, stem)}" for stem in c.runs if stem not in shown]
    return "\n\n".join(parts) or "There are none."


def energy(c: Campaign) -> str:
    """What the campaign drew, by the machine's own meter."""
    kept = {path.parent.name: sessions.read(path) for path in sorted(c.results.glob(f"*/{sessions.ENERGY}"))}
    if not any(kept.values()):
        return "Not measured: no sweep whose results are here has kept a meter's readings."
    rows = [_session_row(f"`{stem}`", sessions.total(those)) for stem, those in kept.items() if those]
    total = sessions.total(row for those in kept.values() for row in those)
    sources = {row["source"] for those in kept.values() for row in those if row.get("joules") is not None}
    told = [
        table(
            ["sweep", "sessions measured", "not measured", "hours", "kWh", "mean W"],
            [*rows, _session_row("all", total)],
        )
    ]
    if total.joules is not None:
        said = f"Measured by {', '.join(f'`{s}`' for s in sorted(sources))}: the whole device, whatever else ran on it"
        shared = f" Sessions overlapped for {total.shared_seconds / 60:.1f} minutes, which *all* counts once."
        told.append(f"{said}, from the start of each session to its end.{shared if total.shared_seconds > 1 else ''}")
    counted = {(stem, name) for stem, those in kept.items() for row in those for name in row.get("runs", {})}
    here = [(run.folder.parent.name, run.folder.name) for runs in c.runs.values() for run in runs]
    told.append(f"Of the {len(here)} runs here, {sum(each in counted for each in here)} were played in these sessions.")
    return "\n\n".join(told)


def _session_row(name: str, found: sessions.Total) -> list[str]:
    known = found.joules is not None
    return [
        name, str(found.sessions), str(found.unmeasured), f"{found.seconds / 3600:.2f}" if known else "–",
        f"{found.joules / 3.6e6:.3f}" if found.joules is not None else "not measured",
        f"{found.joules / found.seconds:.0f}" if found.joules is not None and found.seconds else "–",
    ]  # fmt: skip


def pictures(c: Campaign, prefix: str) -> str:
    """Those whose names begin so."""
    shown = [
        f'<img src="{name}" alt="{said}" width="560">' for name, said in figures(c).items() if name.startswith(prefix)
    ]
    return "\n\n".join(shown) or "No figure yet."


def blocks(c: Campaign) -> list[tuple[str, Callable[[], str]]]:
    """The page's blocks, by their markers."""

    def joined(*parts: Callable[[], str]) -> Callable[[], str]:
        return lambda: "\n\n".join(part() for part in parts)

    return [
        ("results: what was asked", lambda: asked(c)),
        ("results: the paper beside ours", lambda: beside(c)),
        ("results: ResNet-18", joined(lambda: pictures(c, "resnet18"), lambda: grid(c, RESNET))),
        ("results: ResNet-18, paired", lambda: paired(c, RESNET)),
        ("results: VGG-11", joined(lambda: pictures(c, "vgg11"), lambda: grid(c, VGG))),
        ("results: VGG-11, paired", lambda: paired(c, VGG)),
        ("results: VGG-11, against the cheapest", lambda: cheapest(c)),
        ("results: the frontier", joined(lambda: pictures(c, "frontier"), lambda: frontier(c))),
        ("results: contradictions", lambda: contradictions(c)),
        ("results: readings", readings.of_each_network),
        ("results: readings that fit", readings.that_fit),
        ("results: readings, trained", lambda: trained_readings(c)),
        ("results: other sweeps", lambda: others(c)),
        ("results: energy", lambda: energy(c)),
        ("results: what there is", lambda: coverage(c)),
    ]
