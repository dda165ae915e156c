"""Loss arguments of `attention_hessian`, checked: a target, or gradient and curvature.

Letters: B sequences, L tokens, D width, O output width, C rank of a curvature factor.
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
    """Check the loss; return gradient (B, L, O) and curvature of each token.

    See `attention_hessian` for the arguments.

    Returns:
        The gradient with its batch axis, and Λ of each token or of all.

    Raises:
        ArgumentError: arguments that do not fit, or too many or few of them.
    """
    out = layer.projection.shape[2]
    if target is not None and gradient is None:
        if curvature is not None or curvature_factor is not None:
            raise ArgumentError(
                "curvature: expected None with target= (the squared loss has its own), got a tensor"
            )
        target = check_per_token("target", target, layer.x, out)
        difference = layer.output() - target
        if not difference.isfinite().all():
            raise ArgumentError(
                f"x, w_value: the layer's output overflows {target.dtype}; scale the input or the "
                "weights down"
            )
        factor = 2.0 / target.numel()
        identity = torch.eye(out, dtype=layer.x.dtype, device=layer.x.device)
        loss_curvature = TokenCurvature(matrix=factor * identity[None], positive_semidefinite=True)
        return factor * difference, loss_curvature
    if gradient is None or target is not None:
        given = "neither" if gradient is None else "both"
        raise ArgumentError(
            "target, gradient: expected one of them: target= for the squared loss, "
            f"or gradient= with curvature= or curvature_factor=; got {given}"
        )
    gradient = check_per_token("gradient", gradient, layer.x, out)
    if curvature_factor is not None and curvature is None:
        factor_rows = check_per_token("curvature_factor", curvature_factor, layer.x, -1, out)
        if factor_rows.shape[2] == 0:
            raise ArgumentError(
                "curvature_factor: expected a rank of at least 1, got 0; give a row of zeros "
                "where the loss is linear"
            )
        return gradient, TokenCurvature(factor=factor_rows.flatten(0, 1))
    if curvature is None or curvature_factor is not None:
        given = "neither" if curvature is None else "both"
        raise ArgumentError(
            f"curvature, curvature_factor: expected one of them with gradient=, got {given}"
        )
    curvature = check_per_token("curvature", curvature, layer.x, out, out)
    return gradient, check_curvature(curvature)


def check_per_token(
    name: str, tensor: Float[Tensor, "..."], like: Float[Tensor, "B L D"], *lengths: int
) -> Float[Tensor, "B L ..."]:
    """Check a tensor of one value, vector or matrix a token; return it as (B, L, ...).

    Args:
        name: of the argument.
        tensor: with the batch axis, or without where the batch is 1.
        like: the input.
        lengths: of the axes behind that of the tokens, -1 for any.

    Returns:
        The tensor without graph, with its batch axis.

    Raises:
        ArgumentError: wrong kind, dtype, device, shape, or entries that are not finite.
    """
    tensor, shape = check_tensor(name, tensor, like), (*like.shape[:2], *lengths)
    batched = tensor[None] if tensor.ndim == len(shape) - 1 and shape[0] == 1 else tensor
    fits = batched.ndim == len(shape) and all(
        expected in (-1, length) for expected, length in zip(shape, batched.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if length == -1 else str(length) for length in shape)
        raise ArgumentError(f"{name}: expected shape ({expected}), got {tuple(tensor.shape)}")
    return batched


def check_curvature(matrix: Float[Tensor, "B L O O"]) -> TokenCurvature:
    """Check that each Λ (B, L, O, O) is symmetric; find whether it is positive semi-definite.

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
    # Cholesky fails at eigenvalues of 0, which are allowed here
    shifted = flat + tolerance * torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
    _, failed = torch.linalg.cholesky_ex(shifted)
    return TokenCurvature(
        matrix=flat, positive_semidefinite=size == 0 or not bool((failed > 0).any())
    )
