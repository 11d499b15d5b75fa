"""joulegrad on Flower: one line in the client app, one in the server app.

    app = ClientApp(mods=[compress(ErrorFeedback(CWMP(density=0.01, cost=LayerType())))])

    strategy = Sparse(FedAvg(...))

An adapter over flwr 1.41 and 1.42, with no algorithm of its own. docs/flower.md has the deployment.

client       the mod
server       the strategy
inside       what the strategy inside gets, and what of it is kept
broadcast    the model's versions, and who has which
arrays       Flower's arrays <-> one flat vector
memory       what a node keeps between two messages
checkpoint   what the server keeps
fleet        deadlines, and who is set aside
refusal      what is not taken, and why
journal      a line for every node of every round
"""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("joulegrad.flower needs flwr: pip install 'joulegrad[flower]'", name="flwr")

from joulegrad.flower.client import compress
from joulegrad.flower.fleet import Fleet
from joulegrad.flower.refusal import Limits, Refused
from joulegrad.flower.server import Sparse

__all__ = ["Fleet", "Limits", "Refused", "Sparse", "compress"]
