"""Checks of tensors that `attention_hessian` takes; every message names its argument.

Letters: B sequences, L tokens, D width, H heads, K query-key width, O output width, N = B·L.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from hessblocks.errors import ArgumentError, check_name
from hessblocks.theory.head_vectors import HeadNorm, HeadRotation
from hessblocks.theory.outer import TokenCurvature
from hessblocks.theory.piecewise import GAINS


def check_input(x: Float[Tensor, "... L D"]) -> Float[Tensor, "B L D"]:
    """Check the input and return it as (B, L, D).

    Returns:
        The input without graph, with its batch axis.

    Raises:
        ArgumentError: not a tensor of two or three axes in single or double precision, empty, or
            not finite.
    """
    half = isinstance(x, Tensor) and x.is_floating_point() and x.dtype.itemsize < 4
    if half:  # first, since 8-bit floats cannot even be checked for NaN
        raise ArgumentError(
            f"x: expected float32 or float64, got {x.dtype}: third powers of the inputs do not fit "
            "into half precision; use x.float()"
        )
    x = check_tensor("x", x, x)
    if x.ndim not in (2, 3) or x.numel() == 0:
        raise ArgumentError(
            "x: expected (batch, tokens, width) or (tokens, width), none of them 0, "
            f"got {tuple(x.shape)}"
        )
    return x if x.ndim == 3 else x[None]


def check_tensor(
    name: str, tensor: Float[Tensor, "*shape"], like: Float[Tensor, "..."]
) -> Float[Tensor, "*shape"]:
    """Check that a tensor is finite and fits the input's dtype and device; cut it from any graph.

    Returns:
        The tensor without graph.

    Raises:
        ArgumentError: it is not; the message names the first entry that is not finite.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ArgumentError(f"{name}: expected a floating-point tensor, got {_kind(tensor)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ArgumentError(
            f"{name}: expected {like.dtype} on {like.device} as x is, "
            f"got {tensor.dtype} on {tensor.device}; use {name}.to(x.device, x.dtype)"
        )
    bad = ~tensor.isfinite()
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise ArgumentError(f"{name}: expected finite entries, got {tensor[index]} at {index}")
    return tensor.detach()


def check_shape(name: str, tensor: Shaped[Tensor, "..."], *shapes: tuple[int, ...]) -> None:
    """Check that a tensor has one of the given shapes, in which -1 means any length.

    Raises:
        ArgumentError: it has another shape.
    """
    for shape in shapes:
        pairs = zip(shape, tensor.shape, strict=False)
        if len(shape) == tensor.ndim and all(want in (-1, length) for want, length in pairs):
            return
    expected = " or ".join(str(shape).replace("-1", "any") for shape in shapes)
    raise ArgumentError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")


def check_weight(
    name: str,
    weight: Float[Tensor, "... D K"] | None,
    x: Float[Tensor, "..."],
    *,
    rows: int,
    heads: int = 0,
) -> Float[Tensor, "H D K"]:
    """Check a weight of one head, or stacked by head; return it as (heads, rows, columns).

    Args:
        name: name of the argument.
        weight: the argument.
        x: the input.
        rows: number of rows that the weight must have.
        heads: a multiple of the weight's number of heads; 0: any number is allowed.

    Returns:
        The weight without graph, with its axis of heads.

    Raises:
        ArgumentError: it does not fit.
    """
    if weight is None:
        raise ArgumentError(f"{name}: expected a tensor, got None")
    weight = check_tensor(name, weight, x)
    if weight.ndim not in (2, 3) or weight.numel() == 0:
        raise ArgumentError(
            f"{name}: expected (in, out) or (heads, in, out), none of them 0, got "
            f"{tuple(weight.shape)}"
        )
    if weight.shape[-2] != rows:
        hint = f"; did you mean {name}.mT?" if weight.shape[-1] == rows else ""
        raise ArgumentError(
            f"{name}: expected {rows} rows (x @ w convention), got shape "
            f"{tuple(weight.shape)}{hint}"
        )
    weight = weight if weight.ndim == 3 else weight[None]
    if heads % len(weight):
        raise ArgumentError(
            f"{name}: expected {heads} heads as w_query has, or a divisor of that, got "
            f"{len(weight)}"
        )
    return weight


def check_mask(
    mask: str | Bool[Tensor, "... L L"] | None, x: Float[Tensor, "B L D"]
) -> Bool[Tensor, "#B L L"]:
    """Check the mask; return booleans (1 | B, L, L), True where a query may attend to a key.

    Returns:
        The mask; its first axis is 1 where all sequences share it.

    Raises:
        ArgumentError: an unknown name, a wrong shape, dtype or device, a row that allows nothing.
    """
    sequences, tokens, _ = x.shape
    everything = torch.ones(1, tokens, tokens, dtype=torch.bool, device=x.device)
    if mask is None:
        return everything
    if isinstance(mask, str):
        check_name("mask", mask, ("causal",))
        return everything.tril()
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentError(
            f"mask: expected booleans, True = may attend, got {_kind(mask)}; use mask.bool()"
        )
    check_shape("mask", mask, (tokens, tokens), (sequences, tokens, tokens), (1, tokens, tokens))
    if mask.device != x.device:
        raise ArgumentError(f"mask: expected device {x.device} as x is, got {mask.device}")
    mask = mask.view(-1, tokens, tokens)
    empty = (~mask.any(-1)).nonzero()
    if len(empty):
        raise ArgumentError(
            f"mask: every token must be allowed at least one key, but row {int(empty[0, -1])} "
            "allows none; let it attend to itself and give it no gradient and no curvature."
        )
    return mask


def check_gains(
    gains: Sequence[Float[Tensor, "..."] | float] | None, heads: int, like: Float[Tensor, "..."]
) -> dict[str, Float[Tensor, " H"]]:
    """Check the gains of shaped attention; return {alpha, beta, gamma: (H,)}, empty for None.

    Returns:
        One number per head under each name.

    Raises:
        ArgumentError: not three gains, or a gain is not one finite number, or one per head.
    """
    if gains is None:
        return {}
    if not isinstance(gains, Sequence) or isinstance(gains, str) or len(gains) != len(GAINS):
        got = f"{len(gains)} entries" if isinstance(gains, tuple | list) else _kind(gains)
        raise ArgumentError(f"gains: expected (alpha, beta, gamma), got {got}")
    out = {}
    for name, value in zip(GAINS, gains, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            raise ArgumentError(f"gains: expected {name} as a number or a tensor, got {value!r}")
        gain = value if isinstance(value, Tensor) else like.new_tensor(value)
        gain = check_tensor(f"gains: {name}", gain, like)
        check_shape(f"gains: {name}", gain, (), (1,), (heads,))
        out[name] = gain.reshape(-1).expand(heads)
    return out


def check_rotary(
    rotary: tuple[Float[Tensor, "..."], Float[Tensor, "..."]] | None,
    width: int,
    x: Float[Tensor, "B L D"],
) -> HeadRotation | None:
    """Check rotary positions; return a rotation of queries and keys, None for None.

    Args:
        rotary: cosines and sines.
        width: K, of queries and keys.
        x: the input.

    Returns:
        The rotation, its first axis 1 where all sequences share it.

    Raises:
        ArgumentError: not a pair of tensors of one shape, or of a shape that does not fit.
    """
    if rotary is None:
        return None
    if not isinstance(rotary, tuple | list) or len(rotary) != 2:
        raise ArgumentError(f"rotary: expected (cosines, sines), got {_kind(rotary)}")
    cosines = check_tensor("rotary: cosines", rotary[0], x)
    sines = check_tensor("rotary: sines", rotary[1], x)
    turned = cosines.shape[-1] if cosines.ndim else 0
    fits = 0 < turned <= width and turned % 2 == 0
    shapes = [(x.shape[1], turned), (1, x.shape[1], turned), (*x.shape[:2], turned)]
    if not fits or cosines.shape != sines.shape or tuple(cosines.shape) not in shapes:
        raise ArgumentError(
            "rotary: expected cosines and sines (tokens, turned) or (batch, tokens, turned) with "
            f"tokens {x.shape[1]} and an even number up to {width} turned, got "
            f"{tuple(cosines.shape)} and {tuple(sines.shape)}"
        )
    cosines, sines = (table.reshape(-1, *table.shape[-2:]) for table in (cosines, sines))
    return HeadRotation.of_halves(cosines, sines, width)


def check_norm(name: str, norm: HeadNorm | None, query: Float[Tensor, "H D K"]) -> None:
    """Check that `norm` is None or a norm over the entries of each head's queries or keys.

    Raises:
        ArgumentError: not a HeadNorm, parameters of another dtype or device, a function that does
            not map a vector to one as long.
    """
    if norm is None:
        return
    if not isinstance(norm, HeadNorm):
        raise ArgumentError(
            f"{name}: expected a HeadNorm, such as HeadNorm.rms(gain), got {_kind(norm)}"
        )
    check_tensor(f"{name}: parameters", norm.parameters, query)
    try:
        norm.check(query.shape[2])
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from error


def check_temperature(temperature: object) -> None:
    """Check that a temperature is a finite number above 0.

    Raises:
        ArgumentError: it is not.
    """
    # NaN fails the comparison, too
    number = temperature if isinstance(temperature, int | float) else math.nan
    if isinstance(temperature, bool) or not 0 < number < math.inf:
        raise ArgumentError(
            f"temperature: expected a finite number above 0, got {temperature!r}; "
            "its limits are `hessblocks.theory.at_limit`"
        )


def check_per_token(
    name: str, tensor: Float[Tensor, "..."], x: Float[Tensor, "B L D"], *lengths: int
) -> Float[Tensor, "B L ..."]:
    """Check a tensor of one vector or matrix per token; return it as (B, L, ...).

    Args:
        name: name of the argument.
        tensor: with the batch axis, or without where the batch is 1.
        x: the input.
        lengths: lengths of the axes after that of the tokens, -1 for any.

    Returns:
        The tensor without graph, with its batch axis.

    Raises:
        ArgumentError: wrong kind, dtype, device, shape, or entries that are not finite.
    """
    tensor = check_tensor(name, tensor, x)
    if len(x) == 1 and tensor.ndim == 1 + len(lengths):
        tensor = tensor[None]
    check_shape(name, tensor, (*x.shape[:2], *lengths))
    return tensor


def check_curvature(matrices: Float[Tensor, "N O O"]) -> TokenCurvature:
    """Check that each Λ is symmetric; find whether it is positive semi-definite.

    Returns:
        Λ, with its property `positive_semidefinite`.

    Raises:
        ArgumentError: a matrix is not symmetric.
    """
    size = float(matrices.abs().amax())
    tolerance = 100 * torch.finfo(matrices.dtype).eps * size
    if float((matrices - matrices.mT).abs().amax()) > tolerance:
        raise ArgumentError(
            "curvature: expected a symmetric matrix for each token; "
            "a factor R with RᵀR = curvature goes to curvature_factor="
        )
    # Cholesky fails at eigenvalues of 0, which are allowed here
    unit = torch.eye(matrices.shape[1], dtype=matrices.dtype, device=matrices.device)
    _, failed = torch.linalg.cholesky_ex(matrices + tolerance * unit)
    return TokenCurvature(
        matrix=matrices, positive_semidefinite=size == 0 or not bool((failed > 0).any())
    )


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"
