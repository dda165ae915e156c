"""Swap functions of torch for our closed forms while a graph is captured, and back afterwards.

Fused kernels have no second derivative, and autodiff takes many small steps through the others;
what is swapped has both derivatives in closed form. Models stay as they are.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import _WeightNorm
from torch.overrides import TorchFunctionMode

from hessblocks.curvature.closed import corrected
from hessblocks.curvature.closed import layer_norms as closed_norms
from hessblocks.curvature.closed import pointwise as closed_pointwise
from hessblocks.curvature.closed import softmax as closed_softmax
from hessblocks.curvature.closed.in_place import addmm, embedding, linear
from hessblocks.curvature.closed.softmax import DTYPES
from hessblocks.curvature.closed.watch import Watch
from hessblocks.errors import RunError

_GELUS = {"none": closed_pointwise.Gelu(), "tanh": closed_pointwise.TanhGelu()}
_SILU, _TANH = closed_pointwise.Silu(), closed_pointwise.Tanh()

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: closed_softmax.attention,
    F.embedding: embedding,
    F.linear: linear,
    torch.addmm: addmm,
    F.layer_norm: closed_norms.layer_norm,
    F.rms_norm: closed_norms.rms_norm,
    F.gelu: lambda input, approximate="none": _GELUS[approximate](input),
    F.silu: lambda input, inplace=False: NotImplemented if inplace else _SILU(input),
    F.tanh: lambda input: _TANH(input),
    torch.tanh: lambda input, out=None: _TANH(input) if out is None else NotImplemented,
    Tensor.tanh: _TANH,
}
"""By function of torch; what returns NotImplemented leaves the call to torch."""

CHOOSING = (F.scaled_dot_product_attention, F.embedding, F.linear, torch.addmm)
"""Those that look for themselves at what they are given."""

SPELLED: dict[Any, Callable[..., Any]] = {
    F.layer_norm: corrected.layer_norm,
    F.rms_norm: corrected.rms_norm,
}
"""In their place where a third derivative is taken, and in transforms of `torch.func`."""

MODULES: dict[str, closed_pointwise.Curve] = {
    "GELUActivation": closed_pointwise.Gelu(),
    "GELUTanh": closed_pointwise.TanhGelu(),
    "SiLUActivation": _SILU,
    "NewGELUActivation": closed_pointwise.TanhGelu(),
    "FastGELUActivation": closed_pointwise.TanhGelu(),
    "QuickGELUActivation": closed_pointwise.Silu(1.702),
    "BloomGelu": closed_pointwise.TanhGelu(),
}
"""Activations of transformers, by class."""


class ClosedForms(TorchFunctionMode):
    """Torch function mode that calls closed forms and notes what the model does."""

    def __init__(self, watch: Watch, *, swap: bool = True) -> None:
        """Record in `watch`; without `swap`, call no closed form limited to two derivatives."""
        super().__init__()
        self._watch = watch
        self._functions = FUNCTIONS if swap else SPELLED

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Pass the call on, to our function or to torch's."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._watch.attention |= self._plain(*args, **kwargs)
        if func is torch.autograd.grad and self._watch.recomputed:
            raise RunError(
                "model: its forward pass differentiates (torch.autograd.grad) and uses activation "
                "checkpointing; switch checkpointing off to take second derivatives"
            )
        found = self._ours(func, args, kwargs)
        return func(*args, **kwargs) if found is NotImplemented else found

    def _plain(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Tell whether attention in a long context keeps its plain form."""
        if key.shape[-2] < closed_softmax.LONG:
            return False
        tiles = self._functions is FUNCTIONS and not self._watch.in_recomputed_part()
        return not (tiles and closed_softmax.by_tiles(query, key, *args, **kwargs))

    def _ours(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        right = corrected.CORRECTED.get(func)
        if self._watch.in_recomputed_part():
            if func is torch._weight_norm or kwargs.get("options"):
                raise RunError(
                    f"model: {func.__name__} in a part under activation checkpointing, where "
                    "torch's second derivative of it is wrong; switch checkpointing off, or use "
                    "torch.nn.utils.parametrizations.weight_norm"
                )
            return NotImplemented
        if right is not None:
            return right(*args, **kwargs)
        closed = self._functions.get(func)
        if closed is None or not (func in CHOOSING or _fits(args, kwargs)):
            return NotImplemented
        return closed(*args, **kwargs)


def spelled() -> ClosedForms:
    """Call single steps instead of kernels that `torch.func` or a third derivative cannot pass."""
    return ClosedForms(Watch(), swap=False)


def _fits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether all tensors are of a dtype that our function takes."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return all(t.dtype in DTYPES or t.dtype == torch.bool for t in tensors)


def swap_activations(model: nn.Module, watch: Watch) -> None:
    """Give known activations of `model` their closed form; the caller restores the modules.

    `torch.func` can transform these in reverse mode and under vmap, two times.
    """
    for module in model.modules():
        curve = _curve_of(module)
        # a `forward` of the instance's own is somebody's wrapper, which a swap would throw away
        if curve is not None and "forward" not in vars(module):
            module.forward = functools.partial(_activation, curve, module.forward, watch)


def _curve_of(module: nn.Module) -> closed_pointwise.Curve | None:
    kind = type(module)
    if kind is nn.GELU:
        return _GELUS[str(module.approximate)]
    if kind in (nn.SiLU, nn.Tanh):
        return None if getattr(module, "inplace", False) else _SILU if kind is nn.SiLU else _TANH
    return MODULES.get(kind.__name__) if kind.__module__.startswith("transformers.") else None


def spell_weight_norms(model: nn.Module) -> None:
    """Give weight norms their right derivatives; the caller restores the modules."""
    for module in model.modules():
        if isinstance(module, _WeightNorm):
            right = functools.partial(_weight_of, module.dim)
            module.forward = right  # type: ignore[method-assign]


def _weight_of(dim: int, length: Tensor, direction: Tensor) -> Tensor:
    return corrected.weight_norm(direction, length, dim)


def _activation(
    curve: closed_pointwise.Curve, plain: Callable[..., Any], watch: Watch, x: Tensor
) -> Any:
    return plain(x) if x.dtype not in DTYPES or watch.in_recomputed_part() else curve(x)
