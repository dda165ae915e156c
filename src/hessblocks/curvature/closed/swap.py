"""Replace functions of torch by our closed forms while a graph is captured.

Fused kernels have no second derivative. For other functions autograd needs many small operations.
The replacements have two derivatives in closed form. The model's code is not changed.

The higher derivatives of some functions of torch 2.13 are wrong or missing; these are replaced by
elementary operations. `tests/curvature/test_torch_derivatives.py` lists them; it fails as soon as
torch corrects one.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import _WeightNorm
from torch.overrides import TorchFunctionMode

from hessblocks.curvature.closed import pointwise as closed_pointwise
from hessblocks.curvature.closed import softmax as closed_softmax
from hessblocks.curvature.closed.accumulate import transformed
from hessblocks.curvature.closed.in_place import addmm, embedding, linear
from hessblocks.curvature.closed.softmax import DTYPES
from hessblocks.curvature.closed.watch import Watch, note_derivative
from hessblocks.errors import RunError


def layer_norm(
    x: Float[Tensor, "*shape"],
    shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*shape"]:
    """Compute layer norm from elementary operations; torch's kernel has a wrong 3rd derivative."""
    return _normalised(x, range(-len(shape), 0), weight, bias, eps)


def _twice(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute layer norm by torch's kernel, which has two derivatives, as a closed form has."""
    if transformed():
        return layer_norm(x, *args, **kwargs)
    y = F.layer_norm(x, *args, **kwargs)
    if y.requires_grad:
        y.register_hook(_noted)
    return y


def _noted(gradient: Tensor) -> None:
    if torch.is_grad_enabled():
        note_derivative()


def rms_norm(
    x: Float[Tensor, "*shape"],
    shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    eps: float | None = None,
) -> Float[Tensor, "*shape"]:
    """Compute RMS norm from elementary operations; under vmap CUDA's kernel loops and warns."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    axes = tuple(range(-len(shape), 0))
    y = x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight


def weight_norm(
    direction: Float[Tensor, "*shape"], length: Float[Tensor, "..."], dim: int = 0
) -> Float[Tensor, "*shape"]:
    """Compute weight norm from elementary operations; `torch._weight_norm` has a wrong Hessian.

    Returns:
        The weight. Its norm over all axes but `dim` is `length`; over all axes if `dim` is −1.
    """
    axes = [axis for axis in range(direction.ndim) if dim == -1 or axis != dim % direction.ndim]
    return direction * (length * direction.square().sum(axes, keepdim=True).rsqrt())


def _channel_norm(function: Any, first: int, *args: Any, **kwargs: Any) -> Any:
    """Normalise by the batch over the axes from `first` on, except axis 1, that of the weight.

    Returns:
        The normalised input; NotImplemented for running statistics, where torch's Hessian is right.
    """
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    x, running_mean, _, weight, bias, of_batch, _, eps = call.arguments.values()
    if not of_batch or (function is F.batch_norm and running_mean is not None):
        return NotImplemented
    axes, shape = [axis for axis in range(first, x.ndim) if axis != 1], (-1, *[1] * (x.ndim - 2))
    weight, bias = (None if t is None else t.view(shape) for t in (weight, bias))
    return _normalised(x, axes, weight, bias, eps)


def _normalised(
    x: Tensor, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    axes = tuple(axes)
    centred = x - x.mean(axes, keepdim=True)
    y = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _grouped_products(rows: Tensor, weights: Tensor, *, offs: Any = None, **others: Any) -> Any:
    """Multiply each group of rows with its matrix; torch's kernel does not support float64."""
    has_options = any(value is not None for value in others.values())
    if rows.dtype != torch.float64 or (rows.ndim, weights.ndim) != (2, 3) or has_options:
        return NotImplemented
    *groups, rest = rows.tensor_split(offs.tolist())
    products = [group @ weight for group, weight in zip(groups, weights, strict=True)]
    return torch.cat([*products, rest @ torch.zeros_like(weights[0])])


CORRECTED: dict[Any, Callable[..., Any]] = {
    torch._weight_norm: weight_norm,
    torch._grouped_mm: _grouped_products,
    F.batch_norm: functools.partial(_channel_norm, F.batch_norm, 0),
    F.instance_norm: functools.partial(_channel_norm, F.instance_norm, 2),
    F.hardsigmoid: lambda x, inplace=False: F.relu6(x + 3) / 6,
}
"""Our replacement of each torch function; if it returns NotImplemented, torch's is called."""
if hasattr(F, "linear_cross_entropy"):  # since torch 2.13
    # With `options`, torch computes it in chunks, without a second derivative.
    CORRECTED[F.linear_cross_entropy] = lambda *args, options=None, **kw: F.linear_cross_entropy(
        *args, **kw
    )


_GELUS = {"none": closed_pointwise.Gelu(), "tanh": closed_pointwise.TanhGelu()}
_SILU, _TANH = closed_pointwise.Silu(), closed_pointwise.Tanh()

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: closed_softmax.attention,
    F.embedding: embedding,
    F.linear: linear,
    torch.addmm: addmm,
    F.layer_norm: _twice,
    F.rms_norm: rms_norm,
    F.gelu: lambda input, approximate="none": _GELUS[approximate](input),
    F.silu: lambda input, inplace=False: NotImplemented if inplace else _SILU(input),
    F.tanh: lambda input: _TANH(input),
    torch.tanh: lambda input, out=None: _TANH(input) if out is None else NotImplemented,
    Tensor.tanh: _TANH,
}
"""Our replacement of each torch function; if it returns NotImplemented, torch's is called."""

CHOOSING = (F.scaled_dot_product_attention, F.embedding, F.linear, torch.addmm)
"""Functions whose replacements check the dtypes of their arguments themselves."""

SPELLED: dict[Any, Callable[..., Any]] = {F.layer_norm: layer_norm, F.rms_norm: rms_norm}
"""Replacements for third derivatives and for transforms of `torch.func`."""

MODULES: dict[str, closed_pointwise.ActivationCurve] = {
    "GELUActivation": closed_pointwise.Gelu(),
    "GELUTanh": closed_pointwise.TanhGelu(),
    "SiLUActivation": _SILU,
    "NewGELUActivation": closed_pointwise.TanhGelu(),
    "FastGELUActivation": closed_pointwise.TanhGelu(),
    "QuickGELUActivation": closed_pointwise.Silu(1.702),
    "BloomGelu": closed_pointwise.TanhGelu(),
}
"""Activations of transformers, by class name."""


class ClosedForms(TorchFunctionMode):
    """Torch function mode that calls closed forms and records the model's attention calls."""

    def __init__(self, watch: Watch, *, swap: bool = True) -> None:
        """Record in `watch`; without `swap`, use only forms with derivatives of every order."""
        super().__init__()
        self._watch = watch
        self._functions = FUNCTIONS if swap else SPELLED
        self._special = {*self._functions, *CORRECTED, torch.autograd.grad}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call our replacement of `func`, or `func` itself."""
        kwargs = kwargs or {}
        recomputed = self._watch.in_recomputed_part()
        if func not in self._special:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._watch.attention |= self._plain(*args, **kwargs)
        if func is torch.autograd.grad and self._watch.recomputed:
            raise RunError(
                "model: its forward pass differentiates (torch.autograd.grad) and uses activation "
                "checkpointing; switch checkpointing off to take second derivatives"
            )
        result = self._ours(func, args, kwargs, recomputed=recomputed)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _plain(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Tell whether attention over at least `LONG` keys runs without tiles."""
        if key.shape[-2] < closed_softmax.LONG:
            return False
        tiles = self._functions is FUNCTIONS and not self._watch.in_recomputed_part()
        return not (tiles and closed_softmax.by_tiles(query, key, *args, **kwargs))

    def _ours(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, recomputed: bool
    ) -> Any:
        right = CORRECTED.get(func)
        if recomputed:
            if func is torch._weight_norm or kwargs.get("options"):
                raise RunError(
                    f"model: {func.__name__} is called under activation checkpointing, where "
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
    """Replace kernels without a vmap rule or right third derivatives by elementary operations."""
    return ClosedForms(Watch(), swap=False)


def _fits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether our replacement supports the dtypes of all tensors."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return all(t.dtype in DTYPES or t.dtype == torch.bool for t in tensors)


def swap_activations(modules: Iterable[nn.Module], watch: Watch) -> None:
    """Replace known activations by closed forms; the caller restores the modules.

    The closed forms support two derivatives in reverse mode and `torch.func.vmap`.
    """
    for module in modules:
        curve = _curve_of(module)
        # a `forward` set on the instance is the user's wrapper, which we must not replace
        if curve is not None and "forward" not in vars(module):
            module.forward = functools.partial(_activation, curve, module.forward, watch)


def _curve_of(module: nn.Module) -> closed_pointwise.ActivationCurve | None:
    kind = type(module)
    if kind is nn.GELU:
        return _GELUS[str(module.approximate)]
    if kind in (nn.SiLU, nn.Tanh):
        return None if getattr(module, "inplace", False) else _SILU if kind is nn.SiLU else _TANH
    return MODULES.get(kind.__name__) if kind.__module__.startswith("transformers.") else None


def spell_weight_norms(modules: Iterable[nn.Module]) -> None:
    """Replace weight norms by versions with right derivatives; the caller restores the modules."""
    for module in modules:
        if isinstance(module, _WeightNorm):
            right = functools.partial(_weight_of, module.dim)
            module.forward = right  # type: ignore[method-assign]


def _weight_of(dim: int, length: Tensor, direction: Tensor) -> Tensor:
    return weight_norm(direction, length, dim)


def _activation(
    curve: closed_pointwise.ActivationCurve, plain: Callable[..., Any], watch: Watch, x: Tensor
) -> Any:
    return plain(x) if x.dtype not in DTYPES or watch.in_recomputed_part() else curve(x)
