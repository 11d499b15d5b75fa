"""joulegrad sends the part of a model update that is worth its joules.

layout       where each parameter lies in one flat vector
sparse       the one thing that travels
cost         joules per entry
profiles     devices and links as data
selection    what to send
allotment    bytes divided among layers
repricing    costs that follow what is sent
feedback     what to remember
state        saving what is remembered
wire         the bytes that travel
aggregate    many sparse updates into one dense vector
energy       joules of what happened: meters, and a ledger
"""

from joulegrad.aggregate import Mean, mean
from joulegrad.allotment import LayerWise
from joulegrad.compressor import Compressor, Rule
from joulegrad.cost import Cost, Device, LayerType, PerEntry, Prices, Table, Uniform, joules_of
from joulegrad.feedback import (
    Clipped,
    ErrorFeedback,
    MomentumCorrection,
    Quantized,
    Rounded,
    WarmUp,
)
from joulegrad.layout import Layout, Segment
from joulegrad.repricing import Repriced
from joulegrad.selection import CWMP, Blocks, BudgetedCWMP, Certificate, PerChunk, PerLayer, RandomK, Threshold, TopK
from joulegrad.sparse import Codes, SparseUpdate
from joulegrad.state import load_state_dict, state_dict
from joulegrad.wire import WireError, decode, encode, inspect

__version__ = "0.1.0"

__all__ = [
    "CWMP",
    "Blocks",
    "BudgetedCWMP",
    "Certificate",
    "Clipped",
    "Codes",
    "Compressor",
    "Cost",
    "Device",
    "ErrorFeedback",
    "LayerType",
    "LayerWise",
    "Layout",
    "Mean",
    "MomentumCorrection",
    "PerChunk",
    "PerEntry",
    "PerLayer",
    "Prices",
    "Quantized",
    "RandomK",
    "Repriced",
    "Rounded",
    "Rule",
    "Segment",
    "SparseUpdate",
    "Table",
    "Threshold",
    "TopK",
    "Uniform",
    "WarmUp",
    "WireError",
    "decode",
    "encode",
    "inspect",
    "joules_of",
    "load_state_dict",
    "mean",
    "state_dict",
]
