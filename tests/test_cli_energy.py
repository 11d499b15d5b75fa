"""The commands profiles and plan, in narrow terminals and wide, as text, JSON and files."""

from __future__ import annotations

import json
import tomllib

import pytest
from typer.testing import CliRunner

from joulegrad import profiles
from joulegrad.cli import app
from joulegrad.lab.experiment import Experiment


def run(*arguments: object, width: int = 100):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(width)})


def flat(text: str) -> str:
    return " ".join(text.split())


PLAN = ("plan", "mlp", "--data", "digits", "--density", "0.1", "--density", "0.01")


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_profiles_are_listed(width):
    result = run("profiles", width=width)
    assert result.exit_code == 0, result.output
    for name in (*profiles.devices(), *profiles.links()):
        assert name in result.output
    assert max(map(len, result.output.splitlines()[:-1])) <= width
    assert "…" not in result.output, "nothing is cut"


@pytest.mark.parametrize("width", [50, 80, 120, 200])
@pytest.mark.parametrize("name", ["rpi4", "lte-2012", "esp32"])
def test_a_profile_is_explained(name, width):
    result = run("profiles", name, width=width)
    assert result.exit_code == 0, result.output
    profile = profiles.device(name) if name in profiles.devices() else profiles.link(name)
    for field, q in profiles.figures(profile).items():
        assert field in result.output
        if q is not None and width < 110:
            assert q.source in flat(result.output)
            assert q.grade in result.output
    assert "…" not in result.output
    assert max(map(len, result.output.splitlines())) <= width
    if name == "esp32":
        assert "absent" in result.output


def test_a_profile_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = run("profiles", "rpi4", "--toml")
    (tmp_path / "mine.toml").write_text(written.stdout.replace("2.7", "2.5"))
    assert profiles.device("mine.toml").idle_watts.value == 2.5
    shown = run("profiles", "mine.toml", "ble", width=80)
    assert shown.exit_code == 0
    assert "2.50 W" in shown.output
    assert "up_watts" in shown.output, "several at once"
    assert run(*PLAN, "--device", "mine.toml").exit_code == 0


def test_profiles_as_json():
    found = json.loads(run("profiles", "rpi4", "--json").stdout)
    assert found[0]["idle_watts"]["grade"] == "published"
    assert found[0]["kind"] == "device"
    assert len(json.loads(run("profiles", "--json").stdout)) == len(profiles.devices()) + len(profiles.links())


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_a_plan_is_shown(width):
    result = run(*PLAN, "--battery", "1 Wh", "--layers", width=width)
    assert result.exit_code == 0, result.output
    text = flat(result.output)
    for words in (
        "79,754 parameters", "training", "sending", "a round", "1-bit CWMP", "saves", "rounds",
        "compressing the uplink", "All joules are modelled.", "3,600 J last", "rounds = 100",
    ):  # fmt: skip
        assert words in text, words
    tables = result.output.partition("rounds = 100")[0]
    assert max(map(len, tables.splitlines())) <= width


def test_a_plan_says_when_compression_does_not_pay():
    text = flat(run("plan", "resnet18", "--density", "0.01").output)
    assert "Training is 97.7 % of this round; compressing the uplink saves at most 1.5 %" in text
    assert "Compression does not pay in joules here" in text
    assert 'compress = "dense"' in text


def test_a_plan_as_json_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*PLAN, "--link", "lte-2012", "--rounds", 1, "--json", "--toml", "it.toml", "--picture", "it.png")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["source"], found["link"], len(found["ways"])) == ("modelled", "lte-2012", 7)
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "it.toml").read_text()
    assert found["toml"] == text
    assert (
        Experiment.of(tomllib.loads(text)).operators[0]
        == Experiment.of({"compress": found["ways"][3]["operator"]}).compress
    )
    played = run("run", "it.toml", "--quiet", "--out", "kept")
    assert played.exit_code == 0, played.output


def test_a_plan_for_a_users_own_model(mine):
    result = run(
        "plan", "mine:Everything", "--shape", "1x8x8", "--classes", 3, "--speed", "100 kbit/s", "--samples", 10
    )
    assert result.exit_code == 0, result.output
    assert "over wifi-rpi4 at 100 kbit/s" in flat(result.output)
    wrong = run("plan", "mine:Perceptron", "--shape", "7", width=300)
    assert wrong.exit_code == 2
    assert "Perceptron cannot be tried on a batch of noise of shape (4, 7) with 10 classes" in wrong.output
