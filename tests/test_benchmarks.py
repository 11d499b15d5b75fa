"""The docs show what the result files give, and the files keep what the docs promise. Nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WIRE = json.loads((ROOT / "benchmarks/results/wire.json").read_text())
OURS = [row for row in WIRE["rows"] if row["method"] == "joulegrad"]


def name(row):
    return "-".join(str(row[part]) for part in ("model", "rule", "density", "values"))


def test_the_tables_in_the_docs_are_what_the_result_files_give():
    command = [sys.executable, str(ROOT / "benchmarks/tables.py"), "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_page_that_was_changed_by_hand_is_noticed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    text = (ROOT / "docs/wire.md").read_text()
    start = text.index("<!-- begin: benchmarks/wire.json -->")
    assert tables.filled("docs/wire.md", text) == text
    assert tables.filled("docs/wire.md", text[:start] + text[start:].replace("|---|", "|:---|", 1)) == text
    with pytest.raises(ValueError, match="must hold"):
        tables.filled("docs/wire.md", text[:start])


def test_an_aim_that_is_missed_is_said_to_be(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    slow = tables.Aim("a over b", 4, False, {"1 %": 4.0, "5 %": 4.01})
    assert slow.line() == "| a over b | at most 4 | 4 to 4.01 | 4.01 at 5 % |"
    fast = tables.Aim("a over b", 4, True, {"1 %": 4.0, "5 %": 4.01})
    assert fast.line() == "| a over b | at least 4 | 4 to 4.01 | none |"


def test_a_picture_of_other_results_is_noticed(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 0
    (tmp_path / "select.json").write_text((ROOT / "benchmarks/results/select.json").read_text() + "\n")
    for name in ("wire.json", "demo.json", "simulate.json", "many_clients.json"):
        (tmp_path / name).write_text((ROOT / "benchmarks/results" / name).read_text())
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.main() == 1
    assert "docs/pictures/select.svg is not drawn from" in capsys.readouterr().out


def test_the_results_hold_random_and_real_supports():
    assert {row["model"] for row in OURS} == {"resnet18", "vgg11"}
    assert {row["rule"] for row in OURS} == {"random", "TopK", "CWMP", "PerLayer(TopK)", "PerLayer(CWMP)"}
    assert {row["values"] for row in OURS} == {"float32", "1 bit", "8 bit"}
    assert WIRE["header"]["repeats"] >= 7


@pytest.mark.parametrize("row", OURS, ids=name)
def test_indices_keep_the_promised_bound(row):
    assert row["index_bytes"] <= 1.03 * row["entropy_bytes"] + 64 + 4 * row["layers"]
