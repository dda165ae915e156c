"""Replace functions of torch whose higher derivatives are wrong or missing (torch 2.13).

`tests/curvature/test_torch_derivatives.py` lists them; it fails as soon as torch corrects one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def layer_norm(
    x: Float[Tensor, "*shape"],
    shape: Sequence[int],
    weight: Float[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*shape"]:
    """Compute layer norm from elementary operations; torch's kernel has a wrong 3rd derivative."""
    return _normalised(x, range(-len(shape), 0), weight, bias, eps)


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


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise by batch statistics; leave running statistics to torch, whose Hessian is right."""
    of_batch = training and running_mean is None
    return _of_channels(x, 0, weight, bias, eps) if of_batch else NotImplemented


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    return _of_channels(x, 2, weight, bias, eps) if use_input_stats else NotImplemented


def _of_channels(
    x: Tensor, first: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise over axes `first`, `first` + 1, ..., except axis 1, the axis of weight and bias."""
    axes = [axis for axis in range(first, x.ndim) if axis != 1]
    shape = (-1, *[1] * (x.ndim - 2))
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
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.hardsigmoid: lambda x, inplace=False: F.relu6(x + 3) / 6,
}
"""Our replacement of each torch function; if it returns NotImplemented, torch's is called."""
if hasattr(F, "linear_cross_entropy"):  # since torch 2.13
    # With `options`, torch computes it in chunks, without a second derivative.
    CORRECTED[F.linear_cross_entropy] = lambda *args, options=None, **kw: F.linear_cross_entropy(
        *args, **kw
    )
