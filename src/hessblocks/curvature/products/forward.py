"""Run the forward pass of a model at other parameters, ready for one or two derivatives.

Fused attention kernels have no second derivative. Inside `differentiable` they are replaced by the
mathematical form. Afterwards the model is what it was: the same parameters, buffers, modes and
attributes.

For two derivatives the modes are tried in order, since each asks more of the model than the next.
A pass shows whether its mode fits; later passes begin with the mode that did.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
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
from hessblocks.curvature.model_state import evaluation_mode, exclusive, writes_of
from hessblocks.curvature.products.calling import Call
from hessblocks.curvature.sharding import Cut, Way, own_rows, run_in_parts

Parameters = Mapping[str, Float[Tensor, "..."]]

_plain_attention = closed.Shared(lambda: sdpa_kernel(SDPBackend.MATH))
_eager = closed.Shared(lambda: torch.compiler.set_stance("force_eager"))


class AttentionBackendWarning(UserWarning):
    """Warning that attention in plain form holds tokens × tokens numbers in a long context.

    The plain form stands in for a fused kernel, which has no second derivative.
    """


@contextmanager
def differentiable(model: nn.Module, *, closed_forms: bool = True) -> Iterator[closed.Watch]:
    """Enter evaluation mode with twice differentiable attention; warn where that costs memory.

    Args:
        model: is used inside.
        closed_forms: whether activations, norms and softmax have their derivatives in closed form,
            two of them; else torch differentiates, as often as is asked.

    Yields:
        What the model was seen to do.
    """
    fused_allowed = torch.backends.cuda.flash_sdp_enabled()
    with backward_pass(model), closed.watching() as watch:
        if closed_forms:
            closed.swap_activations(model, watch)
        eager = closed.swap_eager(watch) if closed_forms else nullcontext()
        with closed.ClosedForms(watch, swap=closed_forms), eager:
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
def differentiable_once(model: nn.Module) -> Iterator[closed.Watch]:
    """Enter evaluation mode with the model's own kernels, which suffice for gradients.

    Args:
        model: is used inside.

    Yields:
        What the model was seen to do.
    """
    with _settled(model), closed.watching() as watch:
        yield watch


@contextmanager
def backward_pass(model: nn.Module) -> Iterator[None]:
    """Build a graph inside; parts of `model` may be recomputed while it is differentiated."""
    with _settled(model), _plain_attention:
        closed.spell_weight_norms(model)
        yield


@contextmanager
def _settled(model: nn.Module) -> Iterator[None]:
    """Enter evaluation mode, with modules and checkpoints that can be differentiated."""
    with evaluation_mode(model), uncompiled(), closed.differentiable_checkpoints:
        yield


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled modules as they were written."""
    if "torch._dynamo" not in sys.modules:  # its import takes seconds
        return nullcontext()
    return _eager


def put_in(model: nn.Module, tensors: Mapping[str, Float[Tensor, "..."]]) -> None:
    """Put tensors in the place of parameters, inside of `evaluation_mode`.

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


class Mode(IntEnum):
    """Modes of differentiating twice, in the order in which they are tried."""

    LAZY_LOGITS = 0
    """Closed forms of ours, and logits that are made when somebody looks at them."""
    CLOSED_FORMS = 1
    """Closed forms alone: the model does more with its logits than return them."""
    AUTOGRAD = 2
    """torch's derivatives: the model differentiates inside, and closed forms have but two."""


class Forward:
    """Forward pass of one model, which remembers the mode that fits it."""

    def __init__(self, model: nn.Module, loss: Any, cuts: Mapping[str, Cut]) -> None:
        """Read how the model is called; nothing is run yet.

        Args:
            model: is called.
            loss: loss of the problem.
            cuts: cuts of sharded parameters, by name; empty where the model is whole.
        """
        self._model, self._cuts = model, cuts
        self._call = Call(model, loss)
        self._mode = Mode.LAZY_LOGITS
        self._recomputed = False

    def without_lazy_logits(self) -> Forward:
        """Copy it, with logits that are made at once."""
        other = copy.copy(self)
        other._raise_mode(Mode.CLOSED_FORMS)
        return other

    def outputs(self, batch: Batch, parameters: Parameters, *, twice: bool, by_rows: bool) -> Any:
        """Call the model, again until an attention implementation fits.

        Args:
            batch: the inputs.
            parameters: all trainable parameters by name.
            twice: whether second derivatives will be asked for.
            by_rows: whether the loss is a sum over rows, which lazy logits need.

        Returns:
            What the model returned.
        """
        # it ends: modes only rise, and each tensor is noted once as written
        while (found := self._try(batch, parameters, twice=twice, by_rows=by_rows)) is None:
            pass
        return found[0]

    def _try(
        self, batch: Batch, parameters: Parameters, *, twice: bool, by_rows: bool
    ) -> tuple[Any] | None:
        """Call the model once; None if it has to be called again."""
        mode, written = self._mode, len(writes_of(self._model).written)
        swap = mode is not Mode.AUTOGRAD
        try:
            with exclusive(self._model), self._state(swap, twice=twice)(self._model) as seen:
                self._put_in(parameters, swap, twice=twice)
                if twice and by_rows and mode is Mode.LAZY_LOGITS and not self._cuts:
                    defer_logits(self._model, seen)
                outputs = self._call(batch)
        except LogitsUsed:
            self._raise_mode(Mode.CLOSED_FORMS)
            return None
        self._recomputed |= seen.recomputed
        if len(writes_of(self._model).written) > written:
            return None  # the graph may hold values that are put back
        if twice and seen.differentiated and swap:
            self._raise_mode(Mode.AUTOGRAD)  # one of two derivatives is used up
            return None
        return (outputs,)

    def _raise_mode(self, mode: Mode) -> None:
        self._mode = max(self._mode, mode)

    @staticmethod
    def _state(
        swap: bool, *, twice: bool
    ) -> Callable[[nn.Module], AbstractContextManager[closed.Watch]]:
        """Enter the state in which a module's pass runs."""
        return partial(differentiable, closed_forms=swap) if twice else differentiable_once

    def _put_in(self, parameters: Parameters, swap: bool, *, twice: bool) -> None:
        """Put the parameters into the model; those of a sharded one layer by layer."""
        if not self._cuts:
            put_in(self._model, parameters)
            return
        named = dict(self._model.named_parameters())
        own = {name: own_rows(p, self._cuts[name]) for name, p in named.items()} | dict(parameters)
        way = Way(
            shards={id(p): own[name] for name, p in named.items()},
            cuts={id(p): self._cuts[name] for name, p in named.items()},
            settled=backward_pass if twice else differentiable_once,
            again=self._state(swap, twice=twice),
        )
        run_in_parts(self._model, way)

    def backward(self) -> AbstractContextManager[object]:
        """Differentiate a graph of `outputs` inside; recomputed parts meet the same state."""
        return backward_pass(self._model) if self._recomputed else nullcontext()
