"""A storage format: how many bytes a weight takes, and how a runtime packs and unpacks it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from hessblocks.errors import ArgumentError

Pack = Callable[[Float[Tensor, "rows width"], Float[Tensor, " width"] | None], Any]
Unpack = Callable[[Any, Sequence[int]], Float[Tensor, "rows width"]]
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear modules that vLLM and SGLang store as one weight."""


def anything(shape: Sequence[int]) -> bool:
    """Accept every shape."""
    return True


@dataclass(frozen=True)
class Format:
    """Storage format of a weight matrix with scales along its rows.

    Examples:
        >>> import math, torch, hessblocks as hb
        >>> half = hb.Format(
        ...     "half",
        ...     lambda shape: 2 * math.prod(shape),
        ...     lambda weight, importance: weight.half(),
        ...     lambda packed, shape: packed.float(),
        ... )
        >>> half.bytes((3, 4)), half.rounded(torch.tensor([[1 / 3]]))
        (24, tensor([[0.3333]]))
        >>> mlx = hb.formats()["mlx:4"]
        >>> mlx.bytes((8, 64)), mlx.fits((8, 60))
        (288, False)
    """

    name: str
    """Unique name, such as `gguf:Q4_K`."""
    bytes: Callable[[Sequence[int]], int]
    """Number of bytes of a tensor of a shape, scales counted."""
    pack: Pack
    """Makes what is stored from rows in float32 and the mean squared input of each column, or None
    if it is unknown."""
    unpack: Unpack
    """Makes the rows in float32 from what is stored and their shape (rows, width)."""
    fits: Callable[[Sequence[int]], bool] = anything
    """Whether a tensor of a shape can be stored."""
    siblings: tuple[tuple[str, ...], ...] = ()
    """Sets of modules of a layer that a runtime fuses, so that they need one format."""
    tables: bool = True
    """Whether a runtime reads embeddings, and matrices tied to them, that are stored so."""

    def rounded(
        self, weight: Float[Tensor, "... width"], importance: Float[Tensor, " width"] | None = None
    ) -> Float[Tensor, "... width"]:
        """Pack and unpack a tensor along its last axis.

        Args:
            weight: tensor of any shape that fits.
            importance: mean squared input of each column, for formats that weigh errors by it.

        Returns:
            What a runtime computes with, in float32 on the tensor's device.

        Raises:
            ArgumentError: the shape does not fit.
        """
        if not self.fits(weight.shape):
            raise ArgumentError(f"{self.name}: does not fit a tensor of {tuple(weight.shape)}")
        rows = as_rows(weight)
        unpacked = self.unpack(self.pack(rows, importance), rows.shape)
        return unpacked.view(weight.shape).to(weight.device)


def as_rows(weight: Float[Tensor, "... width"]) -> Float[Tensor, "rows width"]:
    """View a weight as what formats pack: rows in float32 on the CPU."""
    return weight.detach().float().cpu().reshape(-1, weight.shape[-1]).contiguous()


def library(name: str, why: str) -> Any:
    """Import an optional package, or say what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ArgumentError(f"{why} needs the package {package}: pip install {package}") from error


def bit_packed(codes: Shaped[Tensor, "rows width"], bits: int) -> Shaped[Tensor, "rows packed"]:
    """Store codes of `bits` bits one after the other, the lowest bit first."""
    bytewise = np.unpackbits(codes.numpy()[..., None], axis=-1, count=bits, bitorder="little")
    return torch.from_numpy(np.packbits(bytewise.reshape(len(codes), -1), 1, bitorder="little"))


def bit_unpacked(
    packed: Shaped[Tensor, "rows packed"], bits: int, width: int
) -> Shaped[Tensor, "rows width"]:
    """Read codes that `bit_packed` stored."""
    single = np.unpackbits(packed.numpy(), axis=1, count=width * bits, bitorder="little")
    return torch.from_numpy(
        np.packbits(single.reshape(-1, width, bits), axis=-1, bitorder="little")[..., 0]
    )
