"""A digest of what a model computes besides its weights: configuration, modules, hooks, lasting tensors."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hessblocks.models import bytes_of

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_WITHOUT_EFFECT = frozenset(
    [
        "_name_or_path",
        "name_or_path",
        "architectures",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "warnings_issued",
        "use_cache",
        "gradient_checkpointing",
        "_gradient_checkpointing_func",
        "generation_config",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_is_hf_initialized",
        "output_attentions",
        "output_hidden_states",
        "_output_attentions",
        "return_dict",
        "_output_capturing_hooks_installed",
        "_require_grads_hook",
        "_require_grads_hooks",
        "loss_type",
        "kernel_config",
        "_ep_plan",
        "_fsdp_plan",
        "_pp_plan",
        "_tp_plan",
        "_keep_in_fp32_modules",
        "_keep_in_fp32_modules_strict",
        "_keys_to_ignore_on_load_missing",
        "_keys_to_ignore_on_load_unexpected",
        "_keys_to_ignore_on_save",
        "_no_split_modules",
        "_skip_keys_device_placement",
        "all_tied_weights_keys",
    ]
)
"""What configurations and modules say besides the numbers that they give."""
_OTHERS = "transformers."
"""Where hooks are defined that record outputs or ask for gradients."""


def digest_of(model: nn.Module) -> str:
    """SHA-256 of what the weights do not show, the same in every process.

    Args:
        model: with any modules; a configuration with `to_dict` counts too.

    Returns:
        That of its configuration, and of each module's class, plain attributes, forward hooks and buffers
        that are not saved. Names, versions, caches and the mode of training are left out.

    Cost:
        A look at each module, and SHA-256 of the buffers that are not saved.
    """
    config = getattr(model, "config", None)
    said = [_said(config, ())]
    said += [f"{name}:{_module(module, config)}" for name, module in model.named_modules()]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _module(module: nn.Module, config: Any) -> str:
    own = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    if own.get("config") is config:
        own.pop("config", None)
    hooks = [
        _named(hook)
        for known in (module._forward_pre_hooks, module._forward_hooks)
        for hook in known.values()
        if not getattr(hook, "__module__", "").startswith(_OTHERS)
    ]
    lasting = {name: module._buffers.get(name) for name in module._non_persistent_buffers_set}
    return f"{_named(type(module))}{_said(own, ())}{hooks}{_said(lasting, ())}"


def _said(value: Any, inside: tuple[int, ...]) -> str:
    """A value in words without addresses; `inside` are the containers around it."""
    if isinstance(value, str | bytes | numbers.Number | torch.dtype | None):
        return repr(value)
    if isinstance(value, Tensor):
        contents = "" if value.is_meta else hashlib.sha256(bytes_of(value)).hexdigest()
        return f"{value.dtype}{tuple(value.shape)}{contents}"
    if id(value) in inside:
        return "..."
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return _pairs(value.items(), inside)
    if isinstance(value, set | frozenset):
        return f"{{{','.join(sorted(_said(one, inside) for one in value))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_said(one, inside) for one in value)}]"
    if isinstance(value, partial):
        return _said([value.func, value.args, value.keywords], inside)
    if callable(to_dict := getattr(value, "to_dict", None)) and not isinstance(value, type):
        return _named(type(value)) + _said(_without_labels(value, to_dict()), inside)
    if is_dataclass(value) and not isinstance(value, type):
        own = ((field.name, getattr(value, field.name, None)) for field in fields(value))
        return _named(type(value)) + _pairs(own, inside)
    return _named(value)


def _pairs(items: Iterable[tuple[Any, Any]], inside: tuple[int, ...]) -> str:
    said = (
        f"{_said(name, inside)}:{_said(value, inside)}"
        for name, value in items
        if name not in _WITHOUT_EFFECT
    )
    return f"{{{','.join(sorted(said))}}}"


def _without_labels(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Our own configuration without the name of its preset, which stands beside its block."""
    ours = getattr(config, "model_type", None) == "hessblocks"
    return {name: value for name, value in values.items() if not (ours and name == "preset")}


def _named(value: Any) -> str:
    """The qualified name of a class or callable; that of its class for anything else."""
    found = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(found, '__module__', '')}.{found.__qualname__}"
