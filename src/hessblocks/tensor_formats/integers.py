"""Integers of 2 to 8 bits in groups along rows, as MLX, compressed-tensors and torchao store them.

Letters: b bits, G entries of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessblocks.tensor_formats.format import FUSED, Format, bit_packed, bit_unpacked, library

GROUP = 64
"""G."""


def grouped(shape: Sequence[int]) -> bool:
    """Tell whether rows are whole groups."""
    return shape[-1] % GROUP == 0


def mlx(bits: int) -> Format:
    """Make the affine format of `mlx.core.quantize`, with scale and bias in 16 bits."""

    def pack(rows: Tensor, importance: Tensor | None) -> dict[str, Tensor]:
        groups, steps = rows.view(-1, GROUP), 2**bits - 1
        low, high = groups.aminmax(dim=1, keepdim=True)
        below = low.abs() > high.abs()
        scale = ((high - low) / steps).clamp_min(1e-7) * torch.where(below, 1, -1)
        edge = torch.where(below, low, high)
        zero = (edge / scale).round()  # the level that 0 gets
        scale = torch.where(zero != 0, edge / zero, scale).half()
        bias = torch.where(zero != 0, edge, 0).half()
        codes = ((groups - bias.float()) / scale.float()).round().clamp(0, steps)
        packed = bit_packed(codes.to(torch.uint8).view(rows.shape), bits)
        return {"codes": packed, "scales": scale, "biases": bias}

    def unpack(packed: dict[str, Tensor], shape: Sequence[int]) -> Tensor:
        codes = bit_unpacked(packed["codes"], bits, shape[-1]).view(-1, GROUP)
        return (codes * packed["scales"].float() + packed["biases"].float()).view(*shape)

    def count(shape: Sequence[int]) -> int:
        return math.prod(shape) * bits // 8 + math.prod(shape) // GROUP * 4

    return Format(f"mlx:{bits}", count, pack, unpack, grouped)


def compressed_tensors(bits: int) -> Format:
    """Make the `pack-quantized` format of compressed-tensors: symmetric, scales in 16 bits."""
    half = 2 ** (bits - 1)

    def pack(rows: Tensor, importance: Tensor | None) -> dict[str, Tensor]:
        groups = rows.view(len(rows), -1, GROUP)
        scale = (groups.abs().amax(2) / (half - 0.5)).half()
        step = scale.float().masked_fill(scale == 0, 1.0)[..., None]
        codes = ((groups / step).round().clamp(-half, half - 1) + half).to(torch.uint8)
        packed = bit_packed(codes.view(rows.shape), bits).view(torch.int32)
        shape = torch.tensor(rows.shape)
        return {"weight_packed": packed, "weight_scale": scale, "weight_shape": shape}

    def unpack(packed: dict[str, Tensor], shape: Sequence[int]) -> Tensor:
        codes = bit_unpacked(packed["weight_packed"].view(torch.uint8), bits, shape[-1])
        signed = codes.view(shape[0], -1, GROUP).float() - half
        scaled: Tensor = signed * packed["weight_scale"].float()[..., None]
        return scaled.view(*shape)

    def count(shape: Sequence[int]) -> int:
        return math.prod(shape) * bits // 8 + math.prod(shape) // GROUP * 2 + 16

    return Format(f"compressed-tensors:{bits}", count, pack, unpack, grouped, FUSED, tables=False)


def torchao(bits: int) -> Format:
    """Make torchao's `IntxUnpackedToInt8Tensor`: b bits, stored in 8, scale in 32, zero in 8."""
    where = "torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor"

    def pack(rows: Tensor, importance: Tensor | None) -> Any:
        tensor = library(where, "torchao's formats").IntxUnpackedToInt8Tensor
        return tensor.from_hp(rows, (1, GROUP), getattr(torch, f"int{bits}"))

    def unpack(packed: Any, shape: Sequence[int]) -> Any:
        return packed.dequantize()

    def count(shape: Sequence[int]) -> int:
        return math.prod(shape) + math.prod(shape) // GROUP * 5

    return Format(f"torchao:{bits}", count, pack, unpack, grouped, FUSED, tables=False)


INTEGERS = (
    *map(mlx, (2, 3, 4, 5, 6, 8)),
    *map(compressed_tensors, range(2, 9)),
    *map(torchao, (2, 3, 4, 8)),
)
