"""Flower itself, with real processes: simulation, deployment, kills, TLS and keys, bytes at the socket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from flower_fleet import BIN, HERE, Fleet, free_port

import joulegrad

sys.path.insert(0, str(HERE / "flower_app"))
NODES = 3
pytestmark = pytest.mark.fleet


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def by_hand(*rounds):
    """The model after each round, in which only some nodes were used; computed here, without Flower."""
    from app.model import OPERATOR, made, step
    from flwr.app import ArrayRecord

    from joulegrad.flower.arrays import Form, Model

    first = ArrayRecord(made("small").state_dict())
    form = Form.of(first)
    now, rest, operator, models = form.flat(first), form.rest(first), OPERATOR["small"], []
    states, threads = [operator.init(form.layout)] * NODES, torch.get_num_threads()
    for t, used in enumerate(rounds, 1):
        sent = []
        for i in used:
            model = made("small")
            model.load_state_dict(form.arrays(now, rest).to_torch_state_dict())
            step("small", model, i, t)
            learned = form.flat(ArrayRecord(model.state_dict()))
            update, states[i] = operator(now.weights - learned.weights, states[i])
            sent.append((update.with_buffers(learned.buffers), 10 + i))
        mean = joulegrad.mean(sent)
        now = Model(now.weights - mean.update, mean.buffers)
        models.append({key: array.numpy() for key, array in form.arrays(now, rest).items()})
    torch.set_num_threads(threads)  # the app's steps took one
    return models


EVERYBODY = (0, 1, 2)


@pytest.fixture(scope="module")
def expected():
    """What rounds without any mishap come to; [0] is after the first."""
    return by_hand(*[EVERYBODY] * 3)


@pytest.fixture(scope="module")
def whole_fleet(tmp_path_factory):
    """A SuperLink that keeps its state in a file, and three SuperNodes."""
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        found.superlink("--insecure", "--database", found.folder / "state.db")
        for i in range(NODES):
            found.supernode(i)
        yield found
    finally:
        found.close()


@pytest.fixture
def fleet(whole_fleet):
    """The same, without the gates of other tests."""
    for gate in [*whole_fleet.folder.glob("begun-*"), *whole_fleet.folder.glob("hold-*")]:
        gate.unlink()
    yield whole_fleet
    for gate in whole_fleet.folder.glob("hold-*"):
        gate.unlink()


EXPERIMENT = """
rounds = 3
model = "cnn"
partition = "Dirichlet(clients=3, alpha=0.5)"
compress = ["ErrorFeedback(CWMP(density=0.02, cost=LayerType()))", "ErrorFeedback(Quantized(TopK(k=900), bits=4))"]
downlink = "delta"
dropout = 0.2
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """A small one, with much in it; and its run on the engine that needs no Flower."""
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "small.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "joulegrad", "run", folder / "small.toml", "--out", folder / "local"]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    subprocess.run(command, env=env, check=True, capture_output=True)
    return folder


def played(folder):
    """A run's last model, and its rounds without the seconds."""
    from safetensors.torch import load_file

    model = load_file(max(folder.glob("checkpoint-*")))
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return model["weights"].numpy().tobytes(), [{k: v for k, v in r.items() if k != "seconds"} for r in rows]


@pytest.mark.parametrize("engine", ["flower-sim", "flower"])
def test_an_experiment_is_the_same_to_the_last_bit_on_every_engine(engine, fleet, experiment):
    out = experiment / engine
    options = ("--superlink", "dep") if engine == "flower" else ()
    fleet.finish(
        sys.executable, "-m", "joulegrad", "run", experiment / "small.toml", "--engine", engine, "--out", out, *options
    )
    assert played(out) == played(experiment / "local")
    fleet.until(lambda: not fleet.find("--simulation") and not fleet.find("raylet"), "the simulation is gone")


def test_the_app_that_flower_init_writes_is_accepted(tmp_path):
    app = tmp_path / "mine"
    subprocess.run([sys.executable, "-m", "joulegrad", "flower", "init", app], check=True, capture_output=True)
    fleet = Fleet(tmp_path / "fleet", app)
    try:
        journal = fleet.folder / "journal.jsonl"
        fleet.finish(
            BIN / "flwr", "run", fleet.app, "local", "--stream", "--federation-config",
            "num-supernodes=2 client-resources-num-cpus=1", "-c", f'rounds=2 journal="{journal}"',
        )  # fmt: skip
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        assert [(row["round"], row["used"]) for row in rows] == [(1, True), (1, True), (2, True), (2, True)], (
            fleet.told()
        )
    finally:
        fleet.close()


def test_simulation_comes_to_the_expected_model(tmp_path, expected):
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.begin(
            "run-sim", BIN / "flwr", "run", fleet.app, "local", "--stream", "--federation-config",
            f"num-supernodes={NODES} client-resources-num-cpus=1", "-c", f'out="{fleet.folder / "sim.npz"}"',
        )  # fmt: skip
        arrays, told = fleet.result("sim")
        assert equal(arrays, expected[2]), fleet.told()
        assert told["metrics"]["2"]["joulegrad-whole-models"] == 0
    finally:
        fleet.close()


def test_after_kills_of_the_server_app_and_of_the_superlink_the_model_is_the_same(fleet, expected):
    """The ServerApp dies in round 2, the SuperLink in round 3; the same command goes on each time."""
    for gate in ("hold-0-2", "hold-1-3"):
        fleet.gate(gate).touch()
    kept = str(fleet.folder / "kept")
    fleet.run("first", checkpoint=kept)
    fleet.until(fleet.gate("begun-0-2").exists, "node 0 trains in round 2", by="run-first")
    for pid in fleet.find("flwr-serverapp"):
        fleet.kill_pid(pid)
    fleet.gate("hold-0-2").unlink()
    fleet.run("second", checkpoint=kept)
    fleet.until(fleet.gate("begun-1-3").exists, "node 1 trains in round 3", by="run-second")
    fleet.kill("superlink")
    fleet.gate("hold-1-3").unlink()
    fleet.superlink("--insecure", "--database", fleet.folder / "state.db")
    for pid in fleet.find("flwr-serverapp"):  # of the run that is over
        fleet.kill_pid(pid)
    fleet.run("third", checkpoint=kept)
    arrays, told = fleet.result("third")
    assert equal(arrays, expected[2]), fleet.told()
    assert [told["metrics"][t]["joulegrad-whole-models"] for t in "123"] == [3, 0, 0]
    assert [{row["round"] for row in fleet.rows(run)} for run in ("first", "second", "third")] == [{1}, {2}, {3}]


def test_after_a_kill_of_a_supernode_the_round_goes_on_and_so_does_its_memory(fleet):
    """Node 0 dies in round 2, is started again without a key, and goes on in round 3 from what it remembered."""
    fleet.gate("hold-0-2").touch()
    fleet.run("fifth", minimum=2)
    fleet.until(fleet.gate("begun-0-2").exists, "node 0 trains in round 2", by="run-fifth")
    fleet.kill("supernode-0")
    fleet.gate("hold-0-2").unlink()
    fleet.supernode(0)
    arrays, told = fleet.result("fifth")  # Flower takes a minute to see that a node is gone
    assert equal(arrays, by_hand(EVERYBODY, (1, 2), EVERYBODY)[-1]), fleet.told()
    assert [told["metrics"][t]["joulegrad-used"] for t in "123"] == [3, 2, 3]
    assert told["metrics"]["3"]["joulegrad-whole-models"] == 1


def certificates(folder):
    """A CA, a certificate of 127.0.0.1, and a key for each node."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=link")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    for i in range(4):
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node{i}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def secure(fleet):
    """A SuperLink with TLS that knows its nodes by their keys."""
    certificates(fleet.folder)
    server = ("--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt")
    fleet.superlink(*server, "--enable-supernode-auth")
    fleet.configure(**{"root-certificates": str(fleet.folder / "ca.crt")})


def test_with_tls_and_keys_and_a_hostile_node_the_honest_come_to_the_expected_model(tmp_path, expected):
    fleet = Fleet(tmp_path / "fleet")
    try:
        secure(fleet)
        for i in range(4):
            fleet.finish(BIN / "flwr", "supernode", "register", f"node{i}.pub", "dep")
            keys = ("--root-certificates", "ca.crt", "--auth-supernode-private-key", f"node{i}")
            fleet.supernode(i, *keys, **({"hostile": True} if i == 3 else {}))
        fleet.run("tls", nodes=4)
        arrays, told = fleet.result("tls")
        assert equal(arrays, expected[2]), fleet.told()
        reasons = [(round_, reason.split()[0]) for round_, _, reason in told["refused"]]
        assert reasons == [(1, "NotAPayload"), (2, "Truncated"), (3, "replayed:")]
        assert len({node for _, node, _ in told["refused"]}) == 1
        assert [told["metrics"][t]["joulegrad-refused"] for t in "123"] == [1, 1, 1]
    finally:
        fleet.close()


def test_behind_nginx_nodes_join_and_nobody_else_gets_in(tmp_path):
    """examples/flower/nginx.conf as it is, but for its ports; all that is not the fleet's answers 403."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("NO NGINX: it is not installed; apt-get install nginx-light")
    fleet = Fleet(tmp_path / "fleet")
    try:
        secure(fleet)
        fleet.finish(BIN / "flwr", "supernode", "register", "node0.pub", "dep")
        port = free_port()
        text = (HERE.parent / "examples" / "flower" / "nginx.conf").read_text()
        text = text.replace("0.0.0.0:9443", f"127.0.0.1:{port}").replace(":8000", f":{fleet.port}")
        (fleet.folder / "nginx.conf").write_text("daemon off;\nuser root;\n" + text)
        fleet.begin("nginx", nginx, "-p", fleet.folder, "-c", "nginx.conf")
        fleet.until(lambda: fleet.listens(port), "nginx listens", by="nginx")
        refused = {}
        for path in (
            "/v1/control/list-runs", "/v1/runtime/pull-messages", "/docs", "/openapi.json", "/", "/health",
            "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "//v1/control/list-runs",
            "/v1/fleet%2f..%2fcontrol/list-runs", "/v1/fleet/x/../../runtime/pull-messages", "/V1/control/list-runs",
        ):  # fmt: skip
            refused[path] = fleet.status(port, path)
        assert set(refused.values()) <= {"403", "400"}, refused
        assert fleet.status(fleet.port, "/v1/control/list-runs") not in ("403", "400", "404")  # why the proxy is there
        keys = ("--root-certificates", "ca.crt", "--auth-supernode-private-key", "node0")
        fleet.supernode(0, *keys, to=port)
        fleet.run("proxied", nodes=1, minimum=1, rounds=2)
        arrays, _ = fleet.result("proxied")
        assert equal(arrays, by_hand((0,), (0,))[-1]), fleet.told()
    finally:
        fleet.close()


def test_bytes_at_the_socket_are_the_payloads_and_a_known_floor(tmp_path):
    """ResNet-18 at 1 %, one node behind a proxy that counts: three rounds, the first of which brings the model."""
    from joulegrad.flower.journal import FLOOR_BYTES_DOWN, FLOOR_BYTES_UP

    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.superlink()
        port, counted = free_port(), fleet.folder / "counted.json"
        fleet.begin("proxy", sys.executable, HERE / "counting_proxy.py", port, fleet.port, counted)
        fleet.until(lambda: counted.exists() and fleet.listens(port), "the proxy listens", by="proxy")
        fleet.supernode(0, to=port)
        before = json.loads(counted.read_text())
        fleet.run("bytes", nodes=1, minimum=1, model="resnet18")
        _, told = fleet.result("bytes")
        up, down = (n - b for n, b in zip(json.loads(counted.read_text()), before, strict=True))
        (fleet.folder / "bytes.txt").write_text(f"{up} {down} {told['metrics']}")
        sent_up = sum(told["metrics"][t]["joulegrad-bytes-up"] for t in "123")
        sent_down = sum(told["metrics"][t]["joulegrad-bytes-down"] for t in "123")
        assert up == pytest.approx(sent_up + 3 * FLOOR_BYTES_UP, rel=0.02)
        assert down == pytest.approx(sent_down + 3 * FLOOR_BYTES_DOWN, rel=0.02)
        dense = 4 * 11_173_962
        later = told["metrics"]["3"]
        both = later["joulegrad-bytes-up"] + later["joulegrad-bytes-down"] + FLOOR_BYTES_UP + FLOOR_BYTES_DOWN
        assert 2 * dense / both > 20
    finally:
        fleet.close()
