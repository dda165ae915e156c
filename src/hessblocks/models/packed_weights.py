"""Make floats of the weights of a quantised folder: of compressed-tensors, torchao and MXFP4."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hessblocks.errors import RunError

MXFP4 = "blocks", "scales"
"""Ends of the names of the two tensors of a weight: 16 bytes for 32 entries, and their exponent."""


def with_floats(source: str, model: PreTrainedModel, quantizer: Any) -> dict[str, str]:
    """Give a quantised model plain modules, whose weights are the rounded ones in float32.

    Args:
        source: name of the model, for errors.
        model: the model as transformers loads it; changed in place.
        quantizer: its `hf_quantizer`.

    Returns:
        Name of each packed weight → its type, such as int4.

    Raises:
        RunError: weights are packed otherwise, or activations are rounded too.
    """
    method = getattr(quantizer.quantization_config, "quant_method", None)
    method = str(getattr(method, "value", method))
    makers = {"compressed-tensors": _decompress, "torchao": _unwrap}
    types = makers[method](model, quantizer) if method in makers else None
    if types is None:
        raise RunError(
            f"MODEL: {source} is quantised by {method} so that no floats can be made of its "
            "weights, or it rounds activations as it runs; give the model before that."
        )
    nn.Module.float(model.requires_grad_())  # transformers' own refuses
    return types


def mxfp4_types(names: Iterable[str]) -> dict[str, str]:
    """Find the weights that tensors of a folder hold in MXFP4, such as experts of GPT-OSS.

    Args:
        names: names of the tensors.

    Returns:
        Name of each such weight → its type.
    """
    there, end = {*names}, f"_{MXFP4[0]}"
    whole = [name.removesuffix(end) for name in there if name.endswith(end)]
    return {name: "MXFP4" for name in whole if f"{name}_{MXFP4[1]}" in there}


def _decompress(model: nn.Module, quantizer: Any) -> dict[str, str] | None:
    from compressed_tensors.compressors import decompress_module

    compressor, types = quantizer.compressor, {}
    settings = compressor.quantization_config
    if settings.kv_cache_scheme or settings.quantization_status.value != "compressed":
        return None
    compressor.remove_decompression_hook(model)
    for name, module in model.named_modules():
        if scheme := getattr(module, "quantization_scheme", None):
            if scheme.input_activations or scheme.output_activations:
                return None
            # all modules at once would be offloaded, by a container of its own
            form = compressor.force_compression_format
            decompress_module(module, form, leave_decompressed=False)
            if scheme.weights:
                types[f"{name}.weight"] = f"{scheme.weights.type}{scheme.weights.num_bits}"
    return types


def _unwrap(model: nn.Module, _: Any) -> dict[str, str] | None:
    types = {}
    for place, weight in [*model.named_parameters()]:
        if type(weight) is not nn.Parameter:
            kind = str(getattr(weight, "target_dtype", "")).removeprefix("torch.")
            if not kind.startswith("int") or getattr(weight, "activation_quantization", None):
                return None
            module, _, name = place.rpartition(".")
            setattr(model.get_submodule(module), name, nn.Parameter(weight.dequantize()))
            types[place] = kind
    return types
