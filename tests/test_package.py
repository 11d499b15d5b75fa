"""The public names, the version, what importing costs, and what the command says where its extra is missing."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import joulegrad
from joulegrad.lab import provenance

ROOT = Path(__file__).parent.parent


def test_public_names_are_what_is_imported():
    tree = ast.parse((ROOT / "joulegrad/__init__.py").read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(joulegrad.__all__)
    assert len(joulegrad.__all__) == len(imported)


@pytest.mark.parametrize("name", joulegrad.__all__)
def test_every_public_name_has_a_docstring_with_an_example(name):
    public = getattr(joulegrad, name)
    text = inspect.getdoc(public)
    assert text, name
    assert ">>>" in text, f"{name} has no doctest"


def test_version_is_the_changelogs_newest():
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == joulegrad.__version__


def test_import_is_light():
    heavy = "import sys, joulegrad; print([m for m in {} if m in sys.modules])".format(
        ["numba", "scipy", "sklearn", "matplotlib", "rich", "typer", "triton", "flwr", "safetensors"]
    )
    found = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    before = subprocess.run(
        [sys.executable, "-c", heavy.replace("joulegrad", "torch")], capture_output=True, text=True, check=True
    )
    assert found.stdout == before.stdout  # nothing that torch does not bring itself


def test_the_command_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from joulegrad.__main__ import main; main()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "pip install 'joulegrad[lab]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_python_dash_m_runs_the_command():
    found = subprocess.run([sys.executable, "-m", "joulegrad", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"joulegrad {joulegrad.__version__}"


def test_the_example_runs(capsys):
    sys.path.insert(0, str(ROOT / "examples"))
    import one_update

    one_update.main()
    printed = capsys.readouterr().out
    for word in ("Top-K", "CWMP", "BudgetedCWMP", "mass kept", "sent of each layer", "6.weight"):
        assert word in printed


def test_a_test_without_its_real_data_fails_where_ci_asks_for_it(tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_it():\n    pytest.skip('NO REAL DATA: nowhere')\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "--rootdir",
        ".",
        "-c",
        "/dev/null",
        "test_it.py",
    ]
    for wanted, code in (("", 0), ("complete", 1)):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JOULEGRAD_TESTS": wanted}
        found = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert found.returncode == code, found.stdout + found.stderr
        assert ("NO REAL DATA: nowhere" in found.stdout) == (code == 1)


def test_the_architecture_lists_every_module():
    listed = (ROOT / "docs/architecture.md").read_text().partition("```")[2].partition("```")[0]
    for file in sorted((ROOT / "joulegrad").rglob("*.py")):
        assert file.name == "__init__.py" or re.search(rf"\b{file.name}\b", listed), f"{file} is not in architecture.md"


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 50


@pytest.mark.parametrize(
    ("missing", "statement", "said"),
    [
        ("flwr", "import joulegrad.flower", "joulegrad.flower needs flwr: pip install 'joulegrad[flower]'"),
        (
            "safetensors.torch",
            "import joulegrad.lab.run",
            "a run's folder needs safetensors.torch: pip install 'joulegrad[lab]'",
        ),
        (
            "sklearn.datasets",
            "from joulegrad.lab import data; data.load(data.Data())",
            "the digits come with scikit-learn: pip install 'joulegrad[lab]'",
        ),
    ],
)
def test_what_an_extra_lacks_is_said_with_the_line_that_installs_it(missing, statement, said):
    hidden = (
        "import importlib.util, sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "real = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else real(name, *rest)\n"
    )
    found = subprocess.run([sys.executable, "-c", hidden + statement], capture_output=True, text=True)
    assert found.returncode == 1
    assert said in found.stderr.splitlines()[-1]


def test_a_copy_can_be_told_which_commit_it_is(monkeypatch):
    """Files copied into another repository are not what that repository's HEAD is."""
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    found = provenance.commit()
    assert set(found) == {"commit", "uncommitted_changes"}
    monkeypatch.setenv(provenance.COMMIT, "abc123")
    assert provenance.commit() == {"commit": "abc123", "uncommitted_changes": None}
    monkeypatch.delenv(provenance.COMMIT)
    monkeypatch.setattr(provenance, "_git", lambda *_: None)
    assert provenance.commit() == {"commit": None, "uncommitted_changes": None}
