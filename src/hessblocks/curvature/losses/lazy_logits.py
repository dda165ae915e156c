"""Lazy logits h Wᵀ + b, computed on first use, so that tokens × classes are rarely in memory.

The last layer of a language model computes h Wᵀ + b for 50,000 classes or more. Here this layer
returns a tensor that stores only h, W and b. If the model returns that tensor unchanged, the loss
computes the logits a few rows at a time. If the model, a hook or a wrapper applies any operation to
it, the logits are computed first, and the loss uses the result.

Letters: V classes, D width of h.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._pytree import tree_map

from hessblocks.curvature.closed import Watch

CHUNK = 7 << 20
"""Logits in memory at a time: in float32 just below 32 MB. Above that size glibc maps new pages for
each tensor, which made products of half a batch's logits 3 times slower per entry (measured)."""

DTYPES = (torch.float32, torch.float64)
"""In other dtypes our sum over rows may round otherwise than the model's layer."""


@dataclass(frozen=True)
class Readout:
    """Inputs of the last layer, whose logits are h Wᵀ + b; without W, the logits are h."""

    hidden: Float[Tensor, "... D"]
    """h, with its autograd graph."""
    weight: Float[Tensor, "V D"] | None = None
    """W, or None where h are the logits."""
    bias: Float[Tensor, " V"] | None = None
    """b."""

    @property
    def classes(self) -> int:
        """Number of classes V."""
        return (self.hidden if self.weight is None else self.weight.T).shape[-1]

    @property
    def tokens(self) -> int:
        """Count the rows of logits."""
        return self.hidden.numel() // max(1, self.hidden.shape[-1])

    @property
    def requires_grad(self) -> bool:
        """Whether the logits depend on a tensor that requires a gradient."""
        return any(t is not None and t.requires_grad for t in self.inputs)

    @property
    def inputs(self) -> tuple[Float[Tensor, "..."] | None, ...]:
        """List h, W and b; h alone without W."""
        return (self.hidden,) if self.weight is None else (self.hidden, self.weight, self.bias)

    def pieces(self) -> Iterator[Float[Tensor, "..."]]:
        """Yield the logits, detached, a few rows at a time; all at once where h are the logits."""
        if self.weight is None:
            yield self.hidden.detach()
            return
        with torch.no_grad():
            for rows in self.hidden.flatten(0, -2).split(rows_together(self.classes)):
                yield F.linear(rows, self.weight, self.bias)


def rows_together(classes: int) -> int:
    """Compute how many rows of logits are in memory at a time."""
    return max(1, CHUNK // classes)


class LogitsUsed(Exception):  # noqa: N818
    """Signal that the model used lazy logits where they cannot be computed; run it without."""


class _LateLogits(Tensor):
    """Tensor that stands for h Wᵀ + b; any torch operation on it computes h Wᵀ + b with graph."""

    readout: Readout
    watch: Watch
    made: Tensor | None

    def __new__(cls, readout: Readout, watch: Watch) -> _LateLogits:
        like = readout.hidden
        late: _LateLogits = Tensor._make_wrapper_subclass(
            cls, (*like.shape[:-1], readout.classes), dtype=like.dtype, device=like.device
        )
        late.readout, late.watch, late.made = readout, watch, None
        return late

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _KNOWN_BEFORE:
            return super().__torch_function__(func, types, args, kwargs or {})
        args, kwargs = tree_map(_made, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        raise LogitsUsed  # the call bypassed __torch_function__, so the logits would have no graph


_KNOWN_BEFORE = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
}
"""Attributes of logits that are known before the logits are computed."""


def _made(value: Any) -> Any:
    if not isinstance(value, _LateLogits):
        return value
    if value.made is None:
        if value.readout.requires_grad and not torch.is_grad_enabled():
            raise LogitsUsed  # the cached logits would have no graph
        if value.watch.in_recomputed_part():
            raise LogitsUsed  # the checkpoint's recomputation would reuse the cached logits
        h, w, b = value.readout.hidden, value.readout.weight, value.readout.bias
        value.made = F.linear(h, w, b)  # type: ignore[arg-type]
    return value.made


def defer_logits(model: nn.Module, watch: Watch) -> None:
    """Make a language model's last linear layer return lazy logits; the caller restores it.

    A layer with hooks, of another class, or in a dtype other than float32 and float64 is unchanged.
    """
    layer = getattr(model, "get_output_embeddings", lambda: None)()
    if type(layer) is nn.Linear and "forward" not in vars(layer) and not _is_watched(layer):
        layer.forward = functools.partial(_late, layer, watch)  # type: ignore[method-assign]


def _is_watched(module: nn.Module) -> bool:
    """Tell whether the module has hooks or is compiled."""
    hooks = [register for name, register in vars(module).items() if name.endswith("_hooks")]
    return any(hooks) or module._compiled_call_impl is not None


def _late(module: nn.Linear, watch: Watch, hidden: Tensor) -> Tensor:
    weight, bias = module.weight, module.bias
    plain = (
        type(hidden) is not Tensor
        or hidden.dtype not in DTYPES
        or hidden.dtype != weight.dtype
        or hidden.ndim < 2
        or torch.is_autocast_enabled(hidden.device.type)
        or watch.in_recomputed_part()
    )
    if plain:
        return F.linear(hidden, weight, bias)
    return _LateLogits(Readout(hidden, weight, bias), watch)


def readout_of(logits: Float[Tensor, "..."]) -> Readout:
    """Return h, W and b of a model's lazy logits.

    Args:
        logits: (..., V), lazy or ordinary.

    Returns:
        h, W and b if the logits were never computed; else the logits as h, without W.
    """
    if not isinstance(logits, _LateLogits):
        return Readout(logits)
    return logits.readout if logits.made is None else Readout(logits.made)
