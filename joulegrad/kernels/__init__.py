"""The arithmetic of selection. `reference` is the specification, in plain torch, on any device.

Faster kernels for a device must return the reference's result on every input; they would be chosen here,
by the tensor's device, and nowhere else.
"""

from joulegrad.kernels.reference import (
    Budgeted,
    at_least,
    budgeted,
    first_nonfinite,
    largest,
    prefix_within,
    scores,
)

__all__ = ["Budgeted", "at_least", "budgeted", "first_nonfinite", "largest", "prefix_within", "scores"]
