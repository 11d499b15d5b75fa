"""Objects as text and back: what `ErrorFeedback(TopK(density=0.01))` is in Python, it is in a TOML file.

Nothing is evaluated: a text is parsed, its names are looked up among those allowed, its arguments are numbers,
strings, lists, mappings and further objects. The user's own dataclasses are named with their module:
`ErrorFeedback(mine.FirstK(k=10))`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from joulegrad.lab import naming

__all__ = ["among", "field_names", "read", "replaced", "write"]


def read(text: str, names: Mapping[str, Any]) -> Any:
    """The object that a text names.

    Example:
        >>> read("TopK(density=0.1)", {"TopK": TopK})
        TopK(k=None, density=0.1)
        >>> read("TopKK(density=0.1)", {"TopK": TopK})
        Traceback (most recent call last):
        ValueError: 'TopKK' in 'TopKK(density=0.1)' is not known; did you mean 'TopK'? There are: TopK
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as why:
        raise ValueError(f"{text!r} cannot be read: {why.msg}") from None
    return _object(tree, names, text)


def _object(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.Call(func=ast.Name() | ast.Attribute() as function, args=arguments, keywords=keywords):
            name = ast.unparse(function)
            make = _named(name, names, text)
            by_position = [_object(a, names, text) for a in arguments]
            by_name = {k.arg: _object(k.value, names, text) for k in keywords if k.arg is not None}
            _check_arguments(name, make, by_name, text)
            try:
                return make(*by_position, **by_name)
            except TypeError as why:
                raise ValueError(f"{name} in {text!r}: {why}") from None
        case ast.Name(id=name):
            found = _named(name, names, text)
            if isinstance(found, type):
                raise ValueError(f"{name} in {text!r} needs brackets: {name}(…)")
            return found
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_object(p, names, text) for p in parts)
        case ast.Dict(keys=keys, values=values) if all(keys):
            pairs = zip(keys, values, strict=True)
            return {_object(k, names, text): _object(v, names, text) for k, v in pairs if k is not None}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)!r} in {text!r} is neither a number, a string nor a call of a known name"
        ) from None


def _named(name: str, names: Mapping[str, Any], text: str) -> Any:
    module, dot, own = name.rpartition(".")
    if dot:
        found = naming.imported(f"{module}:{own}")
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise ValueError(f"{name} in {text!r} is no dataclass, and only those can be named with their module")
        return found
    if name not in names:
        raise ValueError(f"{name!r} in {text!r} is not known{among(name, names)}")
    return names[name]


def _check_arguments(name: str, make: Any, given: Iterable[str], text: str) -> None:
    if not dataclasses.is_dataclass(make):
        return
    allowed = [f.name for f in dataclasses.fields(make) if f.init]
    for argument in given:
        if argument not in allowed:
            raise ValueError(f"{name} in {text!r} has no argument {argument!r}{among(argument, allowed)}")


def among(wrong: str, allowed: Iterable[str]) -> str:
    """The end of an error: what was probably meant, and what there is."""
    names = sorted(allowed)
    return f"{naming.nearest(wrong, names) or '.'} There are: {', '.join(names) or 'none'}"


def write(value: Any) -> str:
    """The text of an object, without the arguments that are what they would be anyway.

    Example:
        >>> write(ErrorFeedback(CWMP(density=0.01, cost=LayerType())))
        'ErrorFeedback(CWMP(density=0.01, cost=LayerType()))'
    """
    if isinstance(value, tuple | list):
        return f"[{', '.join(write(v) for v in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: {write(v)}' for k, v in value.items())}}}"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise ValueError(
            f"a {type(value).__name__} cannot be written down: what an experiment is made of must be dataclasses, "
            f"numbers, strings, tuples and mappings, got {value!r}"
        )
    parts = []
    for f in dataclasses.fields(value):
        argument = getattr(value, f.name)
        if f.default is not dataclasses.MISSING and argument == f.default:
            continue
        if f.default_factory is not dataclasses.MISSING and argument == f.default_factory():
            continue
        parts.append(write(argument) if f.name == "inner" else f"{f.name}={write(argument)}")
    kind = type(value)
    home = "" if kind.__module__.partition(".")[0] == "joulegrad" else f"{kind.__module__}."
    return f"{home}{kind.__qualname__}({', '.join(parts)})"


def replaced(value: Any, name: str, new: Any) -> Any:
    """The object with one field changed: its own, or that of the outermost object inside that has such a field.

    Example:
        >>> replaced(ErrorFeedback(TopK(density=0.1)), "density", 0.01)
        ErrorFeedback(inner=TopK(k=None, density=0.01), decay=1.0)
    """
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    if name in fields:
        return dataclasses.replace(value, **{name: new})
    for field, inside in fields.items():
        if dataclasses.is_dataclass(inside) and name in field_names(inside):
            return dataclasses.replace(value, **{field: replaced(inside, name, new)})
    raise ValueError(f"{write(value)} has no field {name!r}{among(name, field_names(value))}")


def field_names(value: Any) -> list[str]:
    """The names of an object's fields and of those inside it."""
    own = [f.name for f in dataclasses.fields(value) if f.init]
    inside = [getattr(value, name) for name in own]
    return [*own, *(n for v in inside if dataclasses.is_dataclass(v) for n in field_names(v))]
