"""Run a model's forward pass at given parameters, with a graph for one or two derivatives.

Fused attention kernels have no second derivative. Inside `differentiable` they are replaced by
tiles or plain products. Afterwards the model's parameters, buffers, modes and attributes are
restored.

For two derivatives the modes of `Mode` are tried in order, the fastest first. A forward pass finds
out whether its mode works for the model; later passes start with the mode that worked.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature import closed
from hessblocks.curvature.losses import Batch, LogitsUsed, defer_logits
from hessblocks.curvature.model_state import evaluation_mode, exclusive
from hessblocks.curvature.products.calling import ForwardCall
from hessblocks.curvature.products.distributed import WHOLE, in_evaluation_mode
from hessblocks.errors import ArgumentError

Parameters = Mapping[str, Float[Tensor, "..."]]

plain_attention = closed.CountedContext(lambda: sdpa_kernel(SDPBackend.MATH))
_eager = closed.CountedContext(lambda: torch.compiler.set_stance("force_eager"))


class AttentionBackendWarning(UserWarning):
    """Warning that attention stores a tokens × tokens matrix per head in a long context.

    This plain form replaces a fused kernel, which has no second derivative.
    """


@contextmanager
def differentiable(model: nn.Module, *, closed_forms: bool = True) -> Iterator[closed.Watch]:
    """Enter evaluation mode with twice differentiable attention; warn if that costs memory.

    Args:
        model: model that is called in the block.
        closed_forms: whether activations, norms and softmax use closed forms, which have two
            derivatives; else they use autograd's derivatives of any order.

    Yields:
        Record of the forward pass.
    """
    fused_allowed = torch.backends.cuda.flash_sdp_enabled()
    with backward_pass(model) as modules, closed.watching() as watch:
        if closed_forms:
            closed.swap_activations(modules, watch)
        with closed.ClosedForms(watch, swap=closed_forms):
            yield watch
    if watch.attention and fused_allowed:
        warnings.warn(
            "curvature: fused attention has no second derivative, and tiles take no dropout, no "
            "mask that needs a gradient and no part under activation checkpointing: plain "
            "attention stores a tokens × tokens matrix per head; leave these out, or take shorter "
            "sequences",
            AttentionBackendWarning,
            stacklevel=1,
        )


@contextmanager
def differentiable_once(model: nn.Module) -> Iterator[closed.Watch]:
    """Enter evaluation mode with torch's kernels, which suffice for gradients.

    Args:
        model: model that is called in the block.

    Yields:
        Record of the forward pass.
    """
    with _settled(model), closed.watching() as watch:
        yield watch


@contextmanager
def backward_pass(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Enter the state in which a graph is differentiated and checkpointed parts are recomputed.

    Yields:
        All modules.
    """
    with _settled(model) as modules, plain_attention:
        closed.spell_weight_norms(modules)
        yield modules


@contextmanager
def _settled(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Enter evaluation mode, with compiled modules and reentrant checkpoints replaced."""
    with evaluation_mode(model) as modules, uncompiled(), closed.differentiable_checkpoints:
        yield modules


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules eagerly."""
    if "torch._dynamo" not in sys.modules:  # its import takes seconds
        return nullcontext()
    return _eager


def put_in(model: nn.Module, tensors: Mapping[str, Float[Tensor, "..."]]) -> None:
    """Replace parameters by tensors, inside of `evaluation_mode`.

    Parameters are found by identity, so that a tied parameter is replaced under all its names.

    Args:
        model: model to change.
        tensors: new tensors by the parameters' names in `named_parameters`.
    """
    named = dict(model.named_parameters())
    new = {id(named[name]): tensor for name, tensor in tensors.items()}
    for module in model.modules():
        for name, value in module._parameters.items():
            module._parameters[name] = new.get(id(value), value)  # type: ignore[assignment]


class Mode(IntEnum):
    """Modes of differentiating twice, in the order in which they are tried."""

    LAZY_LOGITS = 0
    """Closed forms, and lazy logits."""
    CLOSED_FORMS = 1
    """Closed forms, but ordinary logits, since the model uses its logits before it returns them."""
    AUTOGRAD = 2
    """torch's derivatives, since the model differentiates in its forward pass."""


class Forward:
    """Forward pass of one model; it remembers the mode that works for the model."""

    def __init__(self, model: nn.Module, loss: Any, *, sharded: bool) -> None:
        """Read the model's signature; the model is not called.

        Args:
            model: model to call.
            loss: loss of the problem.
            sharded: whether `fully_shard` has sharded the parameters.
        """
        self._model, self._sharded = model, sharded
        self._call = ForwardCall(model, loss)
        self._mode = Mode.LAZY_LOGITS
        self._recomputed = False

    def without_lazy_logits(self) -> Forward:
        """Copy the forward pass, without lazy logits."""
        copied = copy.copy(self)
        copied._raise_mode(Mode.CLOSED_FORMS)
        return copied

    def outputs(self, batch: Batch, parameters: Parameters, *, twice: bool, by_rows: bool) -> Any:
        """Call the model, repeatedly until a mode works.

        Args:
            batch: the inputs.
            parameters: all trainable parameters by name.
            twice: whether second derivatives will be computed.
            by_rows: whether the loss is a sum over rows, which lazy logits need.

        Returns:
            The model's outputs.

        Raises:
            ArgumentError: the model is sharded, and second derivatives will be computed.
        """
        if self._sharded:
            if twice:
                raise ArgumentError(WHOLE)
            with exclusive(self._model), in_evaluation_mode(self._model):
                return self._call(batch)
        # the loop ends: each repetition raises the mode
        while (outputs := self._try(batch, parameters, twice=twice, by_rows=by_rows)) is None:
            pass
        return outputs[0]

    def _try(
        self, batch: Batch, parameters: Parameters, *, twice: bool, by_rows: bool
    ) -> tuple[Any] | None:
        """Call the model once; return its outputs in a tuple, or None to repeat the call."""
        mode = self._mode
        swap = mode is not Mode.AUTOGRAD
        state = partial(differentiable, closed_forms=swap) if twice else differentiable_once
        try:
            with exclusive(self._model), state(self._model) as watch:
                put_in(self._model, parameters)
                if twice and by_rows and mode is Mode.LAZY_LOGITS:
                    defer_logits(self._model, watch)
                outputs = self._call(batch)
        except LogitsUsed:
            self._raise_mode(Mode.CLOSED_FORMS)
            return None
        self._recomputed |= watch.recomputed
        if twice and watch.differentiated and swap:
            self._raise_mode(Mode.AUTOGRAD)  # the model took one of a closed form's two derivatives
            return None
        return (outputs,)

    def _raise_mode(self, mode: Mode) -> None:
        self._mode = max(self._mode, mode)

    def backward(self) -> AbstractContextManager[object]:
        """Enter the state in which to differentiate `outputs`, for checkpointed parts."""
        return backward_pass(self._model) if self._recomputed else nullcontext()
