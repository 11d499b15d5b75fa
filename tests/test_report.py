"""Reports of runs written by hand: what is compared with what, what is missing, what is shown."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import made_runs
import pytest
from PIL import Image
from typer.testing import CliRunner

from joulegrad.cli import app
from joulegrad.lab import report, sweep
from joulegrad.lab.report import papers
from joulegrad.lab.report.content import content
from joulegrad.lab.report.runs import read
from joulegrad.lab.report.ways import settings


@pytest.fixture
def runs(tmp_path):
    return made_runs.small_sweep(tmp_path / "runs")


def made(*paths: Path, **options):
    return content(read(paths), **options)


def rows(found, axis="units"):
    return {row["way"]: row for row in found["settings"][0]["table"][axis]}


def test_seeds_make_a_way_and_densities_a_family(runs):
    (group,) = settings(read([runs]).runs)
    assert group.families == ["TopK", "CWMP"] or set(group.families) == {"TopK", "CWMP"}
    assert {way.name: [run.seed for run in way.runs] for way in group.ways} == {
        f"{family}, density={density}": [0, 1, 2] for family in ("TopK", "CWMP") for density in (0.01, 0.1)
    }


def test_other_data_are_another_setting_and_other_rates_another_family(tmp_path):
    for n, (alpha, lr) in enumerate([(0.1, 0.05), (0.1, 0.5), (1.0, 0.05)]):
        made_runs.write(
            tmp_path / str(n), [0.5], partition=f"Dirichlet(clients=2, alpha={alpha})", local={"lr": lr}, seed=n
        )
    first, second = settings(read([tmp_path]).runs)
    assert (first.name, second.name) == tuple(f"partition=Dirichlet(clients=2, alpha={a})" for a in (0.1, 1.0))
    assert first.families == ["TopK local.lr=0.05", "TopK local.lr=0.5"]


def test_names_keep_what_distinguishes(tmp_path):
    for n, compress in enumerate([
        "CWMP(density=0.1, cost=LayerType(classifier=5.0))", "CWMP(density=0.1, cost=LayerType(classifier=50.0))",
        "ErrorFeedback(TopK(k=5))", "BudgetedCWMP(density=0.1, cost=LayerType(), joules=7.0)", "dense",
        ["TopK(k=5)", "TopK(k=9)"], "mine.Odd(what='ever', n=3)", "not python (",
    ]):  # fmt: skip
        made_runs.write(tmp_path / str(n), [0.5], compress=compress)
    assert [way.name for way in settings(read([tmp_path]).runs)[0].ways] == [
        "CWMP(cost=LayerType(classifier=5.0)), density=0.1", "CWMP(cost=LayerType(classifier=50.0)), density=0.1",
        "ErrorFeedback(TopK), k=5", "BudgetedCWMP, density=0.1, joules=7.0", "everything", "TopK, k=5, k=9",
        "mine.Odd(what='ever', n=3)", "not python (",
    ]  # fmt: skip


def test_at_equal_accuracy_half_the_cost_and_at_equal_cost_more_accuracy(runs):
    row = rows(made(runs))["CWMP, density=0.1"]
    assert row["baseline"] == "TopK, density=0.1"
    assert row["accuracy"][0] == pytest.approx(0.81)
    assert row["spent"] == pytest.approx([2000, 2000, 2000, 3])
    both = row["at_accuracy"]["both"]
    assert both["target"] == pytest.approx(0.8)  # the least of the six runs' best
    # the runs reach 0.80 at rounds 4, 4 and 4 (0.70 + 0.01 + 0.1 is the first above)
    assert (both["ours"], both["theirs"]) == (2000, 4000)
    assert both["interval"] == pytest.approx([0.5, 0.5, 0.5, 3])
    # within 2000 units Top-K has played two rounds, CWMP four: 0.8 − 0.6
    assert row["at_cost"]["budget"] == 2000
    assert row["at_cost"]["interval"] == pytest.approx([0.2, 0.2, 0.2, 3])
    assert row["verdict"] == "costs less; more accurate"
    assert rows(made(runs))["TopK, density=0.1"]["same"]


def test_in_bytes_they_are_alike(runs):
    row = rows(made(runs), "bytes_up")["CWMP, density=0.01"]
    assert row["at_accuracy"]["both"]["interval"][:3] == pytest.approx([1, 1, 1])
    assert row["at_cost"]["interval"][:3] == pytest.approx([0, 0, 0])
    assert row["verdict"] == "cost within chance; accuracy within chance"


def test_an_accuracy_that_few_reach_says_so(runs):
    found = made(runs)
    assert found["settings"][0]["targets"] == [0.72, 0.74, 0.76, 0.78, 0.8, 0.82]  # the best run's best at the end
    at = rows(found)["CWMP, density=0.01"]["at_accuracy"]["0.8"]
    assert (at["reached"], at["ours"], at["interval"]) == ([0, 3, 0, 3], None, None)


def test_another_baseline(runs):
    found = made(runs, against="CWMP")
    assert rows(found)["TopK, density=0.1"]["at_accuracy"]["both"]["interval"][0] == pytest.approx(2)
    with pytest.raises(ValueError, match="no runs are called 'CWPM'; did you mean 'CWMP'"):
        made(runs, against="CWPM")


def test_the_front_and_the_volumes(runs):
    (group,) = made(runs)["settings"]
    assert [group["ways"][at]["name"] for at in group["fronts"]["units"]] == ["CWMP, density=0.01", "CWMP, density=0.1"]
    volumes = {each["family"]: each for each in group["volumes"]["units"]}
    assert volumes["CWMP"]["lead"][0] > 0
    assert volumes["TopK"]["lead"] is None
    assert volumes["CWMP"]["ways"] == 2


def test_one_seed_has_no_interval(tmp_path):
    made_runs.write(tmp_path / "a", [0.5, 0.6])
    made_runs.write(tmp_path / "b", [0.5, 0.7], compress="CWMP(density=0.1, cost=LayerType())")
    row = rows(made(tmp_path))["CWMP, density=0.1"]
    assert row["accuracy"] == [0.7, None, None, 1]
    assert row["verdict"] == "one seed: no verdict"


def test_a_ledger_becomes_joules_and_none_stays_none(tmp_path):
    joules = {"coded": {"uplink": 0.5, "downlink": 1.0}, "modelled": {"train": 2.0}, "measured": {"train": None}}
    made_runs.write(tmp_path / "with", [0.5, 0.6], more={"joules": joules})
    found = made(tmp_path)
    (way,) = found["settings"][0]["ways"]
    assert way["end"]["uplink_joules"]["mean"] == 1.0
    assert "all_joules" not in way["end"]  # a part is not known
    assert {(line["phase"], line["source"]): line["joules"] for line in way["ledger"]} == {
        ("uplink", "coded"): 1.0, ("downlink", "coded"): 2.0, ("train", "modelled"): 4.0, ("train", "measured"): None,
    }  # fmt: skip
    made_runs.write(
        tmp_path / "known",
        [0.4, 0.5],
        compress="dense",
        more={"joules": {"coded": {"uplink": 0.5}, "modelled": {"train": 2.0}}},
    )
    (dense,) = [way for way in made(tmp_path)["settings"][0]["ways"] if way["name"] == "everything"]
    assert (dense["end"]["all_joules"]["mean"], dense["sending"]) == (5.0, 0.2)
    made_runs.write(
        tmp_path / "twice",
        [0.4, 0.5],
        compress="TopK(k=3)",
        more={"joules": {"measured": {"train": 1.0}, "modelled": {"train": 2.0}}},
    )
    (twice,) = [way for way in made(tmp_path)["settings"][0]["ways"] if way["name"] == "TopK, k=3"]
    assert "all_joules" not in twice["end"]  # the same work, said twice
    made_runs.write(tmp_path / "without", [0.5, 0.6], compress="TopK(density=0.2)")
    ways = {way["name"]: way for way in made(tmp_path)["settings"][0]["ways"]}
    assert ways["TopK, density=0.2"]["ledger"] is None
    assert "uplink_joules" not in ways["TopK, density=0.2"]["end"]


def test_without_a_ledger_it_says_so(runs):
    axes = {axis["key"]: axis["absent"] for axis in made(runs)["axes"]}
    assert axes["units"] is axes["bytes_up"] is None
    assert "not measured or configured" in axes["uplink_joules"]


def test_bits_starvation_and_data(runs):
    found = made(runs)
    way = found["settings"][0]["ways"][0]
    assert way["bits"]["index"] == 2.0  # 8 · 20 / 80
    assert way["bits"]["value"] == 32.0
    assert way["bits"]["bound"] == 2.5
    assert way["layers"]["names"] == ["conv.weight", "fc.weight"]
    assert way["layers"]["never"] == ["fc.weight"]
    assert way["layers"]["starved"] == [1, 1, 1, 1]
    assert way["layers"]["density"] == [[0.044] * 4, [0.0] * 4]
    assert found["settings"][0]["data"]["counts"] == [[30, 10], [0, 60]]


def test_long_runs_are_thinned_and_keep_their_ends(tmp_path):
    made_runs.write(tmp_path / "long", [min(0.001 * t, 0.9) if t % 2 else None for t in range(1, 2001)])
    (way,) = made(tmp_path)["settings"][0]["ways"]
    assert len(way["rounds"]) == 300
    assert (way["rounds"][0], way["rounds"][-1]) == (1, 1999)
    assert len(way["layers"]["rounds"]) <= 80
    assert way["layers"]["rounds"][0][0] == 1
    assert way["layers"]["rounds"][-1][1] == 2000
    assert way["spent"]["units"][-1] == 199_900


# --- what is not whole ---------------------------------------------------------------------------------------------


def test_half_a_sweep_reports_what_it_has_and_says_what_is_missing(runs):
    made_runs.write(
        runs / "half", [0.4, 0.5], rounds=4, finished=False, compress="ErrorFeedback(TopK(density=0.1))", seed=0
    )
    (runs / "begun").mkdir()
    (runs / "begun" / "experiment.json").write_text("{}")
    (runs / "begun" / sweep.LOG).write_text("one\nmodel: 'resnet' is not known\n")
    (runs / sweep.PLAN).write_text(json.dumps({"half": "compress=EF", "later": "compress=Later seed=1"}))
    found = read([runs])
    assert [(run.folder.name, run.state) for run in found.unfinished] == [("half", "unfinished")]
    assert found.missing == ["compress=Later seed=1"]
    assert found.begun == [(runs / "begun", "model: 'resnet' is not known")]
    ways = {way["name"]: way for way in content(found)["settings"][0]["ways"]}
    half = ways["ErrorFeedback(TopK), density=0.1"]
    assert (half["finished"], half["rounds_played"], half["rounds_asked"]) == (False, [2], 4)
    assert half["end"]["accuracy"]["mean"] == 0.5
    assert "ErrorFeedback(TopK), density=0.1" not in [
        content(found)["settings"][0]["ways"][at]["name"] for at in content(found)["settings"][0]["fronts"]["units"]
    ]


def test_an_unfinished_seed_waits_for_the_others(runs):
    made_runs.write(runs / "late", [0.1], rounds=4, finished=False, compress="TopK(density=0.1)", seed=9)
    ways = {way["name"]: way for way in made(runs)["settings"][0]["ways"]}
    assert (ways["TopK, density=0.1"]["seeds"], ways["TopK, density=0.1"]["left_out"]) == ([0, 1, 2], 1)


def test_broken_folders_are_named_and_the_others_shown(runs):
    for name, text in (("torn", "{"), ("list", "[]"), ("empty", "{}"), ("rounds", '{"experiment": {}}')):
        (runs / name).mkdir()
        (runs / name / "header.json").write_text(text)
    strange = made_runs.write(runs / "strange", [0.5])
    (strange / "rounds.jsonl").write_text('{"round": 1, "accuracy": 0.5}\n')
    damaged = made_runs.write(runs / "damaged", [0.5, 0.6, 0.7], seed=5)
    lines = (damaged / "rounds.jsonl").read_text().splitlines()
    (damaged / "rounds.jsonl").write_text("\n".join([lines[0], "%%%", lines[2], ""]))
    found = read([runs])
    broken = {folder.name: why for folder, why in found.broken}
    assert set(broken) == {"torn", "list", "empty", "rounds", "strange"}
    assert "is damaged" in broken["torn"]
    assert "'rounds'" in broken["rounds"]
    assert "has no 'bytes_up'" in broken["strange"]
    (run,) = [run for run in found.runs if run.folder.name == "damaged"]
    assert (len(run.rows), run.state) == (1, "unfinished")
    assert run.notes == ("line 2 of rounds.jsonl is damaged; of its 3 rounds, 1 are shown",)
    assert len(found.runs) == 13


def test_the_same_run_twice_counts_once(runs):
    made_runs.write(runs / "again", [0.3, 0.5], compress="TopK(density=0.1)", seed=0, rounds=4, finished=False)
    found = made(runs, runs)
    assert len(found["runs"]) == 13
    assert found["doubles"] == [str(runs / "again")]


def test_nothing_there(tmp_path):
    for path, words in ((tmp_path, "no run lies in"), (tmp_path / "no", "is not there"), (Path(__file__), "is a file")):
        with pytest.raises(ValueError, match=words):
            read([path])


# --- what is written -----------------------------------------------------------------------------------------------


def run(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def embedded(page: Path):
    return json.loads(re.search(r'id="content">(.*?)</script>', page.read_text(), re.DOTALL)[1])


def test_the_page_is_one_small_file_without_a_network(runs, tmp_path):
    page = tmp_path / "out" / "report.html"
    result = run("report", runs, "-o", page, "--title", "<b>Mine</b> & </script>")
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"12 runs in {page}"
    assert page.stat().st_size < 6_000_000
    text = page.read_text()
    assert "<title>&lt;b&gt;Mine&lt;/b&gt; &amp; &lt;/script&gt;</title>" in text
    assert embedded(page)["title"] == "<b>Mine</b> & </script>"
    ours = text.replace(text[text.index("<script>/**") : text.rindex("<script>")], "")
    assert not re.search(r"https?://(?!www\.w3\.org)", ours)
    assert "default-src 'none'" in ours


def test_what_a_user_is_told(runs):
    made_runs.write(runs / "half", [0.4], rounds=4, finished=False, seed=7)
    (runs / "torn").mkdir()
    (runs / "torn" / "header.json").write_text("{")
    (runs / sweep.PLAN).write_text('{"later": "seed=8"}')
    result = run("report", runs, "-o", runs / "r.md")
    assert result.exit_code == 0, result.output
    for words in ("left out: ", "torn", "not finished: 1", "not begun: 1", "13 runs in"):
        assert words in result.output


def test_figures_for_a_paper_are_a_column_wide_and_the_same_each_time(runs, tmp_path):
    for suffix in ("png", "pdf", "svg"):
        written = [tmp_path / n / f"fig-{name}.{suffix}" for n in "ab" for name in ("energy", "rounds")]
        for n in "ab":
            assert run("report", runs, "-o", tmp_path / n / f"fig.{suffix}").exit_code == 0
        assert all(path.exists() for path in written)
        assert written[0].read_bytes() == written[2].read_bytes()
        assert written[1].read_bytes() == written[3].read_bytes()
    with Image.open(tmp_path / "a" / "fig-energy.png") as image:
        assert image.width == 1050  # 3.5 inches at 300 dots an inch


def test_tables_hold_what_the_page_shows(runs, tmp_path):
    for kind in ("csv", "latex", "md"):
        assert run("report", runs, "--format", kind, "-o", tmp_path / "table").exit_code == 0
    with (tmp_path / "table.csv").open() as file:
        found = {line["method"]: line for line in csv.DictReader(file)}
    line = found["CWMP, density=0.1"]
    assert float(line["times_baseline_cost_at_equal_accuracy"]) == pytest.approx(0.5)
    assert float(line["accuracy_gained_at_equal_cost_high"]) == pytest.approx(0.2)
    assert line["verdict"] == "costs less; more accurate"
    assert (
        "| CWMP, density=0.1 | 3 | 81.0 % (78.5 to 83.5) | 2 k (2 k to 2 k) | 2 k | 0.50"
        in (tmp_path / "table.md").read_text()
    )
    tex = (tmp_path / "table.tex").read_text()
    assert r"81.0 \% (78.5 to 83.5)" in tex
    assert tex.count(r"\\") == 5
    assert tex.count("&") == 6 * 5


def test_tex_is_escaped():
    assert papers._tex(r"a_b & 5 % \x") == r"a\_b \& 5 \% \textbackslash{}x"


MISTAKES = [
    ("report nowhere", ["nowhere is not there"]),
    ("report runs -o it.docx", ["a report is written as html, png, pdf, svg, csv, latex, md; got 'it.docx'"]),
    ("report runs --format word", ["a report is written as", "got 'word'"]),
    (
        "report runs --cost euros -o t.md",
        ["a cost is one of units, uplink_joules, all_joules, bytes_up, bytes_both; got 'euros'"],
    ),
    ("report runs --cost uplink_joules -o t.md", ["uplink_joules is not measured or configured"]),
    ("report runs --against TopKK", ["no runs are called 'TopKK'; did you mean 'TopK'?; there are: "]),
    ("report runs --at density=0.5 -o t.pdf", ["no runs are at 'density=0.5'; there are: density=0.01, density=0.1"]),
]


@pytest.mark.parametrize(("typed", "words"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_mistakes(typed, words, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*typed.split())
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.output


def test_without_plotly_it_says_what_to_install(runs, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = run("report", runs, "-o", "never.html")
    assert (result.exit_code, Path("never.html").exists()) == (2, False)
    assert "pip install 'joulegrad[report]'" in result.output


def test_runs_that_have_not_begun_make_a_page_that_says_so(tmp_path):
    (tmp_path / sweep.PLAN).write_text('{"a": "seed=0"}')
    assert run("report", tmp_path, "-o", tmp_path / "r.html").exit_code == 0
    assert embedded(tmp_path / "r.html")["missing"] == ["seed=0"]
    result = run("report", tmp_path, "-o", tmp_path / "r.pdf")
    assert result.exit_code == 2
    assert "nothing to draw" in result.output


def test_real_runs_have_what_a_report_reads(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('rounds = 1\nmodel = "logistic"\n[sweep]\ncompress = ["TopK(k=50)", "ErrorFeedback(TopK(k=50))"]\n')
    assert run("sweep", file, "--out", tmp_path / "grid", "--quiet").exit_code == 0
    found = made(tmp_path / "grid")
    assert [way["name"] for way in found["settings"][0]["ways"]] == ["TopK, k=50", "ErrorFeedback(TopK), k=50"]
    for way in found["settings"][0]["ways"]:
        assert all(way[part] is not None for part in ("bits", "layers", "clients"))
        assert way["end"]["bytes_up"]["mean"] > 0
    assert len(found["settings"][0]["data"]["counts"]) == 10
    assert report.FORMATS["html"] == ".html"
    (tmp_path / "grid" / sweep.PLAN).read_text()
    assert found["missing"] == []
