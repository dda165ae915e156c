"""Memory limits: the default limit, a cache with a limit, and slices that cover a range."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Generic, Protocol, TypeVar

import torch

from hessblocks.errors import main_memory


class Sized(Protocol):
    """Object with a size in bytes, such as a tensor."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


Value = TypeVar("Value", bound=Sized)


class BoundedCache(Generic[Value]):
    """LRU cache with a limit in bytes; beyond it, the least recently used values are dropped."""

    def __init__(self, limit: int) -> None:
        """Start empty.

        Args:
            limit: bytes; a larger value is never cached.
        """
        self._limit = limit
        self._held = 0
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the cached value of `key`, else make it; the size of a value must not change."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        value = make()
        self._kept[key] = value, value.nbytes
        self._held += self._kept[key][1]
        while self._held > self._limit:  # the oldest first; a too large value drops itself last
            _, (_, size) = self._kept.popitem(last=False)
            self._held -= size
        return value


def default_limit(device: torch.device) -> int:
    """Return a quarter of the device's memory, in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // 4
    return main_memory() // 4


def chunks(length: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover range(length)."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def slices(lengths: Iterable[int]) -> list[slice]:
    """Build slices of these lengths, one after the other."""
    ends = accumulate(lengths, initial=0)
    return [slice(start, end) for start, end in pairwise(ends)]
