"""Count the peak memory of a function on a CPU."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(run: Callable[[], None], tensors: Sequence[Shaped[Tensor, "..."]]) -> int:
    """Count the peak bytes of live tensors during `run`, with the tensors that exist before.

    Args:
        run: function to run; temporary memory inside a kernel is not counted.
        tensors: those that exist before.

    Returns:
        Bytes; tensors that share memory count once.
    """
    before = {memory.data_ptr(): memory.nbytes() for memory in _storages(list(tensors))}
    alive = _Alive()
    with alive:
        run()
    return sum(before.values()) + alive.peak


class _Alive(TorchDispatchMode):
    """Dispatch mode that counts the bytes of new storages until each is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {int(storage._cdata) for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in inputs:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = int(storage._cdata), storage.nbytes()
        if key in self._known:
            return
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self._known.pop(key, 0)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [
        tensor.untyped_storage() for tensor in tree_leaves(values) if isinstance(tensor, Tensor)
    ]
