"""Put a model into the state in which it is differentiated twice, and back.

Fused attention kernels have no second derivative. Inside `differentiable` they are replaced by the
mathematical form. Afterwards the model is what it was: the same parameters, buffers, modes and
attributes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature.closed import (
    ClosedForms,
    Shared,
    Watch,
    differentiable_checkpoints,
    spell_weight_norms,
    swap_activations,
    swap_eager,
    watching,
)
from hessblocks.curvature.model_state import WriteProtection, attributes_of, restore

_plain_attention = Shared(lambda: sdpa_kernel(SDPBackend.MATH))
_eager = Shared(lambda: torch.compiler.set_stance("force_eager"))


class AttentionBackendWarning(UserWarning):
    """Warning that attention in plain form holds tokens × tokens numbers in a long context.

    The plain form stands in for a fused kernel, which has no second derivative.
    """


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off and fix batch norm; restore each module afterwards, values included.

    It does not matter whether these were set or written inside.

    Raises:
        RunError: trained weights were written; they are put back.
    """
    before, values = attributes_of(model), WriteProtection(model)
    try:
        values.copy_in()
        values.settle()
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False  # the same numbers, which autograd can go on with
        yield
    finally:
        restore(before)
        values.put_back()


@contextmanager
def differentiable(model: nn.Module, *, closed_forms: bool = True) -> Iterator[Watch]:
    """Enter evaluation mode with twice differentiable attention; warn where that costs memory.

    Args:
        model: is used inside.
        closed_forms: whether activations, norms and softmax have their derivatives in closed form,
            two of them; else torch differentiates, as often as is asked.

    Yields:
        What the model was seen to do.
    """
    fused_allowed = torch.backends.cuda.flash_sdp_enabled()
    with backward_pass(model), watching() as watch:
        if closed_forms:
            swap_activations(model, watch)
        eager = swap_eager(watch) if closed_forms else nullcontext()
        with ClosedForms(watch, swap=closed_forms), eager:
            yield watch
    if watch.attention and fused_allowed:
        warnings.warn(
            "curvature: fused attention has no second derivative, and tiles take no dropout, no "
            "mask that needs a gradient and no part under activation checkpointing: tokens × "
            "tokens numbers a head are held; leave these out, or take shorter sequences",
            AttentionBackendWarning,
            stacklevel=1,
        )


@contextmanager
def differentiable_once(model: nn.Module) -> Iterator[Watch]:
    """Enter evaluation mode with the model's own kernels, which are enough for gradients.

    Args:
        model: is used inside.

    Yields:
        What the model was seen to do.
    """
    with (
        evaluation_mode(model),
        uncompiled(),
        differentiable_checkpoints,
        watching() as watch,
    ):
        yield watch


@contextmanager
def backward_pass(model: nn.Module) -> Iterator[None]:
    """Build a graph inside, where parts of `model` may be recomputed while it is differentiated."""
    with (
        evaluation_mode(model),
        _plain_attention,
        uncompiled(),
        differentiable_checkpoints,
    ):
        spell_weight_norms(model)
        yield


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules as they were written."""
    if "torch._dynamo" not in sys.modules:  # its import takes seconds
        return nullcontext()
    return _eager


def put_in(model: nn.Module, tensors: Mapping[str, Float[Tensor, "..."]]) -> None:
    """Put tensors in the place of parameters; for use inside `evaluation_mode`.

    Every module that holds a parameter gets the tensor, tied ones included.
    A parameter is found by identity, under all its names (tied weights, one module registered
    twice).

    Args:
        model: is changed.
        tensors: by the parameters' names in `named_parameters`.
    """
    named = dict(model.named_parameters())
    new = {id(named[name]): tensor for name, tensor in tensors.items()}
    for module in model.modules():
        for name, value in module._parameters.items():
            module._parameters[name] = new.get(id(value), value)  # type: ignore[assignment]
