"""Names that a user gives: what they may have meant, and their own code as `module:callable`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["call", "imported", "nearest"]


def nearest(given: str, valid: Iterable[str]) -> str:
    """What may have been meant, as the end of an error message; empty if nothing is near.

    Example:
        >>> nearest("cifar-10", ["digits", "cifar10"])
        "; did you mean 'cifar10'?"
    """
    near = difflib.get_close_matches(given, list(valid), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def imported(name: str) -> Callable[..., Any]:
    """Import the user's own callable, named `module:callable`; the current folder is searched last.

    Example:
        >>> imported("math:gcd")(12, 18)
        6
        >>> imported("math:gdc")
        Traceback (most recent call last):
        ValueError: module 'math' has no 'gdc'; did you mean 'gcd'?
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # an installed command, unlike `python -m`, does not look where it is run
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as why:
        if why.name is None or not f"{module_name}.".startswith(f"{why.name}."):
            raise  # the module is there; what it imports is not
        raise ValueError(f"{name!r} names a module that is not found: {module_name!r}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name!r} has no {attribute!r}{nearest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name!r} is not callable: it is a {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def call(function: Callable[..., Any], **offered: Any) -> Any:
    """Call with those of the named values that the function accepts.

    Example:
        >>> call(lambda classes: classes, shape=(3, 32, 32), classes=10)
        10
    """
    parameters = inspect.signature(function).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return function(**{name: value for name, value in offered.items() if anything or name in parameters})
