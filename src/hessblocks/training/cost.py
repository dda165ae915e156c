"""Measure the cost of an update: seconds, floating-point operations, bytes of memory."""

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from hessblocks.settings import RunSettings
from hessblocks.training.preparation import model_without_weights
from hessblocks.training.trainer import layer_matrices

AVERAGES = {"adamw": 2, "sgd": 1, "muon": 2}
"""Moving averages that an optimiser keeps of each parameter; muon one of the layers' matrices."""


def working_seconds(device: str) -> float:
    """Read a clock of this process's work.

    Args:
        device: cpu or cuda.

    Returns:
        Seconds. On the CPU, processor time of all threads, which other programs hardly affect; on
        CUDA, wall-clock time after all kernels are finished.
    """
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def update_flops(settings: RunSettings, vocab_size: int) -> int:
    """Count the floating-point operations (FLOPs) of one update, forward and backward.

    Only matrix products count, with two operations per multiply-add.

    The model is on the meta device, without memory. Attention counts all tokens × tokens scores,
    though a fused kernel may skip the masked half. Norms, activations and the optimiser are not
    counted. The running means of shaped attention count, since they are products with a small
    triangular matrix: less than 1 % of a layer.

    Args:
        settings: settings of the run.
        vocab_size: entries of the vocabulary.

    Returns:
        Number of operations, over all passes of the update.

    Source:
        `torch.utils.flop_counter.FlopCounterMode`.
    """
    model = model_without_weights(settings.model, settings.preset, vocab_size)
    return sequence_flops(model, settings.model.context) * settings.training.batch_size


@cache
def sequence_flops(model: PreTrainedModel, context: int) -> int:
    """Count the operations of one sequence; cached, since seeds do not change them.

    Args:
        model: model on the meta device.
        context: tokens of the sequence.

    Returns:
        Number of operations; see `update_flops`.
    """
    tokens = torch.zeros(1, context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=tokens, labels=tokens).loss.backward()
    count: int = counter.get_total_flops()
    return count


def start_counting(model: PreTrainedModel, settings: RunSettings, sequences: int) -> int:
    """Count the peak memory of one update on a CPU; on CUDA reset the peak counter and return 0.

    Args:
        model: model to train; its gradients are set to None.
        settings: settings of the run.
        sequences: sequences of one pass on this device.

    Returns:
        Bytes of weights, gradients, optimiser state and activations; 0 on CUDA.
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

    # compiled code hides its tensors
    eager = torch.compiler.set_stance if settings.training.compile else nullcontext
    with eager("force_eager"):
        peak = peak_bytes(step, [*model.parameters(), *model.buffers()])
    model.zero_grad(set_to_none=True)
    optimiser, trained = (
        settings.training.optimiser,
        [p for p in model.parameters() if p.requires_grad],
    )
    peak += AVERAGES[optimiser] * sum(p.nbytes for p in trained)
    return peak - (sum(p.nbytes for p in layer_matrices(model)) if optimiser == "muon" else 0)


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
