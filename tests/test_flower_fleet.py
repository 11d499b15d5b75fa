"""Flower itself, with real processes: simulation, deployment, kills, TLS and keys, bytes at the socket."""

from __future__ import annotations

import pytest
from flower_fleet import BIN, Fleet

NODES = 3


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What five rounds without any mishap come to, round by round; computed here, without Flower."""
    import sys
    from pathlib import Path

    import joulegrad
    from joulegrad.flower.arrays import Form, Model

    sys.path.insert(0, str(Path(__file__).parent / "flower_app"))
    from app.model import OPERATOR, made, step
    from flwr.app import ArrayRecord

    first = ArrayRecord(made("small").state_dict())
    form = Form.of(first)
    now, rest = form.flat(first), form.rest(first)
    operator = OPERATOR["small"]
    states, rounds = [operator.init(form.layout)] * NODES, {}
    for t in range(1, 6):
        sent = []
        for i in range(NODES):
            model = made("small")
            model.load_state_dict(form.arrays(now, rest).to_torch_state_dict())
            step("small", model, i, t)
            learned = form.flat(ArrayRecord(model.state_dict()))
            update, states[i] = operator(now.weights - learned.weights, states[i])
            sent.append((update.with_buffers(learned.buffers), 10 + i))
        mean = joulegrad.mean(sent)
        now = Model(now.weights - mean.update, mean.buffers)
        rounds[t] = {key: array.numpy() for key, array in form.arrays(now, rest).items()}
    return rounds


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A SuperLink that keeps its state in a file, and three SuperNodes."""
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        found.superlink("--insecure", "--database", found.folder / "state.db")
        for i in range(NODES):
            found.supernode(i)
        yield found
    finally:
        found.close()


def test_simulation_comes_to_the_expected_model(tmp_path, expected):
    fleet = Fleet(tmp_path / "fleet")
    try:
        out = fleet.folder / "sim.npz"
        fleet.begin(
            "run-sim", BIN / "flwr", "run", fleet.app, "local", "--stream", "--federation-config",
            f"num-supernodes={NODES} client-resources-num-cpus=1", "-c", f'out="{out}"',
        )  # fmt: skip
        arrays, told = fleet.result("sim")
        assert equal(arrays, expected[3]), fleet.told()
        assert told["metrics"]["2"]["joulegrad-whole-models"] == 0
    finally:
        fleet.close()


def test_deployment_comes_to_the_expected_model(fleet, expected):
    fleet.run("plain")
    arrays, told = fleet.result("plain")
    assert equal(arrays, expected[3]), fleet.told()
    assert [told["metrics"][t]["joulegrad-whole-models"] for t in "123"] == [3, 0, 0]
