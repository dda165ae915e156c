"""Write folders of transformers with quantised weights, which open without hessblocks."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from hessblocks.errors import ArgumentError, check_name
from hessblocks.storage import atomic_folder
from hessblocks.tensor_formats import GROUP, library

State = dict[str, Shaped[Tensor, "..."]]


def write_folder(
    path: Path,
    model: PreTrainedModel,
    tokenizer: Any,
    packed: Mapping[str, Any],
    bits: Mapping[str, int],
    kind: str,
) -> None:
    """Write a folder, whole or not at all.

    Args:
        path: folder to write.
        model: model in float32; its other parameters are stored as they are.
        tokenizer: its tokeniser; None if it has none.
        packed: parameter → what a format of `kind`, or bf16, stores.
        bits: parameter → its bits, if it is of `kind`.
        kind: a name in `FOLDERS`.

    Raises:
        ArgumentError: the package of `kind` is not installed, or it has no module for one of
            `bits`, such as an embedding or fused experts.
        RunError: the folder cannot be written.
    """
    check_name("--to", kind, FOLDERS)
    check_linear(model, bits, kind)
    stored = {}
    for name, parameter in model.named_parameters():
        rows = packed.get(name, parameter.detach().float().cpu().contiguous())
        plain = type(rows) is Tensor  # of 16 bits, from rows of what may be stacked matrices
        stored[name] = rows.view(parameter.shape) if plain else rows
    modules = {name.removesuffix(".weight"): count for name, count in bits.items()}
    tensors, metadata, settings = FOLDERS[kind](stored, modules)
    config = copy.deepcopy(model.config)
    config.quantization_config = settings
    with atomic_folder(path) as temporary:
        save_file(tensors, temporary / "model.safetensors", metadata={**metadata, "format": "pt"})
        config.save_pretrained(temporary)
        if isinstance(model.generation_config, GenerationConfig):
            model.generation_config.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)


def check_linear(model: nn.Module, names: Iterable[str], kind: str) -> None:
    """Check that parameters are weights of linear modules, which alone a folder quantises.

    Raises:
        ArgumentError: one is not; it would be written, and not be read.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for name in names:
        module = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(module, nn.Linear) or id(module.weight) in tables:
            raise ArgumentError(
                f"{kind}: it stores the weights of linear modules alone in fewer bits, and "
                f"{name!r} is none or is tied to an embedding; leave its changes out, or write a "
                ".gguf file"
            )


def _compressed_tensors(
    stored: Mapping[str, Any], bits: Mapping[str, int]
) -> tuple[State, dict[str, str], dict[str, Any]]:
    """Name packed integers and scales; a group of settings for each number of bits."""
    tensors: State = {}
    for name, value in stored.items():
        module = name.removesuffix("weight")
        packed = isinstance(value, dict)
        tensors |= {f"{module}{key}": v for key, v in value.items()} if packed else {name: value}
    scheme = {"type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    groups = {
        f"bits_{width}": {
            "targets": [module for module in bits if bits[module] == width],
            "weights": {"num_bits": width, **scheme},
        }
        for width in sorted(set(bits.values()))
    }
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ["lm_head"] if "lm_head" not in bits else [],
    }
    return tensors, {}, settings


def _torchao(
    stored: Mapping[str, Any], bits: Mapping[str, int]
) -> tuple[State, dict[str, str], dict[str, Any]]:
    """Flatten torchao's tensors, with a setting for each module."""
    import torch
    from transformers import TorchAoConfig

    torchao = library("torchao.quantization", "torchao's folder")
    flat = library("torchao.prototype.safetensors.safetensors_support", "torchao's folder")
    rule = {
        module: torchao.IntxWeightOnlyConfig(
            weight_dtype=getattr(torch, f"int{width}"), granularity=torchao.PerGroup(GROUP)
        )
        for module, width in bits.items()
    }
    tensors, metadata = flat.flatten_tensor_state_dict(dict(stored))
    return tensors, metadata, TorchAoConfig(torchao.FqnToConfig(rule)).to_dict()


FOLDERS = {"compressed-tensors": _compressed_tensors, "torchao": _torchao}
"""Name of a target → makes tensors, metadata and settings."""
