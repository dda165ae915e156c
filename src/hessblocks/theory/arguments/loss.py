"""What the loss is told by in `attention_hessian`, checked: a target, or gradient and curvature.

Letters: B sequences, L tokens, O output width, C rank of a curvature factor.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.theory.arguments.validation import check_tensor
from hessblocks.theory.layer import AttentionLayer
from hessblocks.theory.token_curvature import TokenCurvature


def checked_loss(
    layer: AttentionLayer,
    target: Float[Tensor, "... L O"] | None,
    gradient: Float[Tensor, "... L O"] | None,
    curvature: Float[Tensor, "... L O O"] | None,
    curvature_factor: Float[Tensor, "... L C O"] | None,
) -> tuple[Float[Tensor, "B L O"], TokenCurvature]:
    """Gradient (B, L, O) and curvature of each token; see `attention_hessian` for the arguments.

    Returns:
        The gradient with its batch axis, and Λ of each token or of all.

    Raises:
        ArgumentError: arguments that do not fit, or too many or few of them.
    """
    sequences, tokens, _ = layer.x.shape
    out = layer.projection.shape[2]
    if (target is None) == (gradient is None):
        given = "neither" if target is None else "both"
        raise ArgumentError(
            "target, gradient: expected one of them: target= for the squared loss, "
            f"or gradient= with curvature= or curvature_factor=; got {given}"
        )
    if target is not None:
        if curvature is not None or curvature_factor is not None:
            raise ArgumentError(
                "curvature: expected None with target= (the squared loss has its own), got a tensor"
            )
        target = check_per_token("target", target, (sequences, tokens, out), layer.x)
        difference = layer.output() - target
        if not difference.isfinite().all():
            raise ArgumentError(
                f"x, w_value: the layer's output overflows {target.dtype}; scale the input or the weights down"
            )
        factor = 2.0 / target.numel()
        identity = torch.eye(out, dtype=layer.x.dtype, device=layer.x.device)
        loss_curvature = TokenCurvature(matrix=factor * identity[None], positive_semidefinite=True)
        return factor * difference, loss_curvature
    assert gradient is not None
    gradient = check_per_token("gradient", gradient, (sequences, tokens, out), layer.x)
    if (curvature is None) == (curvature_factor is None):
        given = "neither" if curvature is None else "both"
        raise ArgumentError(
            f"curvature, curvature_factor: expected one of them with gradient=, got {given}"
        )
    if curvature_factor is not None:
        shape = (sequences, tokens, -1, out)
        factor_rows = check_per_token("curvature_factor", curvature_factor, shape, layer.x)
        if factor_rows.shape[2] == 0:
            raise ArgumentError(
                "curvature_factor: expected a rank of at least 1, got 0; give a row of zeros where the loss is linear"
            )
        return gradient, TokenCurvature(factor=factor_rows.flatten(0, 1))
    assert curvature is not None
    curvature = check_per_token("curvature", curvature, (sequences, tokens, out, out), layer.x)
    return gradient, check_curvature(curvature)


def check_per_token(
    name: str, tensor: Float[Tensor, "..."], shape: tuple[int, ...], like: Float[Tensor, "..."]
) -> Float[Tensor, "B L ..."]:
    """A tensor of one value, vector or matrix a token, as (B, L, ...).

    Args:
        name: of the argument.
        tensor: with the batch axis, or without where the batch is 1.
        shape: expected, -1 for any length.
        like: the input.

    Returns:
        The tensor without graph, with its batch axis.

    Raises:
        ArgumentError: wrong kind, dtype, device, shape, or entries that are not finite.
    """
    tensor = check_tensor(name, tensor, like)
    batched = tensor[None] if tensor.ndim == len(shape) - 1 and shape[0] == 1 else tensor
    fits = batched.ndim == len(shape) and all(
        expected in (-1, length) for expected, length in zip(shape, batched.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if length == -1 else str(length) for length in shape)
        raise ArgumentError(f"{name}: expected shape ({expected}), got {tuple(tensor.shape)}")
    return batched


def check_curvature(matrix: Float[Tensor, "B L O O"]) -> TokenCurvature:
    """A symmetric Λ for each token, (B, L, O, O), and whether it is positive semi-definite.

    Returns:
        Λ, one matrix a token, N = B·L.

    Raises:
        ArgumentError: a matrix is not symmetric.
    """
    size = float(matrix.abs().amax())
    tolerance = 100 * torch.finfo(matrix.dtype).eps * size
    if float((matrix - matrix.mT).abs().amax()) > tolerance:
        raise ArgumentError(
            "curvature: expected a symmetric matrix for each token; "
            "a factor R with RᵀR = curvature goes to curvature_factor="
        )
    flat = matrix.flatten(0, 1)
    shifted = flat + tolerance * torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    _, failed = torch.linalg.cholesky_ex(shifted)
    return TokenCurvature(
        matrix=flat, positive_semidefinite=size == 0 or not bool((failed > 0).any())
    )
