"""How many bits a piece of torch code moves, through the cache and from main memory, by counting its operations.

Each operation reads its inputs and writes its outputs, once. A cache that forgets what was used longest ago holds whole
tensors; what it holds is a cache's bit, anything else comes from main memory, and what was written goes back there when
it is forgotten. Real caches hold parts of tensors, and libraries read some things twice: it is an estimate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Traffic"]


class Traffic(TorchDispatchMode):
    """Counts while it is entered.

    Args:
        cache_bytes: what the cache holds.

    Example:
        >>> x = torch.zeros(1000)
        >>> with Traffic(cache_bytes=1e6) as traffic:
        ...     y = x + 1          # x comes from memory
        ...     z = y * x          # both are in the cache
        >>> traffic.memory_bits, traffic.cache_bits
        (32000.0, 128000.0)
    """

    def __init__(self, cache_bytes: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = cache_bytes
        self.held: OrderedDict[int, tuple[float, bool]] = OrderedDict()  # storage: bytes, written; oldest first
        self.full = self.memory_bits = self.cache_bits = 0.0

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, then count it."""
        options = options or {}
        made = function(*arguments, **options)
        schema = function._schema  # type: ignore[attr-defined]  # of torch's own operations
        if not _is_view(schema) and schema.name not in ALLOCATING:
            places = [(a.name, a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments]
            changed = [
                arguments[i] if i < len(arguments) else options.get(name)
                for i, (name, is_written) in enumerate(places)
                if is_written
            ]
            self._moved(_tensors((arguments, options)), write=False)
            self._moved(_tensors((made, changed)), write=True)
        return made

    def _moved(self, tensors: Iterable[Tensor], write: bool) -> None:
        for place, size in {t.untyped_storage().data_ptr(): _size(t) for t in tensors if t.numel()}.items():
            if place and size > self.room:
                self.memory_bits += 8 * size
            elif place:
                self._through_cache(place, size, write)

    def _through_cache(self, place: int, size: float, write: bool) -> None:
        known = place in self.held
        before, changed = self.held.pop(place, (0.0, False))
        if not known and not write:
            self.memory_bits += 8 * size
        else:
            self.cache_bits += 8 * size  # what is made is made in the cache
        self.held[place] = (size, changed or write)
        self.full += size - before
        while self.full > self.room:
            _, (old, written) = self.held.popitem(last=False)
            self.full -= old
            self.memory_bits += 8 * old * written


ALLOCATING = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach")


def _is_view(schema: Any) -> bool:
    """Whether an operation only looks at memory that there is."""
    returned = [r.alias_info for r in schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _tensors(values: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.device.type != "meta")


def _size(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())
