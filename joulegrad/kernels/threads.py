"""Compiled code releases the GIL, so ordinary threads share a pass over the update."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch

WORTH_A_THREAD = 1 << 17  # entries; handing work to a thread costs some ten microseconds


def chunks(size: int) -> list[tuple[int, int]]:
    """[0, size) in equal runs, one a thread of torch's, fewer where that would not pay."""
    n = max(1, min(torch.get_num_threads(), size // WORTH_A_THREAD))
    return [(size * i // n, size * (i + 1) // n) for i in range(n)]


def each(work: Callable[..., Any], *arguments: list[Any]) -> list[Any]:
    """`map`, in as many threads as there are items; results in their order."""
    if len(arguments[0]) == 1:
        return [work(*(items[0] for items in arguments))]
    return list(_pool(os.getpid(), len(arguments[0])).map(work, *arguments))


@lru_cache(maxsize=4)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool a process: a fork's child has none of its parent's threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="joulegrad")
