"""Open a GGUF file, llama.cpp's format: hold its header against its size, account for all it says.

transformers skips keys and tensors of a GGUF file that it does not know. Here every tensor is taken
and every key of the architecture is what the configuration holds; otherwise the file is refused.
"""

import functools
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from hessblocks.errors import ArgumentError, HessblocksError, RunError
from hessblocks.escape import printable
from hessblocks.models.gguf_header import check_header

ENDING = ".gguf"
NO_MODELS = ("general", "tokenizer")
"""Prefixes of header fields that are not an architecture's name."""
EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
HEADS = ("num_kv_heads", "num_key_value_heads")
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("ffn_hidden_size", "n_inner", "intermediate_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": HEADS,
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": EPSILON,
    "attention.layer_norm_epsilon": EPSILON,
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "use_parallel_residual": ("use_parallel_residual",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("time_step_rank",),
    "ssm.inner_size": ("intermediate_size",),
}
"""Key after the architecture's name → names of the configuration's field, the first it has."""
WITHOUT_EFFECT = ("context_length", "pooling_type", "tensor_data_layout", "rope.scaling.finetuned")
"""Keys that no logit depends on, where the configuration has no field for them."""
FULL = 16
"""Bits from which on a weight is not called quantised."""
NEEDED = ("block_count", "embedding_length", "attention.head_count")
LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B model, whose attention is scaled by width / heads, as llama.cpp has it."""


def is_gguf(source: str) -> bool:
    """Tell whether a source has the file name of a GGUF file."""
    return source.lower().endswith(ENDING)


def open_gguf(path: str | Path) -> Any:
    """Read the header of a GGUF file, four times as fast as `gguf.GGUFReader`, which it is else."""
    import gguf

    class Reader(gguf.GGUFReader):
        data: Any

        def _get(self, *arguments: Any, **keywords: Any) -> Any:
            self.data = self.data.view(np.ndarray)  # slices of a memmap are slow
            return super()._get(*arguments, **keywords)

    return Reader(path)


def check_gguf(path: Path) -> Any:
    """Check that a GGUF file is undamaged, and that transformers supports its architecture.

    Args:
        path: path of the file.

    Returns:
        Its reader, for `reading`.

    Raises:
        ArgumentError: no such file, the package `gguf` is missing, an unknown architecture, or a
            part of a model.
        RunError: the file is damaged, or has tensors for fewer layers than its header says.

    Cost: reads the header; the weights are memory-mapped, not read.
    """
    if not path.is_file():
        raise ArgumentError(f"MODEL: {path} is not a file; give a GGUF file that exists.")
    if not importlib.util.find_spec("gguf"):
        raise ArgumentError("MODEL: a GGUF file needs the package gguf: pip install gguf")
    try:
        check_header(path)
        reader = open_gguf(path)
        kind = str(reader.fields["general.architecture"].contents())
    except Exception as error:  # a file from elsewhere may cause any kind of error
        raise RunError(
            f"MODEL: {path} is damaged or not a GGUF file ({_short(error)}); copy or download it "
            "again."
        ) from error
    supported = sorted({*GGUF_CONFIG_MAPPING} - {*NO_MODELS})
    if kind not in supported:
        raise ArgumentError(
            f"MODEL: {path} holds a model of the architecture {printable(kind)!r}, which "
            f"transformers does not read from GGUF; it reads {', '.join(supported)}."
        )
    values = _values(reader, path)
    if values.get("split.count", 1) != 1:
        raise ArgumentError(
            f"MODEL: {path} holds one of the {values['split.count']} parts of a model "
            "(split.count); join them with llama-gguf-split --merge, and give the whole file."
        )
    if values.get("general.type", "model") != "model":
        raise ArgumentError(
            f"MODEL: {path} holds {printable(str(values['general.type']))!r} (general.type), not "
            "a model; give the file of a whole model."
        )
    for key in NEEDED[: 2 if kind == "mamba" else 3]:
        size = values.get(f"{kind}.{key}")
        if isinstance(size, list):  # one for each layer
            raise _unread(path, f"{kind}.{key}", size)
        if not isinstance(size, int) or size < 1:
            raise RunError(
                f"MODEL: {path}: {kind}.{key}: expected a whole number from 1 on, got {size}; copy "
                "or download the file again."
            )
    layers = values[f"{kind}.block_count"]
    if layers > len(reader.tensors):
        raise RunError(
            f"MODEL: {path} names {layers:,} layers, more than its {len(reader.tensors):,} tensors "
            "allow; copy or download it again."
        )
    return reader


def _short(error: Exception) -> str:
    return printable((str(error) or type(error).__name__).split("\n")[0])[:120]


def _values(reader: Any, path: Path) -> dict[str, Any]:
    """Read the header's fields but for the tokeniser's, which are long."""
    names = [name for name in reader.fields if not name.startswith("tokenizer.")]
    try:
        return {name: reader.fields[name].contents() for name in names}
    except Exception as error:  # a file from elsewhere may cause any kind of error
        raise RunError(f"MODEL: {path}: a field of its header cannot be read.") from error


def _unread(path: Path, key: str, value: Any) -> ArgumentError:
    return ArgumentError(
        f"MODEL: {path} has {printable(key)} = {printable(repr(value))[:80]}, which cannot be "
        "read from GGUF; give the model in transformers' own format."
    )


def complete_config(path: Path, reader: Any, config: Any) -> None:
    """Write into a configuration what transformers does not read from the header.

    Args:
        path: path of the file, for errors.
        reader: its reader.
        config: transformers' configuration of the file; is modified.

    Raises:
        ArgumentError: a key of the architecture is unknown, or says what the configuration cannot.
    """
    values = _values(reader, path)
    kind = values["general.architecture"]
    fields = {k.removeprefix(f"{kind}."): v for k, v in values.items() if k.startswith(f"{kind}.")}
    heads = fields.get("attention.head_count", 0)
    fields.setdefault("attention.head_count_kv", heads)
    if kind == "falcon" and fields["attention.head_count_kv"] != 1:
        # llama.cpp stores grouped queries, keys and values in another order
        raise _unread(path, "falcon.attention.head_count_kv", fields["attention.head_count_kv"])
    if getattr(config, "sliding_window", None) is not None and kind != "gemma2":
        if kind.startswith("gemma") and "attention.sliding_window" not in fields:
            raise _unread(path, f"{kind}.attention.sliding_window", None)
        config.sliding_window = None
    try:
        _set_all(path, reader, config, kind, fields)
    except HessblocksError:
        raise
    except Exception as error:  # a value of another type may cause any kind of error
        raise ArgumentError(
            f"MODEL: {path}: a value of {kind}.* has the wrong type ({_short(error)}); copy or "
            "download the file again."
        ) from error


def _set_all(path: Path, reader: Any, config: Any, kind: str, fields: dict[str, Any]) -> None:
    """Write the values of an architecture's keys into a configuration."""
    rope = {k: fields.pop(k) for k in list(fields) if k.startswith("rope.")}
    for key, value in fields.items():
        if value != _set(config, key, value) and key not in WITHOUT_EFFECT:
            raise _unread(path, f"{kind}.{key}", value)
    epsilons = [value for key, value in fields.items() if key.endswith("_epsilon")]
    if len({*epsilons}) != 1:  # a file may name those of both norms, but a model has one
        raise _unread(path, f"{kind}.attention.layer_norm_epsilon", epsilons or None)
    if kind in LARGEST:
        width = config.hidden_size // fields["attention.head_count"]
        large = config.num_hidden_layers == LARGEST[kind]
        config.query_pre_attn_scalar = width if large else config.head_dim
    _set_positions(path, reader, config, {f"{kind}.{k}": v for k, v in rope.items()})


def _set(config: Any, key: str, value: Any) -> Any:
    """Set a field of a configuration to a key's value; return what the configuration says then."""
    if isinstance(value, float) and key.endswith("softcapping") and not value:
        value = None  # llama.cpp's way to say that there is none
    field = next((name for name in ATTRIBUTES.get(key, ()) if hasattr(config, name)), None)
    heads = getattr(config, "num_attention_heads", 0)
    if key == "attention.head_count_kv" and isinstance(value, list):  # Lfm2: 0 in convolutions
        return value if max(value) == config.num_key_value_heads else None
    if key == "attention.sliding_window" and getattr(config, "use_sliding_window", True) is False:
        return value if value >= config.max_position_embeddings else None
    if isinstance(value, list | str) or (field is None and key in ATTRIBUTES and not value):
        return None if value else value
    if field is not None:
        old = getattr(config, field)
        if old != value and (value or not isinstance(value, int)):
            try:
                setattr(config, field, value)
            except AttributeError:  # a property that other fields decide
                return old
        return value if value is not None else 0.0
    per_head = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    computed = {
        "feed_forward_length": 4 * config.hidden_size,
        "attention.head_count_kv": heads,
        "attention.key_length": per_head,
        "attention.value_length": per_head,
        "attention.causal": True,
        "ssm.dt_b_c_rms": False,
    }
    return computed.get(key)


def _set_positions(path: Path, reader: Any, config: Any, rope: dict[str, Any]) -> None:
    """Write rotary positions into a configuration: base, share of a head, scaling."""
    parts = {key.split(".rope.", 1)[1]: value for key, value in rope.items()}
    kind = str(reader.fields["general.architecture"].contents())
    tensors = {t.name: t for t in reader.tensors if t.name == "rope_freqs.weight"}
    positions = dict(getattr(config, "rope_parameters", None) or {})
    if not positions:
        if rope:
            raise _unread(path, *next(iter(rope.items())))
        return
    full = dict(positions.get("full_attention", positions))
    per_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = parts.pop("dimension_count", per_head)
    if "partial_rotary_factor" in full:
        full["partial_rotary_factor"] = turned / per_head
    elif turned != per_head:
        raise _unread(path, f"{kind}.rope.dimension_count", turned)
    if "freq_base" not in parts and full["rope_theta"] != 1e4:  # llama.cpp's default
        raise _unread(path, f"{kind}.rope.freq_base", None)
    full["rope_theta"] = float(parts.pop("freq_base", 1e4))
    if "freq_base_swa" in parts and "sliding_attention" in positions:
        base = float(parts.pop("freq_base_swa"))
        positions["sliding_attention"] = {**positions["sliding_attention"], "rope_theta": base}
    full |= _scaling(parts)
    if min(full["rope_theta"], full.get("factor", 1.0)) <= 0:
        raise _unread(path, f"{kind}.rope", rope)
    if tensors and full["rope_type"] == "default":
        factors = torch.from_numpy(tensors["rope_freqs.weight"].data.copy()).double()
        full |= _llama3(path, factors, full["rope_theta"], turned)
        tensors.clear()
    if left := [key for key in parts if key != "scaling.finetuned"]:
        raise _unread(path, f"{kind}.rope.{left[0]}", parts[left[0]])
    if tensors:
        raise _unread(path, "rope_freqs.weight", "factors besides rope.scaling")
    nested = "full_attention" in positions
    config.rope_parameters = {**positions, "full_attention": full} if nested else full


def _scaling(parts: dict[str, Any]) -> dict[str, Any]:
    """Translate `rope.scaling.*`; the keys that are read are removed from `parts`."""
    scaling = parts.pop("scaling.type", None)
    factor = parts.pop("scaling.factor", parts.pop("scale_linear", 1.0))
    length = parts.pop("scaling.original_context_length", None)
    if scaling == "yarn":
        yarn = {"rope_type": "yarn", "factor": float(factor)}
        if length is None:
            parts["scaling.original_context_length"] = None  # is needed: the caller refuses
        for name in ("beta_fast", "beta_slow"):
            if (key := f"scaling.yarn_{name}") in parts:
                yarn[name] = float(parts.pop(key))
        return {**yarn, "original_max_position_embeddings": length}
    if scaling not in (None, "none", "linear"):
        parts["scaling.type"] = scaling
    if factor in (0.0, 1.0) or scaling == "none":
        return {"rope_type": "default"}
    return {"rope_type": "linear", "factor": float(factor)}


def _llama3(path: Path, factors: torch.Tensor, base: float, turned: int) -> dict[str, Any]:
    """Find the parameters of Llama 3's scaling that give the factors of `rope_freqs.weight`."""
    if bool((factors == 1).all()):
        return {"rope_type": "default"}
    frequency = base ** -(torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    scale = round(float(factors.max()), 4)
    for length in (2**power for power in range(4, 24)):
        smooth = ((length * frequency / (2 * math.pi) - 1) / 3).clamp(0, 1)
        expected = 1 / ((1 - smooth) / scale + smooth)
        if factors.shape == expected.shape and torch.allclose(factors, expected, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": scale,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": length,
            }
    raise _unread(path, "rope_freqs.weight", [round(float(f), 3) for f in factors])


def stored_types(path: Path, reader: Any, config: Any, auto: Any) -> dict[str, str]:
    """Find the parameter that each tensor of a GGUF file becomes, before any is read.

    Args:
        path: path of the file, for errors.
        reader: its reader.
        config: the model's configuration.
        auto: Auto class that makes the model.

    Returns:
        Parameter name → type in the file, such as Q4_1.

    Raises:
        ArgumentError: a parameter has no tensor.
        RunError: a tensor is not used, is of integers, or has another number of entries.
    """
    from gguf import GGMLQuantizationType
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    kind = str(reader.fields["general.architecture"].contents())
    with torch.device("meta"):
        model = auto.from_config(config)
    names = get_gguf_hf_weights_map(model, TENSOR_PROCESSORS.get(kind, TensorProcessor)())
    state, tensors = model.state_dict(), {t.name: t for t in reader.tensors}
    tensors.pop("rope_freqs.weight", None)  # `complete_config` has read it
    types = {}
    for name, tensor in tensors.items():
        parameter, type_ = names.get(name), GGMLQuantizationType(tensor.tensor_type).name
        shown = printable(name)
        if parameter not in state:
            raise RunError(
                f"MODEL: {path} holds {shown}, for which the model in transformers has no place; "
                "give the model in transformers' own format."
            )
        if type_[0] == "I" and type_[1:].isdigit():
            raise RunError(f"MODEL: {path}: {shown} holds integers ({type_}), expected floats.")
        if tensor.n_elements != state[parameter].numel():
            raise RunError(
                f"MODEL: {path}: {shown} has {tensor.n_elements:,} entries, expected "
                f"{state[parameter].numel():,} by the sizes in the header."
            )
        types[parameter] = type_
    if missing := [name for name, _ in model.named_parameters() if name not in types]:
        raise ArgumentError(
            f"MODEL: {path} has no weights for {', '.join(missing[:3])}; copy or download it again."
        )
    tied, table = tensors.get("output.weight"), tensors.get("token_embd.weight")
    if config.tie_word_embeddings and tied and table and bool((tied.data != table.data).any()):
        raise RunError(
            f"MODEL: {path} holds output.weight, but {kind} shares it with token_embd.weight."
        )
    return {n: t for n, t in types.items() if state[n].ndim > 1}


def stored_words(config: Any) -> str:
    """Say in how many bits the matrices of a model were stored; empty if all had 16 or more.

    Args:
        config: configuration of a model of `hb.load`, or of blocks made from one.

    Returns:
        Words such as `210 of 211 matrices were stored in 4 bits (Q4_1)`.
    """
    types = _types(config)
    counts = Counter(type_ for type_ in types if _bits(type_) < FULL)
    shown = [
        f"{count} of {len(types)} matrices were stored in {_bits(type_)} bits ({type_})"
        for type_, count in counts.most_common()
    ]
    return ", ".join(
        [*shown[:1], *(words.replace(" matrices were stored", "") for words in shown[1:])]
    )


def stored_within(config: Any, bits: int) -> int:
    """Count the matrices of a model that were stored in at most `bits` bits an entry."""
    return sum(_bits(type_) <= bits < FULL for type_ in _types(config))


def _types(config: Any) -> list[str]:
    family = getattr(config, "family", None)
    family = family if isinstance(family, dict) else {}
    types = getattr(config, "stored_types", None) or family.get("stored_types")
    return [str(type_) for type_ in types.values()] if isinstance(types, dict) else []


def _bits(type_: str) -> int:
    """Read the bits of a GGUF type from its name, such as IQ4_XS; scales are not counted."""
    return int(digits[0]) if (digits := re.search(r"\d+", type_)) else FULL


def names_once() -> AbstractContextManager[Any]:
    """Let transformers make its table of tensor names once, not once a module."""
    import gguf

    return patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))


@contextmanager
def reading(reader: Any) -> Iterator[None]:
    """Let transformers use a reader again: it would read the header at each step."""
    if reader is None:
        yield
        return
    import gguf

    with patch.object(gguf, "GGUFReader", lambda *_: reader), names_once():
        yield
