"""Swaps functions of torch for closed forms of ours while a graph is captured, and back afterwards.

Fused kernels have no second derivative, and autodiff takes many small steps through the others; what
is swapped has both derivatives in closed form. Models stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from hessblocks.curvature.closed import layer_norms as closed_norms
from hessblocks.curvature.closed import pointwise as closed_pointwise
from hessblocks.curvature.closed import softmax as closed_softmax

DTYPES = (torch.float32, torch.float64)
"""Others are left to torch, whose kernels add up in float32."""


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    curve = closed_pointwise.Gelu() if approximate == "none" else closed_pointwise.TanhGelu()
    return closed_pointwise.apply(curve, x)


def _silu(x: Tensor, inplace: bool = False) -> Any:
    return NotImplemented if inplace else closed_pointwise.apply(closed_pointwise.Silu(), x)


def _tanh(x: Tensor) -> Tensor:
    return closed_pointwise.apply(closed_pointwise.Tanh(), x)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: closed_softmax.attention,
    F.layer_norm: closed_norms.layer_norm,
    F.rms_norm: closed_norms.rms_norm,
    F.gelu: _gelu,
    F.silu: _silu,
    F.tanh: _tanh,
    torch.tanh: _tanh,
    Tensor.tanh: _tanh,
}
"""By function of torch; what returns NotImplemented leaves the call to torch."""

MODULES: dict[str, closed_pointwise.Curve] = {
    "NewGELUActivation": closed_pointwise.TanhGelu(),
    "FastGELUActivation": closed_pointwise.TanhGelu(),
    "QuickGELUActivation": closed_pointwise.Silu(1.702),
    "BloomGelu": closed_pointwise.TanhGelu(),
}
"""Activations of transformers that are made of small steps, by class."""


class ClosedForms(TorchFunctionMode):
    """Calls the closed form where there is one."""

    attention_seen = False
    """Whether scaled_dot_product_attention was called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Pass the call on, to ours or to torch."""
        kwargs = kwargs or {}
        self.attention_seen |= func is F.scaled_dot_product_attention
        closed = FUNCTIONS.get(func)
        found = closed(*args, **kwargs) if closed and _fits(args, kwargs) else NotImplemented
        return func(*args, **kwargs) if found is NotImplemented else found


def _fits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all tensors are of a dtype that ours takes."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return all(t.dtype in DTYPES or t.dtype == torch.bool for t in tensors)


@contextmanager
def closed_modules(model: nn.Module) -> Iterator[None]:
    """Known activations of `model` by their closed form, inside the block."""
    changed = []
    for module in model.modules():
        kind = type(module)
        curve = MODULES.get(kind.__name__) if kind.__module__.startswith("transformers.") else None
        if curve is not None and "forward" not in vars(module):
            module.forward = _forward(curve, module.forward)
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _forward(curve: closed_pointwise.Curve, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Tensor) -> Any:
        return closed_pointwise.apply(curve, x) if x.dtype in DTYPES else plain(x)

    return forward
