"""Write docs/results from the runs in results/: tables and figures, beside the paper's numbers and what was asked for.

    python benchmarks/campaign.py       # or: make results-report; from files alone, without a GPU

True of whatever lies there: a run that is missing is said to be, and a figure of one seed has no spread. This file
reads the results; `campaign_tables` makes the page's blocks, `campaign_figures` draws, `readings` looks for the paper's
energies. `tables.py --check` says whether the page is what the files give.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.sort(key=str(Path(__file__).resolve().parent).__eq__)  # last: select.py here is not the standard one

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from joulegrad.energy import Ledger
from joulegrad.lab import experiment, results, sweep
from joulegrad.lab.report import read
from joulegrad.lab.report.runs import Run
from joulegrad.lab.report.ways import Way, names
from joulegrad.lab.store import HEADER, ROUNDS
from joulegrad.lab.sweep import Job
from joulegrad.lab.tables import flat

ROOT = Path(__file__).parent.parent
PAGE = "docs/results/index.md"
RESNET, VGG, READINGS = "cifar10-resnet18", "cifar10-vgg11", "cifar10-readings"
EQUAL = 0.005  # of accuracy: half a point
EXAMPLES = 50_000  # of CIFAR-10, which the clients divide among themselves
SEEDS = 3  # that a verdict needs
LINKS = {"wifi-ac": "WiFi", "lte-2012": "LTE"}  # of a phone
BySeed = dict[int, float]


@dataclass(frozen=True)
class Campaign:
    """Sweeps that were planned, and the results of those that were played.

    Args:
        results: the folder of results.
        paper: the folder of sweeps.
    """

    results: Path = ROOT / "results"
    paper: Path = ROOT / "paper"

    @cached_property
    def _loaded(self) -> dict[str, dict[str, Any]]:
        loaded = {file.stem: experiment.load(file) for file in sorted(self.paper.glob("*.toml"))}
        return {stem: found for stem, found in loaded.items() if "sweep" in found}

    @cached_property
    def plans(self) -> dict[str, list[Job]]:
        """All runs of each sweep, by the name of its file."""
        return {stem: sweep.plan(found, Path(stem)) for stem, found in self._loaded.items()}

    @cached_property
    def swept(self) -> dict[str, list[str]]:
        """The keys that each goes over."""
        return {stem: list(found["sweep"]) for stem, found in self._loaded.items()}

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Finished runs by the sweep that planned them; of those that none did, by the folder that they lie in."""
        planned = {stem: {job.experiment.fingerprint for job in jobs} for stem, jobs in self.plans.items()}
        found: dict[str, list[Run]] = {}
        if not any(self.results.glob(f"*/*/{HEADER}")):
            return found
        for run in read([self.results]).runs:
            name, own = run.folder.parent.name, results.fingerprint(run)
            homes = [stem for stem in planned if own in planned[stem]]
            if run.state == "finished":
                found.setdefault(name if name in homes or not homes else homes[0], []).append(run)
        return found

    def ways(self, *stems: str) -> list[Way]:
        """Runs that differ in their seed alone, put together.

        They are named by what they send and, after a semicolon, by what else they do otherwise than the first sweep;
        a ledger changes nothing that is learned.
        """
        runs = [run for stem in stems for run in self.runs.get(stem, [])]
        usual = _told(self.plans[stems[0]][0].experiment.to_dict()) if stems and stems[0] in self.plans else {}
        short = names([str(run.header["experiment"]["compress"]) for run in runs])
        made: dict[tuple[str, str], dict[int, Run]] = {}
        for run in runs:
            family, knob = short[str(run.header["experiment"]["compress"])]
            own = [
                f"{key}={value}" for key, value in _told(run.header["experiment"]).items() if usual.get(key) != value
            ]
            made.setdefault(("; ".join([family, *own]), knob), {}).setdefault(run.seed, run)
        return [Way(*name, tuple(those[seed] for seed in sorted(those))) for name, those in made.items()]

    def kin(self, stem: str) -> list[str]:
        """The sweeps that play the same network on the same data, for as many rounds."""
        of = {name: _task(runs[0].header["experiment"]) for name, runs in self.runs.items()}
        of |= {name: _task(jobs[0].experiment.to_dict()) for name, jobs in self.plans.items()}
        return [stem, *(name for name in of if of[name] == of.get(stem) and name != stem)]

    def digest(self) -> str:
        """Of all results: what a figure says that it was drawn from."""
        found = hashlib.sha256()
        for file in sorted(self.results.rglob("*")) if self.results.is_dir() else []:
            if file.name in (HEADER, ROUNDS):
                found.update(str(file.relative_to(self.results)).encode() + b"\n" + file.read_bytes())
        return found.hexdigest()


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What distinguishes runs, beside what they send and their seed."""
    plain = experiment.anywhere(settings)
    return flat({key: value for key, value in plain.items() if key not in ("compress", "seed", "ledger")})


def _task(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return settings["model"], settings["data"]["name"], settings["partition"], settings["rounds"]


# --- figures of a way, by seed ---------------------------------------------------------------------------------------


def accuracies(way: Way) -> BySeed:
    """At the end."""
    return {run.seed: next(a for row in reversed(run.rows) if (a := row["accuracy"]) is not None) for run in way.runs}


def units(way: Way) -> BySeed:
    """Σc of what a client sends in a round, on average."""
    return {run.seed: math.fsum(row["cost"] for row in run.rows) / turns(run) for run in way.runs}


def turns(run: Run) -> int:
    """Clients that took part, added over the rounds."""
    return sum(len(row["clients"]) for row in run.rows)


def up(way: Way) -> BySeed:
    """Bytes to the server."""
    return {run.seed: float(sum(row["bytes_up"] for row in run.rows)) for run in way.runs}


def both(way: Way) -> BySeed:
    """Bytes to the server and to the clients."""
    return {run.seed: float(sum(row["bytes_up"] + row["bytes_down"] for row in run.rows)) for run in way.runs}


def joules(way: Way, link: str) -> BySeed:
    """What sending and receiving costs all clients of a run, were they phones on this link: the ledger's, on bytes."""
    ledger, found = Ledger("phone", link), {}
    for run in way.runs:
        spent = 0.0
        for row in run.rows:
            n = len(row["clients"])
            moved = [*ledger.uplink(round(row["bytes_up"] / n)), *ledger.downlink(round(row["bytes_down"] / n))]
            spent += n * math.fsum(line.joules or 0.0 for line in moved)
        found[run.seed] = spent
    return found


def named(ways: Iterable[Way], family: str, knob: str = "") -> Way | None:
    """The way of that name."""
    return next((way for way in ways if (way.family, way.knob) == (family, knob)), None)


def counterpart(ways: Iterable[Way], way: Way) -> Way | None:
    """The same with Top-K in CWMP's place."""
    family, n = re.subn(r"\bCWMP\b(\([^()]*\))?", "TopK", way.family)
    return named(ways, family, way.knob) if n else None


def otherwise(way: Way) -> str:
    """What a way does otherwise than its sweep beside sending: ways that differ in it learn differently."""
    _, *own = way.family.split("; ")
    return "; ".join(each for each in own if not each.startswith("downlink"))


def everything(ways: Iterable[Way], way: Way) -> Way | None:
    """What sends everything, both ways, and is otherwise as this one."""
    return named(ways, "; ".join(["everything", *filter(None, [otherwise(way)])]))


# --- figures of the page, and main ---


def figures(c: Campaign) -> dict[str, str]:
    """The pictures that can be drawn from what is here: file names, and what each shows."""
    found = {}
    if c.runs.get(RESNET):
        found["resnet18-energy.svg"] = "ResNet-18: accuracy against the paper's energy, and the paper's two points"
        found["resnet18-rounds.svg"] = "ResNet-18: accuracy against rounds at 10 %"
    if c.runs.get(VGG):
        found["vgg11-energy.svg"] = "VGG-11: accuracy against the paper's energy"
        found["vgg11-rounds.svg"] = "VGG-11: accuracy against rounds at 1 %"
    if any(c.runs.get(stem) for stem in c.kin(RESNET)):
        found["frontier-up.svg"] = "ResNet-18, all ways: accuracy against uplink bytes"
        found["frontier-both.svg"] = "ResNet-18, all ways: accuracy against bytes both ways"
        for link, name in LINKS.items():
            found[f"frontier-{link}.svg"] = f"ResNet-18, all ways: accuracy against a phone's joules of sending, {name}"
    return found


def origin(c: Campaign) -> str:
    """What a figure says of the results that it was drawn from."""
    return f"results/, SHA-256 {c.digest()}"


def stale(c: Campaign, folder: Path) -> Iterator[str]:
    """Figures that are missing, of other results, or of none."""
    wanted = figures(c)
    for name in wanted:
        path = folder / name
        if not path.exists() or origin(c) not in path.read_text("utf-8"):
            yield f"docs/results/{name} is not drawn from results/: make results-report"
    for path in sorted(folder.glob("*.svg")):
        if path.name not in wanted:
            yield f"docs/results/{path.name} has no results to be drawn from: delete it"


def main() -> None:
    import campaign_figures
    from tables import filled

    c = Campaign()
    for path in campaign_figures.draw(c, (ROOT / PAGE).parent):
        print(f"{path.relative_to(ROOT)} drawn")
    page = ROOT / PAGE
    page.write_text(filled(PAGE, page.read_text("utf-8")), "utf-8")
    print(f"{PAGE} written, from {sum(map(len, c.runs.values()))} runs")


if __name__ == "__main__":
    main()
