"""The pages: their files are written, their commands run, what they print is what they show."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import experiment_keys
import pytest
from typer.testing import CliRunner

import joulegrad
from joulegrad.cli import app
from joulegrad.lab import archives, experiment, models, simulate

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/experiments.md").read_text()
BLOCK = re.compile(r"^```(toml|python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# what a command that is a mistake has in it, and its exit code
SUCCEEDS = {"TopKK": 2, "=1.5)": 2, "run --set compress.density": 2, "Quantized(ErrorFeedback": 2, "nowhere": 2}
PAGES = {  # with console blocks: how many commands there are at least
    "README.md": 3, "docs/energy.md": 5, "docs/experiments.md": 14, "docs/quickstart.md": 3,
    "docs/troubleshooting.md": 5,
    "docs/howto/device.md": 2, "docs/howto/model-and-data.md": 2, "docs/howto/operator.md": 2,
    "docs/howto/payload.md": 3, "docs/howto/report.md": 9, "docs/howto/resume.md": 2,
}  # fmt: skip


def play(page: str) -> int:
    """Write a page's files into the current folder and run its commands there; how many commands there were."""
    ran = 0
    for kind, text in BLOCK.findall(page):
        named = re.match(r"# (\w+\.(?:toml|py))\n", text)
        if kind == "console":
            ran += sum(run(*step) for step in steps(text))
        elif named:
            Path(named.group(1)).write_text(text)
    return ran


def steps(text: str) -> list[tuple[str, str]]:
    """Each command, and what is shown below it."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def run(command: str, shown: str) -> int:
    program, *arguments = shlex.split(command, comments=True)
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
        return 1
    assert program == "joulegrad", command
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    expected = next((code for part, code in SUCCEEDS.items() if part in command), 0)
    assert found.exit_code == expected, f"{command}\n{found.output}\n{found.exception!r}"
    pattern = re.escape(shown.strip()).replace("…", ".*").replace(r"\ ", r"\s+")
    if shown.strip():
        assert re.fullmatch(pattern, found.output.strip(), re.DOTALL), f"{command}\n{found.output}\nis not\n{shown}"
    return 1


@pytest.mark.parametrize(("page", "commands"), PAGES.items(), ids=PAGES)
def test_what_the_page_says_can_be_done(page, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in ("mine", "rules", "nets", "wines") if name in sys.modules]:
        monkeypatch.delitem(sys.modules, module)  # another page's
    assert play((ROOT / page).read_text()) >= commands


def test_every_block_of_every_page_is_run():
    """A fence is a session or a file of Python, an experiment, or commands: nothing that no test reads."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if kind in ("toml", "python") and re.match(r"# (\w+\.(?:toml|py))\n", block):
                assert name in PAGES, f"{name} has files and no test"
            elif kind == "python":
                assert block.startswith(">>> "), f"{name}: neither a session nor a named file:\n{block}"
            elif kind == "toml":
                tomllib.loads(block)  # a part of a file
            elif kind == "console":
                assert name in PAGES, f"{name} has commands and no test"
            else:
                assert kind == "", f"{name}: nothing runs a block of {kind}"
    assert {str(page.relative_to(ROOT)) for page in pages} >= set(PAGES)


def test_the_api_page_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text()
    assert sorted(re.findall(r"^::: joulegrad\.(\w+)$", text, re.MULTILINE)) == sorted(joulegrad.__all__)


def test_a_command_that_prints_something_else_is_noticed():
    run("joulegrad --version", "joulegrad …\n")
    with pytest.raises(AssertionError, match="is not"):
        run("joulegrad --version", "joulegrad 0\n")
    with pytest.raises(AssertionError):
        run("joulegrad run --frobnicate", "")


def test_the_table_of_keys_is_what_the_dataclasses_say():
    assert experiment_keys.filled(PAGE) == PAGE, "out of date: python tests/experiment_keys.py"
    for kind in (experiment.Experiment, *experiment.TABLES.values()):
        assert set(experiment_keys.meanings(kind)) == set(kind.__dataclass_fields__)


def test_all_that_can_be_named_is_named():
    for name in [*models.MODELS, *archives.ARCHIVES, "digits"]:
        assert f"`{name}`" in PAGE
    for name in experiment.PARTITIONS:
        assert f"`{name}(" in PAGE
    for cost in ("LayerType(classifier=5.0, other=1.0)", 'Table({"features.*": 1.0, "classifier.*": 5.0})'):
        assert f"`{cost}`" in PAGE
        with simulate.Simulation(experiment.Experiment.of({"cost": cost}), workers=1) as simulation:
            assert set(simulation.prices.joules.tolist()) == {1.0, 5.0}


def test_every_figure_of_a_round_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["run", "--set", "rounds=1", "--set", "model=logistic", "--json"])
    described = {
        name for line in re.findall(r"^\| (`\w+`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    }
    assert set(json.loads(found.stdout.splitlines()[-1])) <= described


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.toml")), ids=lambda file: file.name)
def test_the_examples_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["rounds=1"]
    if sweep := "[sweep]" in file.read_text():
        small += ["sweep.seed=[0]", "sweep.compress.density=[0.01]"]
    settings = [word for setting in small for word in ("--set", setting)]
    found = CliRunner().invoke(app, ["sweep" if sweep else "run", str(file), *settings])
    assert found.exit_code == 0, found.output
