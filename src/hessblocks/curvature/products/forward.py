"""Run the forward pass of a model at other parameters, ready for one or two derivatives.

For two derivatives the modes are tried in order, since each asks more of the model than the next.
A pass shows whether its mode fits; later passes begin with the mode that did.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature.closed import Watch
from hessblocks.curvature.losses import Batch, LogitsUsed, defer_logits
from hessblocks.curvature.model_state import exclusive, writes_of
from hessblocks.curvature.products.backend import (
    backward_pass,
    differentiable,
    differentiable_once,
    put_in,
)
from hessblocks.curvature.products.calling import Call
from hessblocks.curvature.sharding import Cut, Way, own_rows, run_in_parts

Parameters = Mapping[str, Float[Tensor, "..."]]


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
            loss: of the problem.
            cuts: of sharded parameters, by name; empty where the model is whole.
        """
        self._model, self._cuts = model, cuts
        self._call = Call(model, shift_labels=loss == "seq2seq", own_loss=isinstance(loss, str))
        self._mode = Mode.LAZY_LOGITS
        self._recomputed = False

    def without_lazy_logits(self) -> Forward:
        """Copy it, with logits that are made at once."""
        other = copy.copy(self)
        other._raise_mode(Mode.CLOSED_FORMS)
        return other

    def outputs(self, batch: Batch, parameters: Parameters, *, twice: bool, by_rows: bool) -> Any:
        """Call the model, again until a mode fits.

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
        """Call the model once; None where that has to be done again."""
        mode, written = self._mode, len(writes_of(self._model).written)
        try:
            with exclusive(self._model), self._state(mode, twice=twice) as seen:
                self._put_in(parameters, mode, twice=twice)
                if twice and by_rows and mode is Mode.LAZY_LOGITS and not self._cuts:
                    defer_logits(self._model, seen)
                outputs = self._call(batch)
        except LogitsUsed:
            self._raise_mode(Mode.CLOSED_FORMS)
            return None
        self._recomputed |= seen.recomputed
        if len(writes_of(self._model).written) > written:
            return None  # the graph may hold values that are put back
        if twice and seen.differentiated and mode is not Mode.AUTOGRAD:
            self._raise_mode(Mode.AUTOGRAD)  # one of two derivatives is used up
            return None
        return (outputs,)

    def _raise_mode(self, mode: Mode) -> None:
        self._mode = max(self._mode, mode)

    def _state(self, mode: Mode, *, twice: bool) -> AbstractContextManager[Watch]:
        """Put the model into the state in which the pass runs."""
        if not twice:
            return differentiable_once(self._model)
        return differentiable(self._model, closed_forms=mode is not Mode.AUTOGRAD)

    def _put_in(self, parameters: Parameters, mode: Mode, *, twice: bool) -> None:
        """Put the parameters into the model; those of a sharded one layer by layer."""
        if not self._cuts:
            put_in(self._model, parameters)
            return
        named = dict(self._model.named_parameters())
        own = {name: own_rows(p, self._cuts[name]) for name, p in named.items()} | dict(parameters)
        closed = mode is not Mode.AUTOGRAD
        way = Way(
            shards={id(p): own[name] for name, p in named.items()},
            cuts={id(p): self._cuts[name] for name, p in named.items()},
            settled=backward_pass if twice else differentiable_once,
            again=(lambda module: differentiable(module, closed_forms=closed))
            if twice
            else differentiable_once,
        )
        run_in_parts(self._model, way)

    def backward(self) -> AbstractContextManager[object]:
        """Differentiate a graph of `outputs` inside; recomputed parts meet the same state."""
        return backward_pass(self._model) if self._recomputed else nullcontext()
