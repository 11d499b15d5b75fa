"""From runs to what is committed: collected, shown in docs/results, expected, compared. No number here is a result."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import made_runs
import pytest
from typer.testing import CliRunner

from joulegrad.cli import app
from joulegrad.energy import Meter, NoMeter
from joulegrad.lab import expected, experiment, results, sessions, store, sweep
from joulegrad.lab.experiment import Experiment
from joulegrad.lab.report import read

ROOT = Path(__file__).parent.parent
CLIENTS = list(range(10))


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def scripts(monkeypatch):
    """The programs of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import campaign
    import campaign_figures
    import campaign_tables
    import readings

    return SimpleNamespace(campaign=campaign, tables=campaign_tables, figures=campaign_figures, readings=readings)


def played(out, job, accuracy, cost, bytes_up, *, rounds=None, bytes_down=1_000_000, finished=True):
    """A run of a sweep, written by hand: its accuracy climbs to what is given."""
    folder = out / job.experiment.fingerprint
    folder.mkdir(parents=True)
    header = {**made_runs.header(), "experiment": experiment.anywhere(job.experiment.to_dict()), "device": "cuda"}
    (folder / store.HEADER).write_text(json.dumps({**header, "gpu": "A GPU", "clients": 10}))
    n = rounds or job.experiment.rounds
    rows = [
        made_runs.row(t, accuracy * min(1.0, 0.5 + t / n), cost, bytes_up, bytes_down=bytes_down, clients=CLIENTS)
        for t in range(1, n + 1)
    ]
    (folder / store.ROUNDS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / f"checkpoint-{n:05d}-00000000.safetensors").touch()
    return folder


# accuracy in %, Σc a client and round in 10³, bytes up a round, as a function of what is sent
FIGURES = {
    "dense": (80.0, 11_200, 400_000_000, 400_000_000),
    "TopK": (76.0, 130, 4_000_000, 400_000_000),
    "CWMP": (76.2, 65, 3_900_000, 400_000_000),
    "ErrorFeedback(TopK": (79.9, 140, 4_000_000, 400_000_000),
    "ErrorFeedback(CWMP": (79.8, 70, 800_000, 4_000_000),
}


def campaign_of(out, stem, *, seeds=(0, 1, 2), only="", lift=0.0):
    """All runs of one of paper/'s sweeps, at made-up figures."""
    jobs = sweep.plan(experiment.load(ROOT / f"paper/{stem}.toml"), out / stem)
    for job in jobs:
        sends = str(job.experiment.to_dict()["compress"])
        if job.experiment.seed not in seeds or only not in sends:
            continue
        key = max((key for key in FIGURES if sends.startswith(key)), key=len)
        accuracy, cost, up, down = FIGURES[key]
        wobble = 0.2 * job.experiment.seed + (0.05 if "CWMP" in sends else 0.0) * job.experiment.seed + lift
        played(out / stem, job, (accuracy + wobble) / 100, 1e4 * cost, up, bytes_down=down)
    sweep._note(jobs)
    return out / stem


# --- collecting ------------------------------------------------------------------------------------------------------


def test_finished_runs_are_collected_small_and_without_this_machines_folders(tmp_path):
    runs = tmp_path / "runs" / "mine"
    for seed in range(2):
        settings = {"data": {**Experiment().to_dict()["data"], "name": "cifar10", "directory": "/home/me/data"}}
        more = {"ledger": [[0, "train", "modelled", 1.0]], "joules": {"modelled": {"train": 1.0}}, "charge": [1.0]}
        made_runs.write(runs / f"old-{seed}", [0.1, 0.2, 0.3], seed=seed, more=more, **settings)
    made_runs.write(runs / "half", [0.1, 0.2], seed=2, rounds=3, finished=False)
    (runs / "sweep.json").write_text(json.dumps({"old-0": "seed=0", "old-1": "seed=1", "gone": "seed=9"}))
    (runs / "old-0" / "log.txt").write_text("/home/me")
    result = run("collect", runs, "-o", tmp_path / "results")
    assert result.exit_code == 0, result.output
    assert "2 results in" in result.output
    assert re.search(r"left out: .*half: unfinished, 2 of 3 rounds", result.output)
    kept = sorted((tmp_path / "results" / "mine").glob("*/*"))
    assert {file.name for file in kept} == {"header.json", "rounds.jsonl"}
    assert "/home/me" not in "".join(file.read_text() for file in kept)
    found = read([tmp_path / "results"])
    assert [run.state for run in found.runs] == ["finished"] * 2
    assert found.missing == ["seed=9"]
    assert results.fingerprint(found.runs[0]) == found.runs[0].folder.name
    rows = found.runs[0].rows
    assert rows[0]["joules"] == {"modelled": {"train": 1.0}}
    assert "ledger" not in rows[0]
    assert [row["accuracy"] for row in rows] == [0.1, 0.2, 0.3]
    before = [file.read_bytes() for file in kept]
    assert run("collect", runs, "-o", tmp_path / "results").exit_code == 0
    assert [file.read_bytes() for file in kept] == before
    assert run("report", tmp_path / "results", "-o", tmp_path / "page.html").exit_code == 0
    assert "finished" in run("watch", tmp_path / "results", "--once").output


def test_nothing_goes_on_from_a_collected_result(tmp_path):
    made_runs.write(tmp_path / "runs" / "mine" / "a", [0.1])
    run("collect", tmp_path / "runs", "-o", tmp_path / "results")
    [folder] = [file.parent for file in (tmp_path / "results").rglob("header.json")]
    before = (folder / "rounds.jsonl").read_bytes()
    settings = json.loads((folder / "header.json").read_text())["experiment"]
    with pytest.raises(ValueError, match="is a collected result"):
        store.Folder(folder, Experiment.of(settings), {})
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_where_published_data_lie_is_no_part_of_an_experiment(tmp_path):
    here, there = (Experiment.of({"data": {"name": "cifar10", "directory": d}}) for d in ("/a", "/b"))
    assert here.fingerprint == there.fingerprint == Experiment.of({"data": {"name": "cifar10"}}).fingerprint
    own = [Experiment.of({"data": {"name": "mine:data", "directory": d}}) for d in ("/a", "/b")]
    assert own[0].fingerprint != own[1].fingerprint  # of somebody's own data, nobody knows
    with store.Folder(tmp_path / "run", here, {}):
        pass
    with store.Folder(tmp_path / "run", there, {}):  # goes on
        pass
    assert "/a" not in (tmp_path / "run" / store.HEADER).read_text()


# --- what a sweep drew -----------------------------------------------------------------------------------------------


def counter(*said):
    """A meter that says these joules, and then the last again."""
    left = list(said)
    return Meter("fake", lambda: {"GPU 0": left.pop(0) if len(left) > 1 else left[0]}, moves=0.0)


def test_a_session_is_kept_while_it_lasts(tmp_path, monkeypatch):
    file, rounds = tmp_path / "energy.json", {"a": 3, "b": 0}
    monkeypatch.setattr(sessions, "EVERY", 0.0)
    monkeypatch.setattr(sessions, "IN_THE_BACKGROUND", 100.0)
    meters = ([counter(100.0, 130.0, 175.0)], [])

    def until_it_is_stopped():
        with sessions.recorded(file, {"device": "cuda"}, lambda: rounds, meters) as kept:
            rounds["b"] = 2
            kept()
            [row] = sessions.read(file)
            assert (row["joules"], row["runs"]) == (30.0, {"b": [0, 2]})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        until_it_is_stopped()
    [row] = sessions.read(file)
    assert (row["joules"], row["source"], row["by"], row["device"]) == (75.0, "fake", {"GPU 0": 75.0}, "cuda")
    with sessions.recorded(file, {}, lambda: rounds, ([], [NoMeter("nvml: no driver")])):
        pass
    told = sessions.read(file)[1]
    assert (told["joules"], told["source"], told["note"]) == (None, None, "nvml: no driver")
    assert sessions.total(sessions.read(file)).unmeasured == 1


def test_a_damaged_file_of_sessions_is_named(tmp_path):
    (tmp_path / "energy.json").write_text('{"started"')
    with pytest.raises(ValueError, match=r"energy\.json is damaged"):
        sessions.read(tmp_path / "energy.json")


# --- what is expected ------------------------------------------------------------------------------------------------


def small(tmp_path, *, lift=0.0, seeds=(0, 1, 2), name="runs"):
    return campaign_of(tmp_path / name, "cifar10-resnet18", lift=lift, seeds=seeds, only="CWMP")


def test_a_reproduction_is_compared_and_a_miss_is_an_exit_code(tmp_path):
    file = tmp_path / "expected.toml"
    first = run("compare", small(tmp_path), "--expected", file, "--write")
    assert first.exit_code == 0, first.output
    assert len(expected.load(file)) == 6
    assert expected.load(file) == expected.of(read([tmp_path / "runs"]))  # as it was written, so it is read
    again = run("compare", small(tmp_path, lift=0.3, name="again"), "--expected", file)
    assert again.exit_code == 0, again.output
    assert "all 24 figures are as expected" in again.output
    worse = run("compare", small(tmp_path, lift=-3.0, name="worse"), "--expected", file)
    assert worse.exit_code == 1
    assert "6 of 24 figures are outside their tolerance" in worse.output
    assert re.search(r"accuracy +73\.\d+ %, expected +76\.\d+ % ± .* points: MISSED", worse.output)


def test_what_is_missing_or_partly_run_is_said(tmp_path):
    file = tmp_path / "expected.toml"
    run("compare", small(tmp_path), "--expected", file, "--write")
    out = tmp_path / "some" / "cifar10-resnet18"
    jobs = sweep.plan(experiment.load(ROOT / "paper/cifar10-resnet18.toml"), out)
    jobs = {job.label: job for job in jobs}
    one = jobs["compress=CWMP(density=0.01, cost=LayerType()) seed=0"]
    played(out, one, 0.762, 65e4, 3_900_000, bytes_down=400_000_000)
    half = jobs["compress=CWMP(density=0.1, cost=LayerType()) seed=1"]
    played(out, half, 0.762, 65e4, 3_900_000, rounds=12, finished=False)
    result = run("compare", out, "--expected", file)
    assert result.exit_code == 0, result.output
    assert "all 4 figures are as expected" in result.output
    assert "compared without seeds [1, 2]: cifar10-resnet18: CWMP(density=0.01" in result.output
    assert re.search(r"partly run, not compared: .*density=0\.1, .*seed 1: 12 of 50 rounds", result.output)
    assert re.search(r"missing: cifar10-resnet18: CWMP\(density=0\.2", result.output)
    other = made_runs.write(tmp_path / "other" / "a", [0.1, 0.2])
    nothing = run("compare", other, "--expected", file)
    assert nothing.exit_code == 2
    assert "nothing was compared" in nothing.output


def test_a_tolerance_is_a_prediction_interval(tmp_path):
    for seed, accuracy in enumerate((0.70, 0.71, 0.72)):
        made_runs.write(tmp_path / "s" / f"a{seed}", [accuracy], seed=seed)
    [made] = expected.of(read([tmp_path]))
    figure = expected.FIGURES[0]
    assert made.figures["accuracy"].spread == pytest.approx(0.01)
    assert made.t == pytest.approx(9.925, abs=0.01)  # Student's, 2 degrees of freedom, 99 %
    assert made.tolerance(figure, 1) == pytest.approx(9.925 * 0.01 * (1 / 3 + 1) ** 0.5, rel=2e-3)
    assert made.tolerance(expected.FIGURES[1], 3) == pytest.approx(0.002 * 1000)  # all the same: what rounding may move
    alone = replace(made, t=None)
    assert alone.tolerance(figure, 1) is None


def test_one_seed_alone_is_not_judged(tmp_path):
    file = tmp_path / "e.toml"
    made_runs.write(tmp_path / "s" / "a", [0.5])
    run("compare", tmp_path / "s", "--expected", file, "--write")
    result = run("compare", tmp_path / "s", "--expected", file)
    assert result.exit_code == 0
    assert "one seed: nothing could be judged" in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = ", "is not TOML"),
        ("", "expects nothing: it has no [[configuration]]"),
        ("[[configuration]]\nsweep = 'a'\n", "a [[configuration]] lacks 'experiment'"),
        ("[[configuration]]\nexperiment = {rounds = 'x'}\n", "rounds must be a whole number"),
    ],
)
def test_a_file_that_expects_nothing_is_refused(tmp_path, text, said):
    made_runs.write(tmp_path / "s" / "a", [0.5])
    (tmp_path / "e.toml").write_text(text)
    result = run("compare", tmp_path / "s", "--expected", tmp_path / "e.toml")
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")


def test_what_is_committed_as_expected_is_what_the_results_give(tmp_path):
    file = ROOT / "paper/expected.toml"
    if not any((ROOT / "results").glob("*/*/header.json")):
        assert not file.exists()
        return
    expected.write(expected.of(read([ROOT / "results"])), tmp_path / file.name)
    assert file.read_text() == (tmp_path / file.name).read_text(), "joulegrad compare results --write"


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_true_of_nothing(scripts, tmp_path):
    c = scripts.campaign.Campaign(tmp_path / "none", ROOT / "paper")
    told = {marker: make() for marker, make in scripts.tables.blocks(c)}
    assert "- `cifar10-resnet18`: all 39" in told["results: what there is"]
    assert "There are no runs yet" in told["results: what there is"]
    assert told["results: what was asked"].count("not known: no 3 seeds of both") == 3
    assert "not run" in told["results: the paper beside ours"]
    assert "Not measured" in told["results: energy"]
    assert "<img" not in "".join(told.values())
    assert list(scripts.campaign.stale(c, tmp_path)) == []


def whole(tmp_path):
    """Both sweeps, but for one run and one way."""
    folder = tmp_path / "results"
    for stem in ("cifar10-resnet18", "cifar10-vgg11"):
        campaign_of(folder, stem)
    lost = [
        job for job in sweep.plan(experiment.load(ROOT / "paper/cifar10-resnet18.toml"), folder / "cifar10-resnet18")
        if "TopK(density=0.2)" in job.label or ("TopK(density=0.05)" in job.label and job.experiment.seed == 1)
    ]  # fmt: skip
    for job in lost:
        for file in job.folder.iterdir():
            file.unlink()
        job.folder.rmdir()
    return folder


def test_the_page_shows_what_is_here_and_names_what_is_not(scripts, tmp_path):
    folder = whole(tmp_path)
    now = {"started": "2026-11-19T10:00:00+00:00", "seconds": 3600.0, "source": "nvml"}
    (folder / "cifar10-resnet18" / "energy.json").write_text(json.dumps([now | {"joules": 1.8e6, "runs": {}}]))
    (folder / "cifar10-vgg11" / "energy.json").write_text(json.dumps([now | {"joules": 1.8e6, "runs": {}}]))
    c = scripts.campaign.Campaign(folder, ROOT / "paper")
    told = {marker: make() for marker, make in scripts.tables.blocks(c)}
    there = told["results: what there is"]
    assert "- `cifar10-resnet18`: `TopK(density=0.05)`, seeds 1" in there
    assert "- `cifar10-resnet18`: `TopK(density=0.2)`, seeds 0, 1, 2" in there
    assert "GPU A GPU" in there
    beside = told["results: the paper beside ours"]
    assert re.search(r"energy, CWMP, 1 % \| 0\.06 · 10⁶ units \| 0\.0650 ± 0\.0000 · 10⁶, 3 seeds", beside)
    assert re.search(r"energy, Top-K over CWMP, 1 % \| × 1\.48 \| × 2\.000", beside)
    assert re.search(r"accuracy, Top-K, 20 % \| 67\.65 % \| not run", beside)
    assert "seed 0: 22" in beside.replace("\n", " ")  # 0.762 · (0.5 + t / 50) ≥ 0.7
    asked = told["results: what was asked"].splitlines()
    assert re.search(r"at least 40 % \(aim: 60 %\) \| 50\.0 %: .*CWMP.* points \| none", asked[2])
    assert re.search(
        r"at least 400 × \(aim: 1,000 ×\) \| none at equal accuracy \| missed", asked[3]
    )  # 76 % against 80 %
    paired = told["results: ResNet-18, paired"]
    assert re.search(r"CWMP, density=0\.01 \| \+0\.25 \(.* \| \+0\.20, \+0\.25, \+0\.30 \| -50\.0 %", paired)
    assert "fewer than 3 seeds" in paired  # at 5 %
    energy = told["results: energy"]
    assert "| `cifar10-vgg11` | 1 | 0 | 1.00 | 0.500 | 500 |" in energy
    assert "| all | 2 | 0 | 1.00 | 0.500 | 500 |" in energy  # at the same time on one device: once
    assert "overlapped for 60.0 minutes" in energy


def test_a_trained_reading_is_counted_as_it_comes_nearest(scripts, tmp_path):
    folder = tmp_path / "results"
    for job in sweep.plan(experiment.load(ROOT / "paper/cifar10-readings.toml"), folder / "cifar10-readings"):
        e = job.experiment
        small = {"lenet": 1 / 50, "mcmahan_cnn": 1.2}.get(e.model.rpartition(":")[2], 1.0)
        cost = small * (0.90e6 if "TopK" in str(e.compress) else 0.63e6)  # of ten clients
        played(folder / "cifar10-readings", job, 0.65, cost, 1000)
    told = scripts.tables.trained_readings(scripts.campaign.Campaign(folder, ROOT / "paper"))
    assert "| `fedavg_cnn_padded` | CWMP, density=0.01 | 3 seeds | 65.00 ± 0.00 % | 64.56 % | 0.0630 ± 0.0000 |" in told
    assert "| `fedavg_cnn_padded` | a client and round | 0.0630 | 0.0900 | × 1.43 | 5 % |" in told
    assert "| `lenet` | a client's 50 rounds | 0.0630 | 0.0900 | × 1.43 | 5 % |" in told
    assert "| `mcmahan_cnn` | a client and round | 0.0756 | 0.1080 | × 1.43 | 26 % |" in told


def test_other_sweeps_of_the_same_network_are_the_frontier(scripts, tmp_path):
    paper = tmp_path / "paper"
    paper.mkdir()
    for name in ("cifar10-resnet18.toml", "reported.toml"):
        (paper / name).write_text((ROOT / "paper" / name).read_text())
    text = (ROOT / "paper/cifar10-resnet18.toml").read_text()
    head = text.partition("[sweep]")[0].replace("rounds = 50", "rounds = 50\ndownlink = 'delta'")
    made = f"{head}[sweep]\ncompress = ['ErrorFeedback(CWMP(density=0.01, cost=LayerType()))']\nseed = [0, 1, 2]\n"
    (paper / "frontier-a.toml").write_text(made)
    folder = tmp_path / "results"
    campaign_of(folder, "cifar10-resnet18", only="dense")
    for job in sweep.plan(experiment.load(paper / "frontier-a.toml"), folder / "frontier-a"):
        played(folder / "frontier-a", job, 0.797 + 0.002 * job.experiment.seed, 7e5, 800_000, bytes_down=4_000_000)
    c = scripts.campaign.Campaign(folder, paper)
    asked = {marker: make() for marker, make in scripts.tables.blocks(c)}["results: what was asked"].splitlines()
    way = r"ErrorFeedback\(CWMP\); downlink=delta, density=0\.01, accuracy -0\.30 points"
    assert re.search(rf"at least 400 × \(aim: 1,000 ×\) \| 500 ×: {way} \| none", asked[3])
    assert re.search(rf"at least 100 × \| 167 ×: {way} \| none", asked[4])


def test_bytes_that_are_few_but_cost_accuracy_are_a_miss_that_says_how_near(scripts, tmp_path):
    folder = tmp_path / "results"
    campaign_of(folder, "cifar10-resnet18", only="dense")
    for job in sweep.plan(experiment.load(ROOT / "paper/cifar10-resnet18.toml"), folder / "cifar10-resnet18"):
        if "CWMP(density=0.1," in job.label:
            played(folder / "cifar10-resnet18", job, 0.79, 7e5, 800_000, bytes_down=400_000_000)
    asked = scripts.tables.asked(scripts.campaign.Campaign(folder, ROOT / "paper")).splitlines()[3]
    assert "| none at equal accuracy; the most accurate with as few: 500 ×: CWMP, density=0.1, accuracy -1.20" in asked
    assert asked.endswith("points | missed |")


def test_figures_are_drawn_and_a_stale_one_is_noticed(scripts, tmp_path):
    folder, pictures = whole(tmp_path), tmp_path / "pictures"
    c = scripts.campaign.Campaign(folder, ROOT / "paper")
    drawn = scripts.figures.draw(c, pictures)
    assert {path.name for path in drawn} == set(scripts.campaign.figures(c))
    assert len(drawn) == 8
    assert list(scripts.campaign.stale(c, pictures)) == []
    first = [path.read_bytes() for path in drawn]
    assert first == [path.read_bytes() for path in scripts.figures.draw(c, pictures)]
    one = sweep.plan(experiment.load(ROOT / "paper/cifar10-vgg11.toml"), folder / "cifar10-vgg11")[0]
    (one.folder / "rounds.jsonl").write_text((one.folder / "rounds.jsonl").read_text().replace("0.8", "0.7"))
    other = scripts.campaign.Campaign(folder, ROOT / "paper")
    assert len(list(scripts.campaign.stale(other, pictures))) == 8


def test_the_papers_numbers_stand_in_the_paper(scripts):
    reported = scripts.tables._reported(scripts.campaign.Campaign())
    keys = [number["key"] for number in reported["number"]]
    assert len(set(keys)) == len(keys)
    assert {key for each in reported["contradiction"] for key in each["between"]} <= set(keys)
    papers = [file for above in ROOT.parents for file in (above / "shared" / "paper").glob("*.txt")]
    if not papers:
        pytest.skip("the paper's source is not beside this checkout")
    text = papers[0].read_text()
    for number in reported["number"]:
        assert number["words"] in text, number["key"]


def test_readings_are_bounded_by_what_can_be_chosen(scripts):
    described, *others = scripts.readings.networks()
    assert (described.entries, described.classifier) == (11_173_962, 5_130)
    sized = {network.name: network for network in others}
    assert sized["the same, 1,000 classes"].classifier == 513_000
    assert sized["CNN 32-64, 512, padded"][1:] == (2_156_490, 2_102_794)
    found = scripts.readings.readings()
    own = [reading for reading in found if reading.network == described]
    assert min(reading.error for reading in own) > 0.5
    assert all(reading.ratio < 1.19 for reading in own if reading.counting.dear == 5.0)  # in any unit less than 1.48
    plain = [r.network.name for r in found if r.error == 0 and r.counting == scripts.readings.COUNTINGS[0]]
    assert plain == ["CNN 32-64, 512, padded", "CNN 64-64, 384-192"]  # as the page's text says


# --- all of it, played -----------------------------------------------------------------------------------------------


def test_the_papers_sweep_goes_the_whole_way_when_it_is_small(cifar10, scripts, tmp_path, monkeypatch):
    def command(*arguments):
        found = run(*arguments)
        assert found.exit_code == 0, found.output
        return found.output

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the runs' own processes

    sets = [
        "model=logistic", "rounds=2", "precision=float32", f"data.directory={cifar10}", "data.train_examples=400",
        "data.test_examples=200", "sweep.seed=[0, 1]",
        'sweep.compress=["dense", "CWMP(density=0.1, cost=LayerType())"]',
    ]  # fmt: skip
    options = [part for text in sets for part in ("--set", text)]
    runs = tmp_path / "runs" / "cifar10-resnet18"
    command("sweep", ROOT / "paper/cifar10-resnet18.toml", "--out", runs, "--at-once", 2, "--workers", 1, *options)
    command("collect", runs, "-o", "results")
    command("report", "results", "-o", "page.html")
    command("compare", "results", "--write", "--expected", "expected.toml")
    told = command("compare", runs, "--expected", "expected.toml")
    assert "all 8 figures are as expected" in told
    kept = [file.read_text() for file in (tmp_path / "results").rglob("*") if file.is_file()]
    assert not any(str(cifar10) in text or str(tmp_path) in text for text in kept)
    [session] = sessions.read(tmp_path / "results/cifar10-resnet18/energy.json")
    assert sorted(session["runs"].values()) == [[0, 2]] * 4
    assert (session["joules"] is None) == bool(session["source"] is None or session["note"])
    c = scripts.campaign.Campaign(tmp_path / "results", ROOT / "paper")
    there = scripts.tables.coverage(c)
    assert "| `paper/cifar10-resnet18.toml` | 39 | 0 | 4 |" in there  # others than the paper's, since smaller
    assert len(scripts.figures.draw(c, tmp_path / "pictures")) == 6
