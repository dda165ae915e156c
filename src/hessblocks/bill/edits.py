"""Edits that compress a weight: rounding, storage formats, magnitude pruning, merging, removal.

Letters: b bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.errors import ArgumentError, check_whole
from hessblocks.tensor_formats import Format, format_of

Cut = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
"""Function from a whole parameter to its edited entries."""
MOST_BITS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """Function from the old entries of a weight to the new ones."""

    how: str
    """Description of the change, such as `3 bits`."""
    new: Callable[[Float[Tensor, "..."], str, Cut], Float[Tensor, "..."]]
    """Computes the new entries from the old ones, the parameter's name and its `Cut`."""
    bytes: Callable[[Sequence[int]], float] | None = None
    """Bytes of the entries of a shape after rounding; None if the edit does not round."""
    format: Format | None = None
    """Storage format; None if no runtime stores the result."""
    importance: Mapping[str, Float[Tensor, " width"]] | None = None
    """Parameter name → mean squared input of each column, by which the format weighs errors."""


def rounded(*, bits: int, block: int = 64, symmetric: bool = False) -> Edit:
    """Round to nearest among 2^b levels, in blocks of consecutive entries of the last axis.

    Args:
        bits: b, from 1 to 16; the bits of a block's scale are not counted, unlike in `in_format`.
        block: number of entries that share a scale.
        symmetric: whether 0 is a level. If so, levels are the multiples from −2^(b−1) to
            2^(b−1) − 1 of a step that maps the entry of largest magnitude to −2^(b−1), as in
            llama.cpp's Q4_0. Else levels go from the smallest entry to the largest, as in Q4_1.

    Returns:
        The edit.

    Raises:
        ArgumentError: `bits` or `block` is out of range.

    Examples:
        >>> import torch, hessblocks as hb
        >>> old = {"weight": torch.tensor([[0.0, 0.2, 0.7, 1.0]])}
        >>> changes = hb.change_each(torch.nn.Linear(4, 1, bias=False), hb.rounded(bits=1))
        >>> dict(changes["weight, 1 bits"].made(old))
        {'weight': tensor([[0., 0., 1., 1.]])}
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= MOST_BITS:
        raise ArgumentError(f"bits: expected a whole number from 1 to {MOST_BITS}, got {bits!r}")
    check_whole(1, block=block)
    levels = _symmetric if symmetric else _between_ends

    def new(old: Tensor, name: str, cut: Cut) -> Tensor:
        width = old.shape[-1] if old.ndim else 1
        rows = old.reshape(1, -1, width).to(torch.promote_types(old.dtype, torch.float32))
        # padding repeats the last entry of a row, which does not change the range of its block
        padded = F.pad(rows, (0, -width % block), mode="replicate")
        found = levels(padded.view(-1, block), bits).view(padded.shape)
        return found[..., :width].reshape(old.shape)

    how = f"{bits} bits, symmetric" if symmetric else f"{bits} bits"
    return Edit(how=how, new=new, bytes=lambda shape: math.prod(shape) * bits / 8)


def in_format(
    format: str | Format, *, importance: Mapping[str, Float[Tensor, " width"]] | None = None
) -> Edit:
    """Round as a storage format of a runtime does, by the runtime's own library.

    Args:
        format: a name in `hb.formats()`, or a format of one's own.
        importance: parameter name → mean squared input of each column, by which llama.cpp's types
            weigh errors; `hb.price` measures it, if it is None.

    Returns:
        The edit; `change_each` makes it of embeddings too, and of fused weights together.

    Raises:
        ArgumentError: an unknown name.

    Examples:
        >>> import torch, hessblocks as hb
        >>> changes = hb.change_each(torch.nn.Linear(64, 8), hb.in_format("mlx:4"))
        >>> changes["weight, mlx:4"].bits  # scale and bias of each 64 entries counted
        4.5
    """
    own = format_of(format)

    def new(old: Tensor, name: str, cut: Cut) -> Tensor:
        return own.rounded(old, (importance or {}).get(name))

    return Edit(how=own.name, new=new, bytes=own.bytes, format=own, importance=importance)


def _symmetric(blocks: Tensor, bits: int) -> Tensor:
    half = 2 ** (bits - 1)
    step = _step(blocks.gather(1, blocks.abs().argmax(1, keepdim=True)) / -half)
    return (blocks / step).round_().clamp_(-half, half - 1).mul_(step)


def _between_ends(blocks: Tensor, bits: int) -> Tensor:
    low, high = blocks.aminmax(dim=1, keepdim=True)
    step = _step((high - low) / (2**bits - 1))
    return ((blocks - low) / step).round_().mul_(step).add_(low)


def _step(step: Tensor) -> Tensor:
    """Replace a step of 0 by 1, in place: a block of equal entries then stays unchanged."""
    return step.masked_fill_(step == 0, 1.0)


def pruned(*, share: float) -> Edit:
    """Set the smallest entries of each weight to 0 (magnitude pruning).

    Args:
        share: share of the entries, from 0 to 1.

    Returns:
        The edit.

    Raises:
        ArgumentError: `share` is not between 0 and 1.

    Examples:
        >>> import torch, hessblocks as hb
        >>> old = {"weight": torch.tensor([[0.0, 2.0, -7.0, 1.0]])}
        >>> changes = hb.change_each(torch.nn.Linear(4, 1, bias=False), hb.pruned(share=0.5))
        >>> dict(changes["weight, 0.5 pruned"].made(old))
        {'weight': tensor([[ 0.,  2., -7.,  0.]])}
    """
    _check_share("share", share)

    def new(old: Tensor, name: str, cut: Cut) -> Tensor:
        found = old.flatten().clone()
        gone = found.abs().topk(round(share * len(found)), largest=False, sorted=False)
        return found.index_fill_(0, gone.indices, 0.0).view(old.shape)

    return Edit(how=f"{share} pruned", new=new)


def merged(other: nn.Module | Mapping[str, Float[Tensor, "..."]], *, weight: float = 0.5) -> Edit:
    """Average with another model: (1 − weight) · old + weight · other.

    Args:
        other: a model of the same architecture, or its tensors by parameter name.
        weight: weight of `other`, from 0 to 1.

    Returns:
        The edit.

    Raises:
        ArgumentError: `weight` is not between 0 and 1, or `other` is no model and no mapping.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> problem = hb.Problem(model, {"input_ids": torch.randint(20, (8, 8))})
        >>> merge = {name: hb.merged(model) for name, _ in model.named_parameters()}  # with itself
        >>> print(hb.price(problem, {"merge": merge})["merge"].forecast.value)
        0.0
    """
    _check_share("weight", weight)
    tensors = dict(other.named_parameters()) if isinstance(other, nn.Module) else other
    if not isinstance(tensors, Mapping):
        raise ArgumentError(f"other: expected a model or tensors by parameter name, got {other!r}")

    def new(old: Tensor, name: str, cut: Cut) -> Tensor:
        if not isinstance(tensors.get(name), Tensor):
            raise ArgumentError(f"other: has no {name!r} to merge with")
        return torch.lerp(old, cut(tensors[name].detach().to(old)), weight)

    return Edit(how=f"{weight} merged", new=new)


def removed() -> Edit:
    """Set all entries to 0.

    Returns:
        The edit.

    Examples:
        >>> import torch, hessblocks as hb
        >>> sizes = {"width": 16, "heads": 2, "vocab_size": 20, "context": 8}
        >>> model = hb.build("pre-ln-zero", depth=1, **sizes)  # its queries start at zero
        >>> problem = hb.Problem(model, {"input_ids": torch.randint(20, (8, 8))})
        >>> bill = hb.price(problem, hb.change_each(hb.parameter_groups(model), hb.removed()))
        >>> [price.place for price in bill.values() if price.forecast.value == 0]  # costs nothing
        ['layers.0.attention.query', 'layers.0.attention.key']
    """
    return Edit(how="removed", new=lambda old, name, cut: torch.zeros_like(old))


def _check_share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ArgumentError(f"{name}: expected a number from 0 to 1, got {value!r}")
