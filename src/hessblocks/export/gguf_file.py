"""Write GGUF files, llama.cpp's format, by the package `gguf`; names as transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from transformers import PreTrainedModel
from transformers import modeling_gguf_pytorch_utils as hf_names

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError, choice_of
from hessblocks.export.deci import DECI, deci_fields, deci_tensors
from hessblocks.models import HessblocksForCausalLM, names_once, open_gguf, split_name
from hessblocks.storage import atomic_path
from hessblocks.tensor_formats import as_rows, formats, library

WHY = "a GGUF file"
ALIGNED = 32
"""Tensors begin at multiples of so many bytes."""
TYPES = ("f16", "f32", "q8_0")
"""Types of the matrices that `to_gguf` writes."""
HALF = replace(formats()["bf16"], name="gguf:F16", pack=lambda rows, importance: rows.half())


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says besides its tensors."""

    architecture: str
    """llama.cpp's name of the architecture, such as `llama`."""
    fields: Mapping[str, Any]
    """Key → value: str, bool, int, float, or a list of these; numpy scalars keep their width."""

    def bytes(self, tensors: Mapping[str, int]) -> int:
        """Count the bytes of a file besides its tensors.

        Args:
            tensors: name → number of axes.

        Returns:
            Bytes of fields and of tensors' names, and the most that tensors can be filled up by.
        """
        stored = 24 + sum(12 + len(key.encode()) + _size(v) for key, v in self.fields.items())
        stored += sum(24 + len(name.encode()) + 8 * axes for name, axes in tensors.items())
        return stored + -stored % ALIGNED + (ALIGNED - 1) * len(tensors)


def _size(value: Any) -> int:
    if isinstance(value, list):
        return 12 + sum(map(_size, value))
    if isinstance(value, str):
        return 8 + len(value.encode())
    return 1 if isinstance(value, bool) else getattr(value, "nbytes", 4)


def header_of(source: str, model: PreTrainedModel, tokenizer: Any) -> GgufHeader:
    """Make the header of a model's file: that of its own GGUF file, or from its configuration.

    Args:
        source: GGUF file or folder that the model was loaded from.
        model: Llama, Mistral, Qwen2 or Qwen3, unless `source` is a GGUF file; or a model of blocks
            that was made from a Llama, whose layers may differ in size.
        tokenizer: its byte-level BPE tokeniser; only used without a GGUF file.

    Returns:
        The header.

    Raises:
        ArgumentError: llama.cpp's name of a setting, or of the tokeniser's way to split text, is
            not known; or the tokeniser has more tokens than the model.
        RunError: `source` is a damaged GGUF file.
    """
    gguf, of_blocks = library("gguf", WHY), isinstance(model, HessblocksForCausalLM)
    if source.lower().endswith(".gguf"):
        fields = _of_file(Path(source))
    else:
        fields = {"general.name": "simplified"} if of_blocks else _of_config(model.config)
        fields |= _of_tokenizer(tokenizer, model.config.vocab_size)
    if isinstance(model, HessblocksForCausalLM):
        about = {k: v for k, v in fields.items() if k.startswith(("general.", "tokenizer."))}
        fields = about | {"general.architecture": DECI} | deci_fields(model)
        count, size = len(fields.get("tokenizer.ggml.tokens", ())), model.config.vocab_size
        if count != size:
            raise ArgumentError(
                f"--to gguf: the tokeniser has {count} tokens, the model {size}; give the "
                "original's tokeniser"
            )
    architecture = fields.pop("general.architecture")
    fields["general.file_type"] = np.uint32(gguf.LlamaFileType.GUESSED)
    fields["general.quantization_version"] = np.uint32(gguf.GGML_QUANT_VERSION)
    return GgufHeader(architecture, {"general.architecture": architecture, **fields})


def _of_file(path: Path) -> dict[str, Any]:
    """Read the fields of a GGUF file."""
    if not path.is_file():
        raise ArgumentError(f"--to gguf: {path} is not a file; give the original's GGUF file")
    try:
        fields = open_gguf(path).fields
        dropped = ("GGUF.", "general.alignment")  # the writer's own is 32
        return {key: _typed(field) for key, field in fields.items() if not key.startswith(dropped)}
    except Exception as error:  # a file from elsewhere may cause any kind of error
        raise RunError(f"--to gguf: {path} is damaged or not a GGUF file") from error


def _typed(field: Any) -> Any:
    """Read a field; numbers keep their width."""
    value = field.contents()
    if not len(field.data) or isinstance(value, str | bool):
        return value
    kind = type(field.parts[field.data[0]][0])
    if isinstance(value, list):
        return value if isinstance(value[0], str | bool) else list(map(kind, value))
    return kind(value)


def _of_config(config: Any) -> dict[str, Any]:
    """Turn a configuration of transformers into fields of llama.cpp."""
    if (kind := config.model_type) not in ("llama", "mistral", "qwen2", "qwen3"):
        raise ArgumentError(
            f"--to gguf: llama.cpp's names for a model of the kind {kind} are not known here; "
            "known are those of Llama, Mistral, Qwen2 and Qwen3, and of any model in a GGUF file."
        )
    plain = getattr(config, "hidden_act", "silu") in ("silu", "swish")
    biases = "attention_bias", "mlp_bias"
    if not plain or (kind != "qwen2" and any(getattr(config, name, False) for name in biases)):
        raise ArgumentError(
            "--to gguf: llama.cpp's models of this kind have SiLU and no biases; this one has "
            f"{'biases' if plain else config.hidden_act}, and would be read as another model."
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or getattr(config, "sliding_window", None):
        raise ArgumentError(
            "--to gguf: scaled rotary positions and sliding windows are not written here; convert "
            "the model by llama.cpp's convert_hf_to_gguf.py, and give the file as MODEL."
        )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = {**vars(config), "rope_theta": rope.get("rope_theta", 10000.0), "head_dim": head}
    attributes = hf_names.GGUF_TO_TRANSFORMERS_MAPPING["config"][kind] | dict.fromkeys(  # type: ignore[index]
        ("attention.key_length", "attention.value_length", "rope.dimension_count"), "head_dim"
    )
    architecture = "llama" if kind == "mistral" else kind
    # transformers would take "mistral" in a file's name for an architecture, which GGUF has not
    title = "llama" if kind == "mistral" else getattr(config, "name_or_path", "") or kind
    fields = {"general.architecture": architecture, "general.name": title}
    for name, attribute in attributes.items():
        if attribute:
            scalar = np.float32 if isinstance(values[attribute], float) else np.uint32
            fields[f"{architecture}.{name}"] = scalar(values[attribute])
    return fields


def other_tensors(source: str, names: Collection[str]) -> dict[str, tuple[Any, str]]:
    """Read the tensors of a GGUF file that are no parameters, such as `rope_freqs.weight`.

    Args:
        source: GGUF file that the model came from, or another source, which has none.
        names: tensors of the parameters.

    Returns:
        Name → its data as they are stored, and name of llama.cpp's type.
    """
    if not source.lower().endswith(".gguf"):
        return {}
    return {
        tensor.name: (torch.from_numpy(tensor.data.copy()), tensor.tensor_type.name)
        for tensor in open_gguf(source).tensors
        if tensor.name not in names
    }


def _of_tokenizer(tokenizer: Any, size: int) -> dict[str, Any]:
    """Turn a byte-level BPE tokeniser into fields of llama.cpp, filled up to a size."""
    stored = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer else {"model": {}}
    name = split_name(stored) if stored["model"].get("type") == "BPE" else None
    if name is None:
        raise ArgumentError(
            "--to gguf: llama.cpp's name for the way in which this tokeniser splits text is not "
            "known; convert the model by llama.cpp's convert_hf_to_gguf.py, and give the file as "
            "MODEL."
        )
    model, added = stored["model"], {entry["id"]: entry for entry in stored["added_tokens"]}
    tokens = {number: token for token, number in model["vocab"].items()}
    tokens |= {number: entry["content"] for number, entry in added.items()}
    order = range(max(max(tokens) + 1, size))
    of_added = {number: 3 if entry["special"] else 4 for number, entry in added.items()}
    kinds = [of_added.get(number, 1 if number in tokens else 5) for number in order]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    plain = tokenizer("a")["input_ids"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": [tokens.get(number, f"[PAD{number}]") for number in order],
        "tokenizer.ggml.token_type": [np.int32(kind) for kind in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": plain[0] == tokenizer.bos_token_id,
        "tokenizer.ggml.add_eos_token": plain[-1] == tokenizer.eos_token_id,
    }
    for name, role in {"bos": "bos", "eos": "eos", "padding": "pad"}.items():
        if (number := getattr(tokenizer, f"{role}_token_id")) is not None:
            fields[f"tokenizer.ggml.{name}_token_id"] = np.uint32(number)
    if tokenizer.chat_template:
        fields["tokenizer.chat_template"] = tokenizer.chat_template
    return fields


def gguf_tensors(
    model: PreTrainedModel, architecture: str
) -> dict[str, tuple[str, Shaped[np.ndarray, " rows"] | None]]:
    """Name a model's parameters as llama.cpp does.

    Args:
        model: a model whose names transformers knows, with ties of embedding and head; or for
            `deci` one of blocks.
        architecture: llama.cpp's name of it.

    Returns:
        Parameter → name of its tensor, and for each row of the parameter its row in the tensor;
        None if rows stay in order.

    Raises:
        ArgumentError: a name is not known, or a tensor is stored otherwise than its parameter.
    """
    library("gguf", WHY)
    if architecture == DECI and isinstance(model, HessblocksForCausalLM):
        return deci_tensors(model)
    kind = hf_names.TENSOR_PROCESSORS.get(architecture, hf_names.TensorProcessor)
    processor = kind(config=vars(model.config))
    tensors, missing, names = {}, [], {}
    with suppress(NotImplementedError), names_once():
        kind_in_file = "llama" if model.config.model_type == "mistral" else None
        weights = hf_names.get_gguf_hf_weights_map(model, processor, kind_in_file)
        names = {parameter: tensor for tensor, parameter in weights.items()}
    for name, parameter in model.named_parameters():
        if name not in names:
            missing.append(name)
            continue
        rows = np.arange(len(parameter))
        order = processor.process(rows.reshape(-1, *[1] * (parameter.ndim - 1)), names[name])
        flat = order.weights.reshape(-1)
        tensors[name] = names[name], None if np.array_equal(flat, rows) else flat
    if missing or kind not in (hf_names.TensorProcessor, hf_names.LlamaTensorProcessor):
        which = f" ({missing[0]})" if missing else ""
        raise ArgumentError(
            f"--to gguf: llama.cpp's tensors of {type(model).__name__} are not known here{which}"
        )
    return tensors


def write_gguf(
    path: Path, header: GgufHeader, tensors: Mapping[str, tuple[Shaped[Tensor, "..."], str]]
) -> None:
    """Write a GGUF file, whole or not at all.

    Args:
        path: file to write.
        header: architecture and fields.
        tensors: name → rows as they are stored, and name of llama.cpp's type.

    Raises:
        RunError: the file cannot be written.
    """
    gguf = library("gguf", WHY)
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, header.architecture)
        try:
            for key, value in header.fields.items():
                if key == "general.architecture":  # the writer has it from its own argument
                    continue
                if isinstance(value, list):
                    inner = _kind(gguf, value[0] if value else "")
                    writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, inner)
                else:
                    writer.add_key_value(key, value, _kind(gguf, value))
            for name, (rows, kind) in tensors.items():
                writer.add_tensor(name, rows.numpy(), raw_dtype=gguf.GGMLQuantizationType[kind])
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        try:  # a full disk is not told where the last bytes are flushed
            open_gguf(temporary)
        except ValueError as error:
            raise RunError(f"{path}: cannot be written (No space left on device)") from error


def read_gguf(
    path: Path, names: Mapping[str, tuple[str, Shaped[np.ndarray, " rows"] | None]]
) -> dict[str, Float[Tensor, "..."]]:
    """Read the tensors of a GGUF file in float32 by the package `gguf`.

    Args:
        path: file to read.
        names: result of `gguf_tensors`.

    Returns:
        Parameter → its values.
    """
    gguf, values = library("gguf", WHY), {}
    tensors = {tensor.name: tensor for tensor in open_gguf(path).tensors}
    for name, (tensor, order) in names.items():
        stored = tensors[tensor]
        rows = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type).copy())
        values[name] = rows if order is None else rows[torch.from_numpy(order)]
    return values


def _kind(gguf: Any, value: Any) -> Any:
    """Find the type of a field."""
    if isinstance(value, np.generic):
        return gguf.GGUFValueType[str(value.dtype).upper()]
    return gguf.GGUFValueType.get_type(value)


def stored_tensors(
    model: PreTrainedModel,
    names: Mapping[str, tuple[str, Shaped[np.ndarray, " rows"] | None]],
    packed: Mapping[str, tuple[Shaped[Tensor, "rows packed"], str]],
) -> dict[str, tuple[Shaped[Tensor, "..."], str]]:
    """Name and order the weights of a model as `write_gguf` takes them.

    Args:
        model: the model.
        names: result of `gguf_tensors`.
        packed: parameter → its packed rows and name of llama.cpp's type; other parameters are
            stored in float32.

    Returns:
        Name of the tensor → its rows as they are stored, and name of llama.cpp's type.
    """
    stored = {}
    for name, parameter in model.named_parameters():
        rows, kind = parameter.detach().float().cpu(), "F32"
        if name in packed:
            rows, kind = packed[name]
            rows = rows.view(*parameter.shape[:-1], -1)
        tensor, order = names[name]
        if order is not None:
            rows = rows[torch.from_numpy(order).argsort()]
        stored[tensor] = rows.contiguous(), kind
    return stored


def to_gguf(
    model: HessblocksForCausalLM, path: AnyPath, vocabulary: Any, *, kind: str = "f16"
) -> Path:
    """Write a model of Llama's blocks, in which layers may differ in size, for llama.cpp.

    Args:
        model: model from `from_pretrained_blocks` of a Llama, perhaps simplified.
        path: GGUF file to write.
        vocabulary: GGUF file whose tokeniser it gets, such as the original's, or a tokeniser of
            transformers.
        kind: type of the matrices, f16, f32 or q8_0; norms are stored in f32, and what does not
            fill blocks of 32 in f16.

    Returns:
        The path.

    Raises:
        ArgumentError: a layer is not one of Llama's, another number of tokens in `vocabulary`, an
            unknown type or way to split text, or a package (gguf, for q8_0 libgguf) is missing.
        RunError: `vocabulary` cannot be read, or the file cannot be written.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=9, context=8)
        >>> hb.to_gguf(model, "new.gguf", "original.gguf")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hessblocks.errors.ArgumentError: --to gguf: layer 0 is not one of Llama's: its ...
    """
    kind = choice_of("kind", kind, TYPES)
    deci_fields(model)  # refuse other layers before the file is read
    saved = isinstance(vocabulary, str | Path)
    header = header_of(str(vocabulary) if saved else "", model, None if saved else vocabulary)
    form = HALF if kind == "f16" else formats()["gguf:Q8_0"]
    packed = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and kind != "f32":
            fitting = form if form.fits(parameter.shape) else HALF
            rows = fitting.pack(as_rows(parameter), None)
            packed[name] = rows, fitting.name.removeprefix("gguf:")
    write_gguf(Path(path), header, stored_tensors(model, gguf_tensors(model, DECI), packed))
    return Path(path)
