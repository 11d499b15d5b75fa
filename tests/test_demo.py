"""What `joulegrad demo` plays, shows and draws; and whether what it says is so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image
from typer.testing import CliRunner

from joulegrad.cli import app
from joulegrad.lab import demo, pictures
from joulegrad.lab.simulate import Simulation


@pytest.fixture(scope="module")
def small():
    """The demo, but for two rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "BASE", replace(demo.BASE, rounds=2))
        yield


@pytest.fixture(scope="module")
def shown(small, tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return out, {
        w: CliRunner().invoke(app, ["demo", "--out", str(out)], env={"COLUMNS": str(w)}) for w in (80, 60, 160)
    }


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_and_has_every_way(shown, width):
    result = shown[1][width]
    assert result.exit_code == 0, result.output
    table = [line for line in result.output.splitlines() if not line.startswith("picture: ")]
    assert max(len(line.rstrip()) for line in table) <= width
    flat = " ".join(result.output.split())
    for words in ("everything", "Top-K", "BudgetedCWMP", "× fewer", "seed 0", "One seed", "Energy is modelled"):
        assert words in flat
    if width > 60:
        assert "ErrorFeedback(1-bit CWMP)" in flat


def test_what_was_played_before_is_said_to_be(shown):
    _, results = shown
    assert "was played before" not in results[80].output
    assert "was played before" in results[160].output


def test_the_pictures_are_where_they_are_said_to_be(shown):
    out, results = shown
    paths = [line.removeprefix("picture: ") for line in results[60].output.splitlines() if "picture: " in line]
    assert paths == [str(out / "accuracy-by-bytes.png"), str(out / "accuracy-by-energy.png")]
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) > 500
            colours = {pixel for _, pixel in image.convert("RGB").getcolors(2**24)}
        drawn = {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in pictures.COLOURS[: len(demo.WAYS)]}
        assert drawn <= colours


def test_the_figures_are_those_of_plain_runs(small, tmp_path):
    results = demo.play(tmp_path, seed=3, workers=1)
    assert [result.name for result in results] == list(demo.WAYS)
    dense, topk, cwmp, budgeted, feedback = results
    with Simulation(replace(demo.BASE, compress=demo.WAYS["CWMP"], seed=3), workers=1) as simulation:
        rows = list(simulation)
    assert cwmp.accuracy == rows[-1]["accuracy"]
    assert cwmp.megabytes == sum(row["bytes_up"] for row in rows) / 1e6
    assert cwmp.cost == sum(row["cost"] for row in rows)
    # 10 clients, 2 rounds
    assert dense.cost == 5 * 71_178 * 20 + (79_754 - 71_178) * 20
    for way in (topk, cwmp, feedback):
        assert sum(row["entries"] for row in way.rows) == int(0.02 * 79_754) * 20
    assert budgeted.cost <= round(0.75 * topk.cost / 20) * 20
    assert cwmp.cost < budgeted.cost < topk.cost
    assert feedback.megabytes < 0.25 * cwmp.megabytes


def test_a_line_without_evaluations_is_left_out(tmp_path):
    rows = [{"accuracy": None, "cost": 1.0}, {"accuracy": None, "cost": 2.0}]
    pictures.against({"never": rows, "once": [{"accuracy": 0.5, "cost": 1.0}]}, "cost", "cost", tmp_path / "it.svg")
    drawn = (tmp_path / "it.svg").read_text()
    assert ">once<" in drawn.replace("<!-- once -->", ">once<")
    assert "<!-- never -->" not in drawn
