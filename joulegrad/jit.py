"""numba's compiler, with a cache on disk where one can be written and without where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile at the first call, without the GIL; keep the result for the next process if there is a place for it."""
    try:
        return cast(F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))
    except RuntimeError:  # numba found no directory that it may write to
        return cast(F, numba.njit(function, nogil=True, error_model="numpy"))
