"""Locate a divergence: after a non-finite loss or gradient, find the first non-finite tensor.

The update is repeated, forward and backward, with a hook on every module. A finite run has no cost,
since it has no hooks.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

Batch = Mapping[str, Any]
LossOf = Callable[[Batch], Float[Tensor, ""]]
Findings = Iterator[tuple[str, str]]
"""Pairs (quantity, place) of tensors that are not finite."""
_LAYER = re.compile(r"\blayers\.(\d+)(?:\.|$)")


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """First quantity that became infinite or not a number."""

    step: int
    """Number of the update that could not be made, from 1."""
    quantity: str
    """data, parameters, activations, loss, gradients, gradient norm or validation loss."""
    place: str
    """Name of the input, parameter or module; empty for the loss as a whole."""

    @property
    def layer(self) -> int | None:
        """Layer from 0; None outside the layers."""
        found = _LAYER.search(self.place)
        return int(found[1]) if found else None

    @property
    def words(self) -> str:
        """Description, such as "activations of model.layers.3.mlp.input (layer 3)"."""
        where = f" of {self.place}" if self.place else ""
        layer = "" if self.layer is None else f" (layer {self.layer})"
        return f"{self.quantity}{where}{layer}"

    @property
    def verb(self) -> str:
        """Verb that agrees with the quantity."""
        return "is" if self.quantity in ("loss", "gradient norm", "validation loss") else "are"


def locate(
    model: nn.Module, batches: Sequence[Batch], loss_of: LossOf, step: int
) -> Divergence | None:
    """Find the first tensor that is not finite, in the order of computation.

    Args:
        model: model with the weights that the update started from.
        batches: batches of the update.
        loss_of: computes the loss of a batch as training does.
        step: number of the update, from 1.

    Returns:
        The divergence; None if everything is finite in this process. Then another process has it,
        or a sum over batches or processes overflowed.

    Cost:
        One forward and one backward pass per batch, until something is found.
    """
    for quantity, place in _findings(model, batches, loss_of):
        return Divergence(step=step, quantity=quantity, place=place)
    return None


def _findings(model: nn.Module, batches: Sequence[Batch], loss_of: LossOf) -> Findings:
    for batch in batches:
        yield from (("data", name) for name, value in batch.items() if not _finite(value))
    yield from (("parameters", name) for name, p in model.named_parameters() if not _finite(p))
    for batch in batches:
        yield from _passes(model, batch, loss_of)


def _passes(model: nn.Module, batch: Batch, loss_of: LossOf) -> Findings:
    forward: list[str] = []
    backward: list[str] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                handle = module.register_forward_hook(_watch(name, forward, backward))
                hooks.callback(handle.remove)
        loss = loss_of(batch)
        yield from (("activations", name) for name in forward)
        if not _finite(loss):
            yield "loss", ""
            return
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    found = {name: g for (name, _), g in zip(named, gradients, strict=True) if g is not None}
    yield from (("gradients", name) for name in backward)
    yield from (("gradients", name) for name in reversed(found) if not _finite(found[name]))
    norms = {name: float(gradient.double().norm()) for name, gradient in found.items()}
    # all entries are finite, but their squares overflow in the norm of gradient clipping
    if math.hypot(*norms.values()) > torch.finfo(loss.dtype).max ** 0.5:
        yield "gradient norm", max(norms, key=norms.__getitem__)


def _watch(name: str, forward: list[str], backward: list[str]) -> Callable[..., None]:
    """Make a hook that records a module if its output, or the gradient in it, is not finite."""

    def record(module: nn.Module, arguments: Any, output: Any) -> None:
        for tensor in output if isinstance(output, tuple) else (output,):
            if not isinstance(tensor, Tensor):
                continue
            if not _finite(tensor):
                forward.append(name)
            if tensor.requires_grad:
                tensor.register_hook(lambda g: None if _finite(g) else backward.append(name))

    return record


def _finite(value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(torch.isfinite(value).all())
