"""llama.cpp's types, and the types that its standard mixes choose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hessblocks.tensor_formats.format import Format, library

KINDS = (
    *("Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "Q4_0", "IQ4_NL", "Q4_K", "Q4_1", "Q5_0", "Q5_K"),
    *("Q5_1", "Q6_K", "Q8_0"),
)
"""Types that can be written, by size."""
WHY = "llama.cpp's types"


def llama_format(kind: str) -> Format:
    """Make the format of a type of llama.cpp, which packs with `libgguf`."""

    def sizes() -> tuple[int, int]:
        gguf = library("gguf", WHY)
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        return int(block), int(size)

    def count(shape: Sequence[int]) -> int:
        block, size = sizes()
        return math.prod(shape) // block * size

    def pack(rows: Tensor, importance: Tensor | None) -> Tensor:
        numbers = library("gguf", WHY).GGMLQuantizationType
        weights = None if importance is None else importance.float().numpy()
        found = library("libgguf", WHY).quantize_rows(rows.numpy(), numbers[kind], weights)
        return torch.from_numpy(found)

    def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
        numbers = library("gguf", WHY).GGMLQuantizationType
        found = library("libgguf", WHY).dequantize_rows(
            packed.numpy(), numbers[kind], n_per_row=shape[-1]
        )
        return torch.from_numpy(found).view(*shape)

    return Format(f"gguf:{kind}", count, pack, unpack, lambda shape: shape[-1] % sizes()[0] == 0)


LLAMA = tuple(map(llama_format, KINDS))
