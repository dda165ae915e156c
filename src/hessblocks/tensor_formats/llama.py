"""llama.cpp's types, and the types that its standard mixes choose."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hessblocks.settings import FORMATS, SIZES
from hessblocks.tensor_formats.format import Format, library

KINDS = tuple(name.removeprefix("gguf:") for name in FORMATS if name.startswith("gguf:"))
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
        packed = library("libgguf", WHY).quantize_rows(rows.numpy(), numbers[kind], weights)
        return torch.from_numpy(packed)

    def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
        numbers = library("gguf", WHY).GGMLQuantizationType
        unpack_rows = library("libgguf", WHY).dequantize_rows
        rows = unpack_rows(packed.numpy(), numbers[kind], n_per_row=shape[-1])
        return torch.from_numpy(rows).view(*shape)

    return Format(f"gguf:{kind}", count, pack, unpack, lambda shape: shape[-1] % sizes()[0] == 0)


LLAMA = tuple(map(llama_format, KINDS))


MIXES = {name: re.sub("_[SML]$", "", name) for name in SIZES["gguf"]}
"""Name of a mix → its main type."""
NARROW = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # fmt: skip
"""Type for rows that its blocks of 256 do not divide."""
SHARED = 4
"""Fewest query heads of a key head from which values get more bits."""


def mix(name: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Choose llama.cpp's type for each tensor of a model.

    Args:
        name: a name in `MIXES`.
        shapes: shapes of the matrices by llama.cpp's names, such as `blk.0.attn_q.weight`.

    Returns:
        Name of the tensor → name of its format.

    Source: llama.cpp, src/llama-quant.cpp (b11434), for dense models below 70B with an importance
        matrix.
    """
    layers = 1 + max((int(n) for t in shapes for n in re.findall(r"^blk\.(\d+)\.", t)), default=-1)
    heads = [
        shapes[f"blk.0.attn_{n}.weight"][0] for n in "qv" if f"blk.0.attn_{n}.weight" in shapes
    ]
    shared = len(heads) == 2 and heads[0] // heads[1] >= SHARED
    types = {}
    for tensor, shape in shapes.items():
        kind, role = MIXES[name], tensor.split(".")[-2]
        layer = re.match(r"blk\.(\d+)", tensor)
        if role == "output" or (role == "token_embd" and "output.weight" not in shapes):
            kind = "Q8_0" if kind == "Q8_0" else "Q6_K"
        elif layer:
            kind = _in_layer(name, role, int(layer[1]), layers, shared=shared)
        if not llama_format(kind).fits(shape):
            kind = NARROW.get(kind, kind)
        types[tensor] = f"gguf:{kind}"
    return types


def _in_layer(name: str, role: str, layer: int, layers: int, *, shared: bool) -> str:
    """Choose the type of a matrix of a layer, besides its main type where it is one of some."""
    eighth = layers // 8
    has_more_bits = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    larger = {"Q4_K_M": "Q6_K", "Q5_K_M": "Q6_K"} if has_more_bits else {}
    first = {"Q2_K_S": "Q4_K", "Q4_K_S": "Q5_K", "Q4_0": "Q4_1", "Q5_0": "Q5_1"}
    chosen = {
        "attn_v": {
            "Q2_K": "Q4_K" if shared else "Q3_K",
            "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",
            "Q3_K_L": "Q5_K",
            **({"Q2_K_S": "Q4_K", "IQ4_XS": "Q5_K", "IQ4_NL": "Q5_K"} if shared else {}),
            **({"Q4_K_S": "Q5_K"} if layer < 4 else {}),
            **larger,
        },
        "ffn_down": {
            "Q2_K": "Q3_K",
            "Q3_K_M": "Q5_K" if layer < layers // 16 else "Q4_K",
            "Q3_K_L": "Q5_K",
            **(first if layer < eighth else {}),
            **larger,
        },
        "attn_output": {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"},
        "attn_qkv": {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"},
    }
    return chosen.get(role, {}).get(name, MIXES[name])
