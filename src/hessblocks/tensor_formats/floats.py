"""Floating-point formats of 4, 8 and 16 bits: bf16, FP8 e4m3, NF4, MXFP4, NVFP4."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hessblocks.tensor_formats.format import Format, bit_packed, bit_unpacked

NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
"""NF4's levels (Dettmers et al. 2023, QLoRA, appendix E)."""
HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*(-level for level in HALVES[:0:-1]), *HALVES)
"""Values of a float with two bits of exponent and one of mantissa."""
BIAS = 127
"""Exponent of 1 in e8m0."""
LARGEST = 448.0
"""Largest value of e4m3."""


def _codes(scaled: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Find the index of the nearest level, packed by two."""
    table = torch.tensor(levels)
    return bit_packed(torch.bucketize(scaled, (table[1:] + table[:-1]) / 2).to(torch.uint8), 4)


def _values(packed: Tensor, levels: tuple[float, ...], width: int) -> Tensor:
    return torch.tensor(levels)[bit_unpacked(packed, 4, width).long()]


def _largest(groups: Tensor) -> Tensor:
    top = groups.abs().amax(-1, keepdim=True)
    return top.masked_fill(top == 0, 1.0)


def _steps(scales: Tensor) -> Tensor:
    return scales if scales.is_floating_point() else torch.exp2(scales.float() - BIAS)


def in_blocks(name: str, levels: tuple[float, ...], block: int, scale: torch.dtype) -> Format:
    """Make a format of 4 bits with a scale for each block, in 32 bits or a power of 2 in 8."""

    def pack(rows: Tensor, importance: Tensor | None) -> dict[str, Tensor]:
        groups = rows.view(-1, block)
        scales = _largest(groups) / levels[-1]
        if scale == torch.uint8:  # exponents, by the largest entry's own (OCP MX, section 6.3)
            scales = (torch.log2(_largest(groups)).floor() + BIAS - 2).clamp(0, 254).to(scale)
        codes = _codes((groups / _steps(scales)).view(rows.shape), levels)
        return {"codes": codes, "scales": scales}

    def unpack(packed: dict[str, Tensor], shape: Sequence[int]) -> Tensor:
        values = _values(packed["codes"], levels, shape[-1]).view(-1, block)
        return (values * _steps(packed["scales"])).view(*shape)

    def count(shape: Sequence[int]) -> int:
        return math.prod(shape) // 2 + math.prod(shape) // block * scale.itemsize

    return Format(name, count, pack, unpack, lambda shape: shape[-1] % block == 0)


def nvfp4() -> Format:
    """Make NVFP4: e2m1 in blocks of 16, their scales in e4m3 below one scale of the tensor."""

    def pack(rows: Tensor, importance: Tensor | None) -> dict[str, Tensor]:
        groups = rows.view(-1, 16)
        of_tensor = _largest(groups.view(1, -1)) / (LARGEST * E2M1[-1])
        scale = (_largest(groups) / E2M1[-1] / of_tensor).to(torch.float8_e4m3fn)
        step = scale.float() * of_tensor
        scaled = groups / step.masked_fill(step == 0, 1.0)
        return {"codes": _codes(scaled.view(rows.shape), E2M1), "scales": scale, "scale": of_tensor}

    def unpack(packed: dict[str, Tensor], shape: Sequence[int]) -> Tensor:
        values = _values(packed["codes"], E2M1, shape[-1]).view(-1, 16)
        return (values * (packed["scales"].float() * packed["scale"])).view(*shape)

    def count(shape: Sequence[int]) -> int:
        return math.prod(shape) // 2 + math.prod(shape) // 16 + 4

    return Format("nvfp4", count, pack, unpack, lambda shape: shape[-1] % 16 == 0)


def fp8() -> Format:
    """Make FP8 e4m3 with a scale for each row in 32 bits, as vLLM's and torchao's."""

    def pack(rows: Tensor, importance: Tensor | None) -> dict[str, Tensor]:
        scale = _largest(rows) / LARGEST
        return {"weight": (rows / scale).to(torch.float8_e4m3fn), "weight_scale": scale}

    return Format(
        "fp8-e4m3",
        lambda shape: math.prod(shape) + math.prod(shape[:-1]) * 4,
        pack,
        lambda packed, shape: packed["weight"].float() * packed["weight_scale"],
    )


BF16 = Format(
    "bf16",
    lambda shape: 2 * math.prod(shape),
    lambda rows, importance: rows.bfloat16(),
    lambda packed, shape: packed.float(),
)
FLOATS = (
    BF16,
    fp8(),
    in_blocks("nf4", NORMAL, 64, torch.float32),
    in_blocks("mxfp4", E2M1, 32, torch.uint8),
    nvfp4(),
)
