"""Lazy logits h Wᵀ + b: computed when somebody looks at them, so that none are held for long.

The last step of a language model is h Wᵀ + b with 50,000 words or more. Here the module of that
step returns a tensor that only knows h, W and b. Where it comes out of the model as it went in, the
loss takes it some rows at a time; whatever the model, a hook or a wrapper does to it meets the
logits themselves, and they are then used as they come out.

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
"""Logits handled together: in float32 just below the 32 MB above which glibc maps pages anew for
each tensor, which made products of half a batch's logits 3 times slower entry by entry
(measured)."""

DTYPES = (torch.float32, torch.float64)
"""Others may not add up as the model's own step does."""


@dataclass(frozen=True)
class Readout:
    """Factors of the logits: h Wᵀ + b, or, without W, h itself."""

    hidden: Float[Tensor, "... D"]
    """h, with its graph."""
    weight: Float[Tensor, "V D"] | None = None
    """W."""
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
        """True where the logits depend on what is differentiated by."""
        return any(t is not None and t.requires_grad for t in self.inputs)

    @property
    def inputs(self) -> tuple[Float[Tensor, "..."] | None, ...]:
        """List h, W and b; h alone without W."""
        return (self.hidden,) if self.weight is None else (self.hidden, self.weight, self.bias)

    def pieces(self) -> Iterator[Float[Tensor, "..."]]:
        """Compute the logits without their graph, some rows at a time; in one piece without W."""
        if self.weight is None:
            yield self.hidden.detach()
            return
        with torch.no_grad():
            for rows in self.hidden.flatten(0, -2).split(rows_together(self.classes)):
                yield F.linear(rows, self.weight, self.bias)


def rows_together(classes: int) -> int:
    """Count the rows of logits that are handled at once."""
    return max(1, CHUNK // classes)


class LogitsUsed(Exception):  # noqa: N818
    """Signal that the model did something to lazy logits that needs the logits themselves."""


class _LateLogits(Tensor):
    """Tensor in the place of h Wᵀ + b; any operation of torch makes the logits, with graph."""

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
        raise LogitsUsed  # by a way that passes __torch_function__ by, and with it the graph


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
            raise LogitsUsed  # the logits would lack their graph afterwards
        if value.watch.in_recomputed_part():
            raise LogitsUsed  # they would not be made a second time
        h, w, b = value.readout.hidden, value.readout.weight, value.readout.bias
        value.made = F.linear(h, w, b)  # type: ignore[arg-type]
    return value.made


def defer_logits(model: nn.Module, watch: Watch) -> None:
    """Let a language model's last linear layer return lazy logits; the caller restores it.

    Layers with hooks, another form, or another dtype than float32 and float64 are left alone.
    """
    found = getattr(model, "get_output_embeddings", lambda: None)()
    if type(found) is nn.Linear and "forward" not in vars(found) and not _is_watched(found):
        found.forward = functools.partial(_late, found, watch)  # type: ignore[method-assign]


def _is_watched(module: nn.Module) -> bool:
    """Tell whether hooks see what the module is given and returns, or it is compiled."""
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
    """Find h, W and b of logits that came out of a model.

    Args:
        logits: (..., V), made or not.

    Returns:
        h, W and b where nobody looked at the logits; else the logits themselves.
    """
    if not isinstance(logits, _LateLogits):
        return Readout(logits)
    return logits.readout if logits.made is None else Readout(logits.made)
