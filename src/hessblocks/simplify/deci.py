"""Write a Llama with layers of different sizes as GGUF file of llama.cpp's architecture `deci`.

`deci` has numbers of heads, key heads and MLP units for each layer. A layer without heads has no
attention; one with heads but no key heads has a linear map in its place.

Source: llama.cpp, pull request 10669 (Nemotron, arXiv 2411.19146).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from hessblocks.blocks import MLP, Attention, BlockConfig, RMSNorm, RotaryPosition
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks.models import HessblocksForCausalLM
from hessblocks.storage import atomic_path

TYPES = ("f16", "f32", "q8_0")
"""Types of the matrices."""
TENSORS = {
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.projection": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.input": "ffn_up",
    "mlp.output": "ffn_down",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
}
"""llama.cpp's name of each part of a layer."""
OUTSIDE = {
    "model.token_embedding": "token_embd",
    "model.final_norm": "output_norm",
    "lm_head": "output",
}


def to_gguf(
    model: HessblocksForCausalLM, path: AnyPath, vocabulary: AnyPath, *, kind: str = "f16"
) -> Path:
    """Write a model of Llama's blocks, in which layers may differ in size, for llama.cpp.

    Args:
        model: model from `from_pretrained_blocks` of a Llama, perhaps simplified.
        path: GGUF file to write.
        vocabulary: GGUF file whose tokeniser it gets, such as the original's.
        kind: type of the matrices, f16, f32 or q8_0; norms are stored in f32, and what does not
            fill blocks of 32 in f16.

    Returns:
        The path.

    Raises:
        ArgumentError: a layer is none of Llama's, another number of tokens in `vocabulary`, an
            unknown type, or the package gguf is not installed.
        RunError: `vocabulary` cannot be read, or the file cannot be written.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=9, context=8)
        >>> hb.to_gguf(model, "new.gguf", "original.gguf")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hessblocks.errors.ArgumentError: --to gguf: layer 0 is none of Llama's, ...
    """
    check_name("kind", kind, TYPES)
    if not importlib.util.find_spec("gguf"):
        raise ArgumentError("--to gguf: needs the package gguf: pip install gguf")
    import gguf

    blocks = model.config.blocks
    check_deci(model)
    fields = _vocabulary(Path(vocabulary), model.config.vocab_size)
    wide, half, quant = (gguf.GGMLQuantizationType[one] for one in ("F32", "F16", kind.upper()))
    with atomic_path(Path(path)) as temporary:
        writer = gguf.GGUFWriter(temporary, "deci")
        try:
            _write_sizes(writer, model, blocks)
            for name, (value, of) in fields.items():
                if of[0] == gguf.GGUFValueType.ARRAY:
                    writer.add_array(name, value)
                else:
                    writer.add_key_value(name, value, of[0])
            for name, rows in _tensors(model):
                fits = kind != "q8_0" or rows.shape[-1] % gguf.GGML_QUANT_SIZES[quant][0] == 0
                own = wide if rows.ndim == 1 else quant if fits else half
                packed = gguf.quants.quantize(rows, own)
                writer.add_tensor(name, packed, raw_dtype=own)
            writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[kind])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
    return Path(path)


def check_deci(model: HessblocksForCausalLM) -> None:
    """Refuse a model with a layer that llama.cpp's `deci` cannot hold.

    Raises:
        ArgumentError: there is such a layer; the message names the first, and its field.
    """
    blocks = model.config.blocks
    for number, block in enumerate(blocks):
        _check(number, block, blocks[0])


def _check(number: int, block: BlockConfig, first: BlockConfig) -> None:
    """Refuse a layer that llama.cpp's `deci` cannot hold."""
    known = BlockConfig(
        width=block.width,
        heads=block.heads,
        key_value_heads=block.key_value_heads,
        head_width=block.head_width,
        mlp_width=block.mlp_width,
        sub_blocks=block.sub_blocks,
        norm=RMSNorm(eps=getattr(first.norm, "eps", 0.0)),
        mlp_norm=None if block.mlp_norm is None else first.norm,
        final_norm=first.norm,
        position=RotaryPosition(base=getattr(first.position, "base", 1.0)),
        attention=Attention()
        if block.sub_blocks == "mlp" or block.attends
        else Attention(scores="none"),
        mlp=MLP(activation="silu", gated=True),
    )
    if block.sub_blocks == "attention":
        raise ArgumentError(
            f"--to gguf: layer {number} has no MLP, which llama.cpp's `deci` does not support"
        )
    fields = block.to_dict()
    if block.sub_blocks == "mlp":
        fields["attention"] = known.to_dict()["attention"]
    for name, value in known.to_dict().items():
        if fields[name] != value:
            raise ArgumentError(
                f"--to gguf: layer {number} is none of Llama's, which has another {name}; "
                "hb.to_family writes models of other families as long as their layers are alike"
            )


def _vocabulary(path: Path, size: int) -> dict[str, tuple[Any, Any]]:
    """Read the tokeniser's fields of a GGUF file."""
    from gguf import GGUFReader

    if not path.is_file():
        raise ArgumentError(f"--to gguf: {path} is not a file; give a GGUF file with the tokeniser")
    try:
        fields = GGUFReader(path).fields
        found = {
            name: (field.contents(), field.types)
            for name, field in fields.items()
            if name.startswith("tokenizer.")
        }
    except Exception as error:  # a file from elsewhere may cause any kind of error
        raise RunError(f"--to gguf: {path} is damaged or not a GGUF file") from error
    count = len(found.get("tokenizer.ggml.tokens", ([], []))[0])
    if count != size:
        raise ArgumentError(
            f"--to gguf: {path} has {count} tokens, the model {size}; give the file it came from"
        )
    return found


def _write_sizes(writer: Any, model: HessblocksForCausalLM, blocks: list[BlockConfig]) -> None:
    first: Any = blocks[0]
    width = first.resolved_head_width
    heads = [block.heads if block.sub_blocks == "both" else 0 for block in blocks]
    writer.add_name("simplified")
    writer.add_block_count(len(blocks))
    writer.add_context_length(model.config.context)
    writer.add_embedding_length(first.width)
    writer.add_vocab_size(model.config.vocab_size)
    writer.add_feed_forward_length([block.resolved_mlp_width for block in blocks])
    writer.add_head_count(heads)
    writer.add_head_count_kv(
        [block.resolved_key_value_heads if block.attends else 0 for block in blocks]
    )
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(first.position.base)
    writer.add_layer_norm_rms_eps(first.norm.eps)


def _tensors(model: HessblocksForCausalLM) -> Iterator[tuple[str, Shaped[np.ndarray, "..."]]]:
    """Yield names and values as llama.cpp has them."""
    tied = model.config.tie_word_embeddings
    for name, value in model.state_dict().items():
        rows = value.detach().float().cpu().numpy()
        module, _, _ = name.rpartition(".")
        if module in OUTSIDE:
            if not (tied and module == "lm_head"):
                yield f"{OUTSIDE[module]}.weight", rows
            continue
        _, _, number, part = module.split(".", 3)
        if part in ("attention.query", "attention.key"):  # pairs that turn together are neighbours
            heads = len(rows) // model.config.blocks[int(number)].resolved_head_width
            halves = rows.reshape(heads, 2, -1, rows.shape[1])
            rows = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
        yield f"blk.{number}.{TENSORS[part]}.weight", rows
