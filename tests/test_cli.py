from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner
from wire_cases import LAYOUT, sparse

import joulegrad as jg
from joulegrad.cli import app
from joulegrad.lab import doctor


def run(*arguments: object, width: int = 100):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(width)})


@pytest.fixture
def payload(tmp_path):
    file = tmp_path / "update.bin"
    file.write_bytes(jg.encode(sparse(range(0, 1000, 9)), LAYOUT))
    (tmp_path / "layout.json").write_text(LAYOUT.to_json())
    return file


@pytest.mark.parametrize("width", [50, 100, 200])
def test_inspect_shows_header_layers_and_bits(payload, width):
    result = run("inspect", payload, "--layout", payload.with_name("layout.json"), width=width)
    assert result.exit_code == 0, result.output
    assert f"layout {LAYOUT.fingerprint}" in result.output.replace("\n", " ")
    for word in ("conv", "bits/index"):
        assert word in result.output
    assert "112 entries: " in result.output


def test_inspect_with_a_model(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(3, 2)\n")
    monkeypatch.chdir(tmp_path)
    layout = jg.Layout.of(torch.nn.Linear(3, 2))
    (tmp_path / "u.bin").write_bytes(jg.encode(sparse([1], layout=layout), layout))
    assert "weight" in run("inspect", "u.bin", "--model", "mine:net").output
    for wrong in ("mine:nothing", "nowhere:net", "mine", ""):
        result = run("inspect", "u.bin", "--model", wrong)
        assert result.exit_code == 2, result.output
        assert "expected module:callable" in result.output.replace("\n", " ")


def test_inspect_without_a_layout_reads_the_header(payload):
    result = run("inspect", payload)
    assert result.exit_code == 0
    assert "give --layout or --model" in result.output


def test_inspect_says_what_is_wrong_and_where(payload):
    whole = payload.read_bytes()
    payload.write_bytes(whole[:-3])
    result = run("inspect", payload, "--layout", payload.with_name("layout.json"))
    assert result.exit_code == 1
    assert f"Truncated at byte {len(whole) - 3}: the payload says it has {len(whole)} bytes" in result.output
    payload.write_bytes(b"nonsense")
    assert "NotAPayload at byte 0" in run("inspect", payload).output


def test_inspect_of_what_is_not_there(payload, tmp_path):
    assert "No such file" in run("inspect", tmp_path / "nothing.bin").output
    (tmp_path / "bad.json").write_text("{}")
    result = run("inspect", payload, "--layout", tmp_path / "bad.json")
    assert result.exit_code == 2
    assert "no layout as Layout.to_json writes it" in result.output.replace("\n", " ")


def test_doctor_says_what_works_here():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for words in ("selection on the CPU", "kernels.cpu", "compiled code", "first call", "joulegrad[lab]", "installed"):
        assert words in result.output


def test_doctor_goes_red_when_something_needed_is_missing(monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "numba" else real(package))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "missing" in result.output
