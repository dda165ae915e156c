"""The most memory that training needs, in bytes: counted on a cpu, as the accelerator tells it elsewhere.

The memory of a process would not do on a cpu: libraries and what earlier runs left are most of it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hessblocks.settings import RunSettings

AVERAGES = {"adamw": 2, "sgd": 1}
"""What an optimiser keeps of each parameter."""


def start_counting(model: PreTrainedModel, settings: RunSettings, sequences: int) -> int:
    """Bytes of one update on a cpu; on cuda 0, and counting begins.

    Args:
        model: to be trained; its gradients go.
        settings: of the run.
        sequences: of one pass on this device.

    Returns:
        Bytes of weights, gradients, the optimiser's averages and what a pass makes; 0 on cuda.
    """
    if settings.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return 0
    shape = (sequences, settings.model.context)
    tokens = torch.zeros(shape, dtype=torch.long, device=model.device)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.training.bf16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()

    found = peak_bytes(step, [*model.parameters(), *model.buffers()])
    model.zero_grad(set_to_none=True)
    kept = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return found + AVERAGES[settings.training.optimiser] * kept


def allocated_peak(device: str) -> int:
    """Bytes at most in use since `start_counting` on cuda; 0 on a cpu, where that has counted."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def peak_bytes(run: Callable[[], None], held: Sequence[Shaped[Tensor, "..."]]) -> int:
    """Most bytes of tensors alive at once while `run` runs, those held before included.

    Args:
        run: the work; what a kernel takes inside itself is not seen.
        held: what is alive before.

    Returns:
        Bytes; two tensors that share memory count once.
    """
    before = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held
    }
    alive = _Alive()
    with alive:
        run()
    return sum(before.values()) + alive.peak


class _Alive(TorchDispatchMode):
    """Adds up the storages that operations make, until each is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(x) for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and _key(tensor) not in given:
                self._add(tensor.untyped_storage())
        return made

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


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
