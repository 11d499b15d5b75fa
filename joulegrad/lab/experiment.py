"""An experiment: what is trained, by whom, on what, and what is sent. The object is its own configuration.

In TOML the same names: `[data]`, `[local]` and `[server]` are tables, operators, partitions and costs are written as in
Python.

    rounds = 50
    model = "resnet18"
    partition = "Dirichlet(clients=10, alpha=0.5)"
    compress = "ErrorFeedback(CWMP(density=0.01, cost=LayerType()))"

    [data]
    name = "cifar10"

    [local]
    lr = 0.05
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

import joulegrad
from joulegrad import LayerType, TopK, profiles
from joulegrad.compressor import Compressor, is_count
from joulegrad.cost import Cost, is_finite
from joulegrad.energy import Battery, Ledger
from joulegrad.lab import naming, notation
from joulegrad.lab.archives import ARCHIVES
from joulegrad.lab.data import Data
from joulegrad.lab.partition import IID, ByColumn, Dirichlet, Partition, Quantity, Shards

__all__ = ["DENSE", "LATER", "Experiment", "LocalSGD", "Server", "anywhere", "changed", "load"]

DENSE = TopK(density=1.0)  # every entry: the baseline, `compress = "dense"`


def _positive(value: object) -> bool:
    return is_count(value) and value != 0


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} {value!r} is not allowed{notation.among(str(value), allowed)}")


@dataclass(frozen=True)
class LocalSGD:
    """What a client does between two rounds: SGD with momentum that starts from rest.

    Args:
        lr: the learning rate of the first round.
        momentum: in [0, 1).
        weight_decay: times the weights, added to their gradient.
        batch_size: examples a step; an epoch's last batch may be smaller.
        epochs: passes over the client's examples.
        steps: so many batches instead of epochs.
        schedule: how lr changes over the rounds: "constant", or "cosine" down to 0.
        augment: crop and mirror each batch's images at random.

    Example:
        >>> LocalSGD(lr=0.1, schedule="cosine").lr_at(5, rounds=10)
        0.05
    """

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 64
    epochs: int = 1
    steps: int | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    augment: bool = False

    def __post_init__(self) -> None:
        _require("lr", self.lr, is_finite(self.lr) and self.lr > 0, "a positive number")
        _require("momentum", self.momentum, is_finite(self.momentum) and 0 <= self.momentum < 1, "in [0, 1)")
        _require("weight_decay", self.weight_decay, is_finite(self.weight_decay) and self.weight_decay >= 0, "≥ 0")
        _require("batch_size", self.batch_size, _positive(self.batch_size), "a whole number ≥ 1")
        _require("epochs", self.epochs, _positive(self.epochs), "a whole number ≥ 1")
        _require("steps", self.steps, self.steps is None or _positive(self.steps), "a whole number ≥ 1, or left out")
        _one_of("schedule", self.schedule, ("constant", "cosine"))

    def lr_at(self, t: int, rounds: int) -> float:
        """The learning rate of round t, counted from 0."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + round(math.cos(math.pi * t / rounds), 12))


@dataclass(frozen=True)
class Server:
    """How the server steps with the mean of the updates: any rule of torch.optim; SGD(lr=1) is FedAvg.

    Args:
        optimizer: its name in torch.optim: "SGD", "Adam", …
        lr: η, the server's learning rate.
        options: its further arguments, such as momentum (FedAvgM) or betas and eps (FedAdam).

    Example:
        >>> server = Server("Adam", lr=0.01, options={"eps": 1e-3})
        >>> server.rule(torch.zeros(3)).defaults["eps"]
        0.001

    Reference: Reddi et al., Adaptive Federated Optimization, 2021.
    """

    optimizer: str = "SGD"
    lr: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = {n for n, c in vars(torch.optim).items() if inspect.isclass(c) and issubclass(c, torch.optim.Optimizer)}
        if self.optimizer not in rules:
            hint = notation.among(self.optimizer, rules - {"Optimizer", "LBFGS", "SparseAdam"})
            raise ValueError(f"optimizer {self.optimizer!r} is not in torch.optim{hint}")
        _require("lr", self.lr, is_finite(self.lr) and self.lr > 0, "a positive number")
        lists = {name: tuple(v) if isinstance(v, list) else v for name, v in self.options.items()}  # as TOML has them
        object.__setattr__(self, "options", lists)
        try:  # also a step, which is where some say that they want a closure, matrices or sparse gradients
            tried = torch.zeros(1)
            rule = self.rule(tried)
            tried.grad = torch.zeros(1)
            rule.step()
        except (TypeError, ValueError, RuntimeError) as why:
            raise ValueError(f"optimizer {self.optimizer!r} cannot step: {why}") from None

    def __hash__(self) -> int:
        return hash((self.optimizer, self.lr, tuple(sorted(self.options.items()))))

    def rule(self, flat: Tensor) -> torch.optim.Optimizer:
        """The optimizer of one flat parameter."""
        made: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)([flat], lr=self.lr, **self.options)
        return made


@dataclass(frozen=True)
class Experiment:
    """One run, from the first round to the last.

    Args:
        model: a built-in name or `module:callable`.
        data: what is learned.
        partition: who has what.
        compress: what clients send; of several operators, client i has the one at i modulo their number.
        local: what clients do in a round.
        server: what the server does with the mean.
        rounds: how many.
        clients_per_round: how many are sampled; None: all.
        dropout: the chance that a sampled client vanishes after training: nothing arrives, its memory is as before.
        weights: p_k by the number of "examples", or "equal".
        downlink: what the server sends: the "dense" model; only what has changed since the client's last round
            ("delta"), as new values, whichever is shorter; or what an operator chooses of each round's movement, with
            the server's own memory: clients then train from the model that they have received, and it is what is evaluated.
        initial: how a client comes by the model before the first round: it is "sent", or "drawn" by the client itself
            from the seed, which is 8 bytes.
        buffers: BatchNorm's running statistics: "average" sends and counts them; "local" keeps them on the clients,
            and evaluation normalises each test batch by itself.
        precision: of training and evaluation: "float32", "tf32" (a GPU's) or "bfloat16" (autocast).
        cost: under which Σc is reported, whatever selects.
        ledger: what each client's round costs in joules, and what it lives on; of several, client i has the one at i
            modulo their number; None: no ledger is kept.
        evaluate_every: rounds between two evaluations; the last round always is.
        on_nan: "stop", or "drop" a client whose update is not finite, as if it had vanished.
        seed: of everything that is drawn.
    """

    model: str = "mlp"
    data: Data = Data()
    partition: Partition = Dirichlet(clients=10, alpha=0.5)
    compress: Compressor | tuple[Compressor, ...] = DENSE
    local: LocalSGD = LocalSGD()
    server: Server = Server()
    rounds: int = 20
    clients_per_round: int | None = None
    dropout: float = 0.0
    weights: Literal["examples", "equal"] = "examples"
    downlink: str | Compressor = "dense"
    initial: Literal["sent", "drawn"] = "sent"
    buffers: Literal["average", "local"] = "average"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    cost: Cost = LayerType()
    ledger: Ledger | tuple[Ledger, ...] | None = None
    evaluate_every: int = 1
    on_nan: Literal["stop", "drop"] = "stop"
    seed: int = 0

    def __post_init__(self) -> None:
        _require("rounds", self.rounds, _positive(self.rounds), "a whole number ≥ 1")
        _require("evaluate_every", self.evaluate_every, _positive(self.evaluate_every), "a whole number ≥ 1")
        _require("dropout", self.dropout, is_finite(self.dropout) and 0 <= self.dropout < 1, "in [0, 1)")
        _require("seed", self.seed, is_count(self.seed), "a whole number ≥ 0")
        n, most = self.clients_per_round, getattr(self.partition, "clients", math.inf)  # ByColumn does not know yet
        fits = n is None or (_positive(n) and n <= most)
        _require("clients_per_round", n, fits, f"between 1 and the partition's {most} clients, or left out for all")
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                _one_of(name, getattr(self, name), get_args(hint))
        if not self.operators:
            raise ValueError("compress names no operator; for every entry write 'dense'")
        if self.ledger == ():
            raise ValueError("ledger names none; to keep no ledger, leave it out")
        if self.downlink == DENSE:
            object.__setattr__(self, "downlink", "dense")  # one way to write it
        for key in TEXTS:
            value = getattr(self, key)
            for each in value if isinstance(value, tuple) and key in MANY else (value,):
                if each is not None or key != "ledger":
                    _check_kind(key, each)

    @property
    def operators(self) -> tuple[Compressor, ...]:
        """What clients send by: client i has the one at i modulo their number."""
        return self.compress if isinstance(self.compress, tuple) else (self.compress,)

    def operator(self, client: int) -> Compressor:
        """What this client sends by."""
        return self.operators[client % len(self.operators)]

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Whose joules are counted how: client i has the one at i modulo their number; empty: nobody's are."""
        return () if self.ledger is None else self.ledger if isinstance(self.ledger, tuple) else (self.ledger,)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON or TOML; `Experiment.of` reads it.

        A key that came later is left out at its default, so that older runs keep their names, and go on.

        Example:
            >>> Experiment.of(Experiment(rounds=3).to_dict()) == Experiment(rounds=3)
            True
        """
        found = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {key: value for key, value in found.items() if key not in LATER or value != LATER[key]}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Experiment:
        """Read settings as a TOML file holds them; an error names the key, the value and what is allowed."""
        return cls(**{key: _value(cls, key, value) for key, value in _known(cls, settings, "").items()})

    @property
    def fingerprint(self) -> str:
        """32 bits in hexadecimal: equal for equal experiments, wherever a machine keeps published data."""
        text = json.dumps(anywhere(self.to_dict()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


LATER = {"initial": "sent"}  # keys that older results lack
DOWNLINKS = ("dense", "delta")  # what the server sends where that is no operator
TABLES: dict[str, type] = {"data": Data, "local": LocalSGD, "server": Server}
TEXTS = {  # settings written as in Python: what they are, and the method that they have
    "partition": ("a partition", "split"),
    "compress": ("an operator", "init"),
    "downlink": ("an operator", "init"),
    "cost": ("a cost model", "joules"),
    "ledger": ("a ledger", "uplink"),
}
MANY = ("compress", "ledger")  # of which a fleet may have several
EXAMPLES = {
    "compress": "TopK(density=0.1)",
    "downlink": "ErrorFeedback(TopK(density=0.03))",
    "ledger": "Ledger(device='phone', link='wifi-ac')",
}
PARTITIONS = {kind.__name__: kind for kind in (IID, ByColumn, Dirichlet, Quantity, Shards)}
OPERATORS = {
    name: value
    for name in joulegrad.__all__
    if inspect.isclass(value := getattr(joulegrad, name)) and dataclasses.is_dataclass(value)
    if hasattr(value, "init") or hasattr(value, "joules")
}
WRITTEN_OUT = {kind.__name__: kind for kind in (profiles.DeviceProfile, profiles.LinkProfile, profiles.Quantity)}
OPERATORS |= WRITTEN_OUT
LEDGERS = {"Ledger": Ledger, "Battery": Battery} | WRITTEN_OUT
NAMES: dict[str, dict[str, Any]] = {"partition": PARTITIONS, "ledger": LEDGERS}
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Mapping: "a table"}


def load(file: Path) -> dict[str, Any]:
    """The settings of a file, TOML or JSON."""
    try:
        text = file.read_text()
        return dict(json.loads(text)) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as why:
        raise ValueError(f"{file}: {why.strerror}") from None
    except (ValueError, TypeError) as why:
        raise ValueError(f"{file} is not {'JSON' if file.suffix == '.json' else 'TOML'}: {why}") from None


def anywhere(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the folder where this machine keeps published data: they are the same everywhere.

    Example:
        >>> anywhere({"rounds": 5, "data": {"name": "cifar10", "directory": "here"}})
        {'rounds': 5, 'data': {'name': 'cifar10', 'directory': None}}
    """
    data = settings.get("data")
    if isinstance(data, Mapping) and data.get("name") in ARCHIVES and data.get("directory") is not None:
        return {**settings, "data": {**data, "directory": None}}
    return dict(settings)


def changed(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The settings with one changed: `rounds`, `local.lr`, or a field of an operator, `compress.density`.

    Example:
        >>> changed({"compress": "ErrorFeedback(TopK(density=0.1))"}, "compress.density", 0.01)
        {'compress': 'ErrorFeedback(TopK(density=0.01))'}
    """
    first, _, rest = key.partition(".")
    _known(Experiment, {first: None}, "")
    if not rest:
        return {**settings, key: value}
    if first in TABLES:
        table = settings.get(first, {})
        if not isinstance(table, Mapping):
            raise ValueError(f"{first} is a table, [{first}] in TOML, got {table!r}")
        return {**settings, first: {**table, rest: value}}
    if first not in TEXTS:
        raise ValueError(f"{key}: {first} has no parts")
    if first == "ledger" and settings.get(first) is None:
        raise ValueError(f'{key}: no ledger is kept; give one first, such as ledger = "{EXAMPLES[first]}"')
    if first in ("compress", "downlink") and settings.get(first, "dense") in DOWNLINKS:
        mode = settings.get(first, "dense")
        raise ValueError(f"{key}: {first} is {mode!r}, which has no parts; name an operator first")
    now = _value(Experiment, first, settings[first]) if first in settings else getattr(Experiment(), first)
    if isinstance(value, list):
        value = tuple(value)
    try:
        if isinstance(value, str) and value.endswith(")"):
            value = _read(first, value)
        parts = [notation.replaced(v, rest, value) for v in (now if isinstance(now, tuple) else (now,))]
    except ValueError as why:
        raise ValueError(f"{key}: {why}") from None
    return {**settings, first: _plain(tuple(parts) if isinstance(now, tuple) else parts[0])}


def _known(kind: Any, settings: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """Only keys that there are."""
    names = [f.name for f in dataclasses.fields(kind)]
    for key in settings:
        if key not in names:
            raise ValueError(f"the key {prefix + key!r} is not known{notation.among(key, names)}")
    return settings


def _value(kind: type, key: str, value: Any) -> Any:
    """A setting as the object that it stands for."""
    if key in TABLES:
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is a table, [{key}] in TOML, got {value!r}")
        _known(TABLES[key], value, f"{key}.")
        try:
            return TABLES[key](**_typed(TABLES[key], value, f"{key}."))
        except (TypeError, ValueError) as why:
            raise ValueError(f"{key}.{why}" if not str(why).startswith(f"{key}.") else str(why)) from None
    if key in TEXTS:
        many = isinstance(value, list | tuple)
        if value is None and key == "ledger":
            return None
        if many and key not in MANY:
            raise ValueError(f"{key} is one text, got {value!r}")
        return tuple(_text(key, v) for v in value) if many else _text(key, value)
    return _typed(kind, {key: value}, "")[key]


def _text(key: str, value: Any) -> Any:
    """An object from its text."""
    if not isinstance(value, str):
        default = getattr(Experiment(), key)
        example = EXAMPLES[key] if default is None or isinstance(default, str) else notation.write(default)
        raise ValueError(f'{key} is written as in Python, {key} = "{example}", got {value!r}')
    if key == "compress" and value == "dense":
        return DENSE
    if key == "downlink" and (value in DOWNLINKS or value.isidentifier()):
        return value
    try:
        found = _read(key, value)
    except ValueError as why:
        raise ValueError(f"{key}: {why}") from None
    _check_kind(key, found)
    return found


def _read(key: str, value: str) -> Any:
    """Whatever a text names; `module:` before it brings the user's own callable, which need not be a class."""
    names = {**NAMES.get(key, OPERATORS)}
    module, colon, rest = value.partition(":")
    if colon and all(part.isidentifier() for part in module.split(".")):
        value, name = rest, rest.partition("(")[0].strip()
        names[name] = naming.imported(f"{module}:{name}")
    return notation.read(value, names)


def _check_kind(key: str, value: Any) -> None:
    what, method = TEXTS[key]
    if key == "downlink" and isinstance(value, str):
        if value not in DOWNLINKS:
            hint = notation.among(value, DOWNLINKS)
            raise ValueError(f"downlink {value!r} is not allowed{hint}, or an operator, such as {EXAMPLES[key]}")
        return
    if isinstance(value, type) or not hasattr(value, method):
        example = EXAMPLES.get(key) or notation.write(getattr(Experiment, key))
        raise ValueError(f"{key} must be {what}, such as {example}, got {value!r}")


def _typed(kind: type, settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Settings checked against their annotations, so that `rounds = "ten"` is refused by name."""
    hints = get_type_hints(kind)
    for key, value in settings.items():
        allowed = _allowed(hints[key])
        good = isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed)
        if not good:
            wanted = WORDS[float if float in allowed else allowed[0]]
            raise ValueError(f"{prefix}{key} must be {wanted}, got {value!r}")
    return dict(settings)


def _allowed(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    parts = get_args(hint) if not isinstance(hint, type) and get_origin(hint) is not Mapping else ()
    if (parts and not inspect.isclass(get_origin(hint))) or type(hint).__name__ == "UnionType":
        return tuple(t for part in parts for t in _allowed(part))
    origin = get_origin(hint) or hint
    if origin is float:
        return (int, float)
    return (list, tuple) if origin is tuple else (origin,)


def _plain(value: Any) -> Any:
    """An object as a TOML file holds it."""
    if value == DENSE:
        return "dense"
    if type(value) in TABLES.values():
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    return notation.write(value)
