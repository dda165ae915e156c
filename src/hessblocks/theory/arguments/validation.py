"""Checks of the input, mask and gains of `attention_hessian`; every message names its argument.

Letters: B sequences, L tokens, D width, H heads, K query-key width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.theory.heads import HeadNorm, Rotation
from hessblocks.theory.pieces import GAINS

PRECISIONS = (torch.float32, torch.float64)


def check_input(x: Float[Tensor, "... L D"]) -> Float[Tensor, "B L D"]:
    """Check the input and return it as (B, L, D).

    Returns:
        The input without graph, with its batch axis.

    Raises:
        ArgumentError: not a tensor of two or three axes in single or double precision, empty, or
            not finite.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ArgumentError(f"x: expected a floating-point tensor, got {_kind(x)}; use x.double().")
    if x.dtype not in PRECISIONS:
        raise ArgumentError(
            f"x: expected float32 or float64, got {x.dtype}: third powers of the inputs do not fit "
            "into half precision; use x.float()"
        )
    if x.ndim not in (2, 3) or x.numel() == 0:
        raise ArgumentError(
            "x: expected (batch, tokens, width) or (tokens, width), none of them 0, "
            f"got {tuple(x.shape)}"
        )
    check_finite("x", x)
    return x.detach() if x.ndim == 3 else x.detach()[None]


def check_tensor(
    name: str, tensor: Float[Tensor, "*shape"], like: Float[Tensor, "..."]
) -> Float[Tensor, "*shape"]:
    """Check that a tensor is finite and fits the input's dtype and device; cut it from any graph.

    Returns:
        The tensor without graph.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ArgumentError(f"{name}: expected a floating-point tensor, got {_kind(tensor)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ArgumentError(
            f"{name}: expected {like.dtype} on {like.device} as x is, "
            f"got {tensor.dtype} on {tensor.device}; use {name}.to(x.device, x.dtype)"
        )
    check_finite(name, tensor)
    return tensor.detach()


def check_mask(
    mask: str | Bool[Tensor, "... L L"] | None, sequences: int, x: Float[Tensor, "B L D"]
) -> Bool[Tensor, "#B L L"]:
    """Check the mask; return booleans (1 | B, L, L), True where a query may attend to a key.

    Returns:
        The mask; its first axis is 1 where all sequences share it.

    Raises:
        ArgumentError: an unknown name, a wrong shape, dtype or device, a row that allows nothing.
    """
    tokens = x.shape[1]
    everything = torch.ones(1, tokens, tokens, dtype=torch.bool, device=x.device)
    if mask is None:
        return everything
    if isinstance(mask, str):
        if mask != "causal":
            raise ArgumentError(f"mask: expected None, 'causal' or a boolean tensor, got {mask!r}")
        return everything.tril()
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentError(
            f"mask: expected booleans, True = may attend, got {_kind(mask)}; use mask.bool()"
        )
    shapes = [(tokens, tokens), (1, tokens, tokens), (sequences, tokens, tokens)]
    if tuple(mask.shape) not in shapes:
        raise ArgumentError(
            f"mask: expected (tokens, tokens) = {shapes[0]} or (batch, tokens, tokens) = "
            f"{shapes[2]}, "
            f"got {tuple(mask.shape)}"
        )
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
        One number a head under each name.

    Raises:
        ArgumentError: not three, or not one number (a head) each, or not finite.
    """
    if gains is None:
        return {}
    if not isinstance(gains, Sequence) or isinstance(gains, str):
        raise ArgumentError(f"gains: expected (alpha, beta, gamma), got {_kind(gains)}")
    if len(gains) != len(GAINS):
        raise ArgumentError(f"gains: expected (alpha, beta, gamma), got {len(gains)} entries")
    out = {}
    for name, given in zip(GAINS, gains, strict=True):
        gain = _gain(name, given, like)
        if gain.numel() not in (1, heads) or gain.ndim > 1:
            raise ArgumentError(
                f"gains: expected {name} as one number or ({heads},), got {tuple(gain.shape)}"
            )
        check_finite("gains", gain)
        out[name] = gain.reshape(-1).expand(heads)
    return out


def check_rotary(
    rotary: tuple[Float[Tensor, "..."], Float[Tensor, "..."]] | None,
    query: Float[Tensor, "H D K"],
    x: Float[Tensor, "B L D"],
    *,
    one_matrix: bool,
) -> Rotation | None:
    """Check rotary positions; return a rotation of whole queries and keys, None for None.

    Returns:
        The rotation, its first axis 1 where all sequences share it.

    Raises:
        ArgumentError: not a pair of tensors of one shape, or of a shape that does not fit; one
            matrix, between whose two sides nothing can be turned.
    """
    if rotary is None:
        return None
    if one_matrix:
        raise ArgumentError("rotary: expected None with one matrix, which has no queries to turn")
    if not isinstance(rotary, tuple | list) or len(rotary) != 2:
        raise ArgumentError(f"rotary: expected (cosines, sines), got {_kind(rotary)}")
    cosines, sines = (
        check_tensor(f"rotary: {name}", table, x)
        for name, table in zip(("cosines", "sines"), rotary, strict=True)
    )
    width, turned = query.shape[2], cosines.shape[-1] if cosines.ndim else 0
    fits = 0 < turned <= width and turned % 2 == 0
    shapes = [(x.shape[1], turned), (1, x.shape[1], turned), (*x.shape[:2], turned)]
    if not fits or cosines.shape != sines.shape or tuple(cosines.shape) not in shapes:
        raise ArgumentError(
            "rotary: expected cosines and sines (tokens, turned) or (batch, tokens, turned) with "
            "tokens "
            f"{x.shape[1]} and an even number up to {width} turned, got {tuple(cosines.shape)} and "
            f"{tuple(sines.shape)}"
        )
    cosines, sines = (table.reshape(-1, *table.shape[-2:]) for table in (cosines, sines))
    return Rotation.of_halves(cosines, sines, width)


def check_norm(
    name: str, norm: HeadNorm | None, query: Float[Tensor, "H D K"], *, one_matrix: bool
) -> None:
    """Refuse what is no norm over the entries of each head's queries or keys; None passes.

    Raises:
        ArgumentError: not a HeadNorm, parameters of another dtype or device, a function that does
            not map a vector to one as long; one matrix, which has no queries to norm.
    """
    if norm is None:
        return
    if one_matrix:
        raise ArgumentError(f"{name}: expected None with one matrix, which has no queries and keys")
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
    """Refuse what scores cannot be divided by.

    Raises:
        ArgumentError: not a finite number above 0.
    """
    # nan fails the comparison, as it should
    number = temperature if isinstance(temperature, int | float) else math.nan
    if isinstance(temperature, bool) or not 0 < number < math.inf:
        raise ArgumentError(
            f"temperature: expected a finite number above 0, got {temperature!r}; "
            "its limits are `hessblocks.theory.at_limit`"
        )


def _gain(name: str, given: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(given, Tensor):
        return check_tensor(f"gains: {name}", given, like)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ArgumentError(f"gains: expected {name} as a number or a tensor, got {given!r}")
    return torch.tensor(given, dtype=like.dtype, device=like.device)


def check_finite(name: str, tensor: Float[Tensor, "..."]) -> None:
    """Raise an ArgumentError that tells the first entry that is not finite."""
    bad = ~tensor.isfinite()
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise ArgumentError(f"{name}: expected finite entries, got {tensor[place]} at {place}")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}"
