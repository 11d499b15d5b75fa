from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner
from wire_cases import LAYOUT, sparse

import joulegrad as jg
from joulegrad.cli import app, display, experiments
from joulegrad.lab import doctor, store
from joulegrad.lab.simulate import Simulation
from joulegrad.profiles import device, to_toml


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


# --- mistakes: what is typed, what must be said, the exit code -----------------------------------------------------

FILES = {
    "good.toml": 'rounds = 2\nmodel = "logistic"\npartition = "IID(clients=4)"\n',
    "unknown.toml": "round = 2\n",
    "nested.toml": "[local]\nlearning_rate = 0.1\n",
    "type.toml": 'rounds = "ten"\n',
    "notable.toml": "local = 3\n",
    "syntax.toml": "rounds = 2\nseed =\n",
    "grid.toml": "[sweep]\nseed = [0, 1]\n",
    "empty.toml": "[sweep]\n",
    "nolist.toml": "[sweep]\nseed = 3\n",
    "badkey.toml": "[sweep]\nsede = [1, 2]\n",
    "badvalue.toml": "[sweep]\nseed = [0, -1]\n",
    "twice.toml": '[sweep]\ncompress = ["TopK(k=5)", "TopK(k=5)"]\n',
    "list.json": "[1, 2]\n",
    "latin.toml": b'model = "caf\xe9"\n',
    "wat.toml": to_toml(device("rpi4")).replace('"W"', '"Wat"', 1),
}
MISTAKES = [
    ("run unknown.toml", ["the key 'round' is not known", "did you mean 'rounds'?"]),
    ("run nested.toml", ["'local.learning_rate' is not known", "There are: augment, batch_size"]),
    ("run type.toml", ["rounds must be a whole number, got 'ten'"]),
    ("run notable.toml", ["local is a table, [local] in TOML, got 3"]),
    ("run notable.toml --set local.lr=1", ["local is a table, [local] in TOML, got 3"]),
    ("run syntax.toml", ["syntax.toml is not TOML", "line 2"]),
    ("run latin.toml", ["latin.toml is not TOML", "utf-8"]),
    ("run list.json", ["list.json is not JSON"]),
    ("run nothing.toml", ["nothing.toml: No such file or directory"]),
    ("run .", [".: Is a directory"]),
    ("run grid.toml", ["has a table [sweep]", "joulegrad sweep grid.toml"]),
    ("run good.toml --set rounds", ["--set rounds: expected key=value"]),
    ("run good.toml --set =3", ["--set =3: expected key=value"]),
    ("run good.toml --set rounds=1.5", ["rounds must be a whole number, got 1.5"]),
    ("run good.toml --set rounds=true", ["rounds must be a whole number, got True"]),
    ("run good.toml --set rounds=0", ["rounds must be a whole number ≥ 1, got 0"]),
    ("run good.toml --set local.lrr=1", ["'local.lrr' is not known; did you mean 'lr'?"]),
    ("run good.toml --set local.lr=fast", ["local.lr must be a number, got 'fast'"]),
    ("run good.toml --set local.lr=-1", ["local.lr must be a positive number, got -1"]),
    ("run good.toml --set local.augment=1", ["local.augment must be true or false, got 1"]),
    ("run good.toml --set compress=TopKK(k=5)", ["compress: 'TopKK'", "did you mean 'TopK'?", "There are: Blocks"]),
    ("run good.toml --set compress=TopK(densty=0.1)", ["TopK", "has no argument 'densty'; did you mean 'density'?"]),
    ("run good.toml --set compress=TopK(density=1.5)", ["compress: density must be in (0, 1], got 1.5"]),
    (
        "run good.toml --set compress=TopK(k=0.5)",
        ["k must be a whole number ≥ 0, got 0.5; for a fraction write density"],
    ),
    ("run good.toml --set compress=TopK", ["TopK in 'TopK' needs brackets"]),
    ("run good.toml --set compress=TopK(k=5", ["'TopK(k=5' cannot be read"]),
    ("run good.toml --set compress=3", ["compress is written as in Python", "got 3"]),
    ("run good.toml --set compress=LayerType()", ["compress must be an operator, such as TopK(density=0.1)"]),
    ("run good.toml --set compress=CWMP(k=5)", ["CWMP in 'CWMP(k=5)'", "'cost'"]),
    ("run good.toml --set compress=Quantized(ErrorFeedback(TopK(k=5)),bits=1)", ["Quantized cannot go around"]),
    ("run good.toml --set compress.density=0.5", ["compress is 'dense', which has no parts"]),
    ("run good.toml --set compress=nowhere:Thing()", ["names a module that is not found: 'nowhere'"]),
    ("run good.toml --set ledger=Ledgr()", ["'Ledgr' in 'Ledgr()' is not known; did you mean 'Ledger'?"]),
    ("run good.toml --set ledger=Ledger(device='rpi44')", ["ledger: device 'rpi44'", "did you mean 'rpi4'?"]),
    ("run good.toml --set ledger.device=rpi4", ["ledger.device: no ledger is kept; give one first"]),
    ("run good.toml --set model=resnet", ["model 'resnet' is none of", "did you mean 'resnet18'?"]),
    ("run good.toml --set model=math:gdc", ["module 'math' has no 'gdc'; did you mean 'gcd'?"]),
    ("run good.toml --set data.name=digit", ["data 'digit' is no built-in name", "did you mean 'digits'?"]),
    (
        "run good.toml --set data.name=cifar10 --set data.directory=none",
        ["directory 'none' is not a folder", "CIFAR-10"],
    ),
    ("run good.toml --set data.train_examples=9999", ["9,999 are asked for, there are 1,438"]),
    ("run good.toml --set partition.clients=5000", ["IID: 5,000 clients", "the training set has 1,438"]),
    ("run good.toml --set partition=Dirichet(clients=2)", ["'Dirichet'", "did you mean 'Dirichlet'?"]),
    ("run good.toml --set partition=ByColumn('writer')", ["the training set has no column 'writer'; it has none"]),
    ("run good.toml --set clients_per_round=20", ["between 1 and the partition's 4 clients", "got 20"]),
    ("run good.toml --set weights=equl", ["weights 'equl' is not allowed; did you mean 'equal'?"]),
    ("run good.toml --set server.optimizer=adam", ["'adam' is not in torch.optim; did you mean 'Adam'?"]),
    ("run good.toml --set server.options={moment=0.9}", ["optimizer 'SGD' cannot step", "'moment'"]),
    ("run good.toml --device gpu", ["device must be 'cpu' or 'cuda', got 'gpu'"]),
    ("run good.toml --engine flour", ["engine must be one of local, flower-sim, flower", "'flour'"]),
    ("run good.toml --engine flower --workers 2", ["--workers and --device are for the engine local"]),
    ("flower init good.toml", ["good.toml is there already"]),
    ("run good.toml --workers 0", ["--workers", "0 is not"]),
    ("run good.toml --out good.toml", ["good.toml: File exists"]),
    ("run --frobnicate", ["No such option: --frobnicate"]),
    ("frobnicate", ["No such command 'frobnicate'"]),
    ("sweep good.toml", ["a sweep needs a table [sweep]"]),
    ("sweep empty.toml", ["a sweep needs a table [sweep]"]),
    ("sweep nolist.toml", ["sweep.seed must be a list of values, got 3"]),
    ("sweep badkey.toml", ["the key 'sede' is not known; did you mean 'seed'?"]),
    ("sweep badvalue.toml", ["seed must be a whole number ≥ 0, got -1"]),
    ("sweep twice.toml", ["two runs of the sweep are the same experiment"]),
    ("sweep grid.toml --set seed=5", ["the sweep goes over seed", '--set "sweep.seed=[…]"']),
    ("sweep grid.toml --device gpu", ["device must be 'cpu' or 'cuda', got 'gpu'"]),
    ("table nowhere", ["nowhere is not there"]),
    ("table .", ["no run lies in ."]),
    ("completion tcsh", ["shell must be bash, zsh or fish, got 'tcsh'"]),
    ("inspect nowhere", ["nowhere: No such file or directory"]),
    ("run good.toml --set cost=Device('rpi44','ble')", ["cost: device 'rpi44' is not known; did you mean 'rpi4'?"]),
    ("run good.toml --set cost=Device('rpi4')", ["Device in \"Device('rpi4')\"", "'link'"]),
    ("run good.toml --set cost=Device('wat.toml','ble')", ["wat.toml: idle_watts.unit is 'Wat'", "Allowed: W, mW, kW"]),
    ("profiles rpi44", ["profile 'rpi44' is not known; did you mean 'rpi4'? There are: esp32", "or give the path"]),
    ("profiles wat.toml", ["wat.toml: idle_watts.unit is 'Wat', which is no unit of power; did you mean 'W'?"]),
    ("profiles nothing.toml", ["nothing.toml: No such file or directory"]),
    ("profiles good.toml", ["good.toml: kind is None; it must say kind"]),
    ("profiles --toml", ["--toml prints one profile: name one"]),
    ("plan resnet", ["model 'resnet' is none of", "did you mean 'resnet18'?"]),
    ("plan math:gdc", ["module 'math' has no 'gdc'; did you mean 'gcd'?"]),
    ("plan mlp --device rpi44", ["device 'rpi44' is not known; did you mean 'rpi4'?"]),
    ("plan mlp --device wifi-n", ["device 'wifi-n' is a link. There are: esp32"]),
    ("plan mlp --device wat.toml", ["wat.toml: idle_watts.unit is 'Wat'"]),
    ("plan mlp --link lte", ["link 'lte' is not known", "lte-2012"]),
    ("plan mlp --battery 3000", ["'3000' is no number with its unit, of which there are J, mJ"]),
    ("plan mlp --battery 3000mAh", ["'3000mAh': unit is 'mAh', which is no unit of energy"]),
    ("plan mlp --battery 0Wh", ["the battery must hold a positive number of joules, got 0.0"]),
    ("plan mlp --speed 2MB/s", ["'2MB/s': unit is 'MB/s', which is no unit of data rate"]),
    ("plan mlp --density 2", ["density must be in (0, 1], got 2.0"]),
    ("plan mlp --density 0.1 --density 0.1", ["densities must be one or more, each once"]),
    ("plan mlp --shape 3x32x", ["--shape 3x32x: expected whole numbers, such as 3x32x32"]),
    ("plan cnn --shape 30", ["cnn takes images (channels, height, width), got inputs of shape (30,)"]),
    ("plan mlp --data mnist", ["data 'mnist' is none of", "did you mean 'fashion-mnist'?"]),
    ("plan mlp --boundary world", ["boundary must be 'device' or 'system', got 'world'"]),
    ("plan mlp --samples 0", ["--samples", "0 is not"]),
    ("plan mlp --picture it.txt", ["it.txt is written as .png, .svg or .pdf"]),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of files to make mistakes with; one is left with nothing else in it."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path


@pytest.mark.parametrize(("typed", "said"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_a_mistake_is_said_in_the_users_words(folder, typed, said):
    result = run(*typed.split(" "), width=400)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    for words in said:
        assert words in result.output
    assert "Traceback" not in result.output
    assert not list(folder.glob("runs/**/rounds.jsonl")) or not any(
        p.stat().st_size for p in folder.rglob("rounds.jsonl")
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("verb", ["run good.toml", "sweep grid.toml"])
def test_a_gpu_that_is_not_there(folder, verb):
    result = run(*verb.split(), "--device", "cuda", width=400)
    assert result.exit_code == 2
    assert "device 'cuda' was asked for, and torch finds no GPU" in result.output


def test_a_folder_of_another_experiment_is_refused(folder):
    assert run("run", "good.toml", "--out", "kept", "--set", "rounds=1").exit_code == 0
    result = run("run", "good.toml", "--out", "kept", width=400)
    assert result.exit_code == 2
    assert "kept holds another experiment: its rounds is 1, not 2" in result.output


def test_a_folder_that_another_process_holds_is_refused(folder, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 0.0)
    (folder / "kept").mkdir()
    with FileLock(folder / "kept" / store.LOCK):
        result = run("run", "good.toml", "--out", "kept", width=400)
    assert result.exit_code == 3
    assert "kept is being written by another process" in result.output


def test_what_goes_wrong_on_the_way_has_another_exit_code(folder):
    result = run("run", "good.toml", "--set", "local.lr=1e38", width=400)
    assert result.exit_code == 1, result.output
    assert "round 1" in result.output
    assert "is not finite" in result.output
    assert 'on_nan = "drop"' in result.output


def test_tensorboard_that_is_not_there(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = run("run", "good.toml", "--tensorboard", "logs")
    assert result.exit_code == 2
    assert "--tensorboard needs tensorboard: pip install tensorboard" in result.output


def test_our_own_errors_keep_their_traceback(folder, monkeypatch):
    def broken(*arguments, **options):
        raise TypeError("ours")

    monkeypatch.setattr("joulegrad.lab.run.run", broken)
    assert isinstance(run("run", "good.toml").exception, TypeError)


# --- run, sweep, table ------------------------------------------------------------------------------------------


def test_a_run_in_lines_in_json_and_quiet(folder):
    shown = run("run", "good.toml", "--out", "kept")
    lines = shown.output.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["round 1/2", "round 2/2"]
    assert lines[2].startswith("accuracy ")
    assert lines[2].endswith("all of it in kept")
    again = run("run", "good.toml", "--out", "kept", "--json")
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert rows == store.read_rounds(folder / "kept")
    assert [row["round"] for row in rows] == [1, 2]
    assert run("run", "good.toml", "--out", "kept", "--quiet").output == ""


def test_set_reaches_every_kind_of_key(folder):
    typed = (
        "rounds=1",
        "local.lr=0.1",
        "compress=TopK(density=0.5)",
        "compress.density=0.25",
        'model="logistic"',
        "seed=3",
    )
    settings = [word for setting in typed for word in ("--set", setting)]
    assert run("run", "good.toml", "--out", "kept", *settings).exit_code == 0
    found = store.read_header(folder / "kept")["experiment"]
    assert (found["rounds"], found["local"]["lr"], found["seed"]) == (1, 0.1, 3)
    assert found["compress"] == "TopK(density=0.25)"


def test_a_run_without_a_file_is_digits(folder):
    assert run("run", "--set", "rounds=1", "--set", "model=logistic").exit_code == 0
    [kept] = (folder / "runs").iterdir()
    assert kept.name.startswith("digits-")


def test_tensorboard_is_given_each_round(folder, monkeypatch):
    written = []
    writer = SimpleNamespace(add_scalar=lambda *what: written.append(what), close=lambda: written.append("closed"))
    module = SimpleNamespace(SummaryWriter=lambda folder, purge_step: written.append((folder, purge_step)) or writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert run("run", "good.toml", "--out", "kept", "--tensorboard", "logs").exit_code == 0
    assert written[0] == ("logs", 1)
    assert written[-1] == "closed"
    rows = store.read_rounds(folder / "kept")
    for name in ("accuracy", "loss", "bytes_up", "cost"):
        assert [(value, step) for tag, value, step in written[1:-1] if tag == name] == [
            (r[name], r["round"]) for r in rows
        ]


def test_in_a_terminal_there_is_a_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as rich knows a terminal
    monkeypatch.setenv("COLUMNS", "70")
    show = display.Run(3, "text", None)
    show.console.file = file = io.StringIO()
    row = {"round": 1, "accuracy": 0.5, "loss": 1.0, "bytes_up": 2_000_000, "seconds": {"round": 60.0}}
    with show:
        show.row(row)
    for words in ("1/3", "accuracy 50.0%", "2 MB up", "2 min 0 s left"):
        assert words in file.getvalue()
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).splitlines()) <= 70


def test_a_dry_run_does_not_wait_for_long_rounds(folder, monkeypatch):
    """The plan is what was asked for; its time is only estimated where that is quick, or as long as one is patient."""
    (folder / "slow.toml").write_text('rounds = 1\nmodel = "logistic"\n[sweep]\nseed = [0, 1]\n')
    monkeypatch.setattr(experiments, "PATIENCE", 1)
    monkeypatch.setattr(Simulation, "round", lambda self: time.sleep(30))
    shown = run("sweep", "slow.toml", "--dry-run", width=200)
    assert shown.exit_code == 0, shown.output
    assert "seed=1" in shown.output
    assert "two rounds of the first were not over after 1 s, so there is no estimate" in shown.output

    def interrupted(self: Simulation) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "round", interrupted)
    assert "not over when it was stopped" in run("sweep", "slow.toml", "--dry-run", width=200).output


def test_a_sweep_with_a_run_that_fails(folder):
    (folder / "mixed.toml").write_text(
        'rounds = 1\nmodel = "logistic"\n[sweep]\n"local.lr" = [0.1, 1e38]\nseed = [0, 1]\n'
    )
    dry = run("sweep", "mixed.toml", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "4 runs, 4 rounds" in dry.output
    first = run("sweep", "mixed.toml", "--json")
    assert first.exit_code == 1
    ended = [json.loads(line) for line in first.stdout.splitlines()]
    assert {(e["run"], e["exit_code"], e["rounds"]) for e in ended} == {
        ("local.lr=0.1 seed=0", 0, 1), ("local.lr=0.1 seed=1", 0, 1),
        ("local.lr=1e+38 seed=0", 1, 0), ("local.lr=1e+38 seed=1", 1, 0),
    }  # fmt: skip
    assert "2 of 4 runs failed" in first.stderr
    assert "local.lr=1e+38 seed=1: round 1, client" in first.stderr
    assert "log.txt" in first.stderr
    mended = run("sweep", "mixed.toml", "--set", "sweep.local.lr=[0.1, 0.2]")
    assert mended.exit_code == 0, mended.output
    assert "2 of 4 runs are finished already" in mended.output
    assert "local.lr=0.2 seed=0: accuracy" in mended.output
    assert "4 runs finished in runs/mixed" in mended.output


def test_a_table_of_runs(folder):
    for seed in (0, 1):
        assert run("run", "good.toml", "--quiet", "--set", f"seed={seed}").exit_code == 0
    shown = run("table", "runs").output
    assert shown.index("seed=0") < shown.index("seed=1")
    assert shown.count("2/2") == 2
    assert "4 rounds of 2 runs written to all.csv" in run("table", "runs", "-o", "all.csv").output
    rows = list(csv.DictReader((folder / "all.csv").read_text().splitlines()))
    assert [(row["seed"], row["round"]) for row in rows].count(("1", "2")) == 1
    assert float(rows[1]["total_bytes_up"]) == int(rows[0]["bytes_up"]) + int(rows[1]["bytes_up"])
    wrong = run("table", "runs", "-o", "all.txt")
    assert (wrong.exit_code, "written as .csv or .parquet" in wrong.output) == (2, True)


# --- stopping: a process of its own, since it is sent signals ------------------------------------------------------


def test_ctrl_c_ends_after_the_round_and_the_same_command_goes_on(folder):
    command = [sys.executable, "-m", "joulegrad", "run", "good.toml", "--out", "kept", "--set", "rounds=400", "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(jg.__file__).parents[1])}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    kept = len(store.read_rounds(folder / "kept"))
    assert kept < 400, "too fast to be interrupted: give it more rounds"
    assert kept == 1 + len(out.splitlines())
    assert "this round ends first" in err
    assert f"stopped after round {kept} of 400; the same command goes on" in err
    assert "Traceback" not in err
    again = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["round"] for row in rows] == list(range(1, 401))


@pytest.mark.parametrize(
    "verb", ["", "run", "sweep", "table", "demo", "profiles", "plan", "verify", "doctor", "inspect"]
)
def test_help_fits_and_shows_examples(verb):
    result = run(*verb.split(), "--help", width=80)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    if verb in ("run", "sweep", "table", "profiles", "plan"):
        assert f"joulegrad {verb} " in result.output
    if verb in ("", "run", "sweep"):
        assert "130" in result.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [("sw", "sweep"), ("run --te", "--tensorboard"), ("flower in", "init"), ("run goo", "good.toml")],
)
def test_tab_completes_commands_options_and_files(folder, words, expected):
    script = run("completion", "bash").output
    line = f"COMP_WORDS=(joulegrad {words}); COMP_CWORD={len(words.split())}; _joulegrad; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, cwd=folder)
    assert found.stdout == expected + "\n", found.stderr


def test_other_shells_have_every_command_too():
    commands = run("completion", "fish").output
    for name in ("run", "sweep", "report", "plan", "inspect"):
        assert f"-a {name} " in commands
    assert "bashcompinit" in run("completion", "zsh").output
