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


def test_a_calibration_is_shown(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    prediction = {"name": "scatter", "seconds": 2.0, "measured": 20.0, "measured_error": 1.0, "predicted": 22.0,
                  "low": 21.0, "high": 24.0, "error": 0.1, "by_busy_watts": 30.0}  # fmt: skip
    told = {
        "header": {"device": "A board", "date": "2026-11-19T20:00:00", "meter": "rapl", "precision": "float32",
                   "torch": "2.13"},
        "windows": [{"seconds": 2.0}, {"seconds": 2.5}],
        "coefficients": {
            "rest s": {"value": 5.0, "low": 4.9, "high": 5.1, "unit": "W", "why_not": ""},
            "FLOP": {"value": None, "low": 0.0, "high": 7.0, "unit": "pJ/FLOP", "why_not": "below"},
        },
        "predictions": [prediction, prediction | {"by_busy_watts": 10.0}],
    }  # fmt: skip
    (tmp_path / "calibrate-board.json").write_text(json.dumps(told))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    shown = tables.calibrations()
    assert "**A board**, 2026-11-19, by `rapl`, float32: 2 windows of 2 to 2.5 s" in shown
    assert "| rest s | 5 W | 4.9 to 5.1 |" in shown
    assert "| FLOP | not told from noise | < 7 pJ/FLOP |" in shown
    assert "| scatter | 10 ± 0.5 W | 11 ± 1 W | +10.0 % | +0 % |" in shown


def test_an_aim_that_is_missed_is_said_to_be(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    slow = tables.Aim("a over b", 4, False, {"1 %": 4.0, "5 %": 4.01})
    assert slow.line() == "| a over b | at most 4 | 4 to 4.01 | 4.01 at 5 % |"
    fast = tables.Aim("a over b", 4, True, {"1 %": 4.0, "5 %": 4.01})
    assert fast.line() == "| a over b | at least 4 | 4 to 4.01 | none |"


def test_what_a_gpu_measured_is_shown_as_far_as_it_came(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.on_a_gpu().startswith("Not measured")
    head = {"date": "2026-11-19T21:00", "gpu": "A GPU", "cpu": "A CPU", "cores": 16, "python": "3.12", "torch": "2.11"}
    head |= {"triton": "3.6", "numba": "0.6", "cuda": "13.0", "repeats": 5, "entries": 1_000_000}
    methods = {"CWMP": 1e-4, "torch.topk": 3.2e-4, "one reading": 2e-5, "one reading, as a graph": 1e-6}
    rows = [{"case": {"input": "update", "density": 0.01}, "method": m, "seconds": t} for m, t in methods.items()]
    rows += [{"case": {"input": "two budgets", "density": 0.2}, "method": "CWMP", "seconds": 2e-4}]
    found = {"header": head, "checks": [{"cases": 7, "different": 0}, {"cases": 5, "different": 1}], "rows": rows}
    (tmp_path / "select_gpu.json").write_text(json.dumps(found))
    shown = tables.on_a_gpu()
    assert "12 times, and differed 1 times" in shown
    assert "1 µs (4,000 GB/s)" in shown
    assert "| update: torch.topk | 320 (3.2) | — |" in shown
    assert "| two budgets: CWMP | — | 200 |" in shown


def test_a_picture_of_other_results_is_noticed(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    assert tables.main() == 0
    (tmp_path / "select.json").write_text((ROOT / "benchmarks/results/select.json").read_text() + "\n")
    names = ("wire", "demo", "pareto", "sensitivity", "simulate", "simulate_gpu", "many_clients")
    for name in (f"{name}.json" for name in names):
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
