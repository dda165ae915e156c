"""Index the entries of a closed form's groups among a model's parameters.

Letters: P parameters of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hessblocks.curvature.exact import UNEMBEDDING
from hessblocks.curvature.last_layer import FAMILIES, ROLES, output_layer
from hessblocks.theory import GAINS, NORMS

Numbers = Mapping[int, Int[Tensor, "..."]]
"""id of a parameter → the number of each of its entries."""


def places(model: nn.Module, group: str, numbers: Numbers) -> Int[Tensor, " P"]:
    """Number a group's entries, in the order in which the closed form flattens them.

    Args:
        model: of a kind with a closed form.
        group: a name in `LastBlockHessian.groups`.
        numbers: of all parameters.

    Returns:
        One number an entry.
    """
    kind = getattr(model, "config").model_type  # noqa: B009 - nn.Module hides its type
    if group == UNEMBEDDING:
        return _of_layer(output_layer(model), numbers).reshape(-1)
    if group in (*ROLES, "query_key", *NORMS, *GAINS):
        of_kind = _of_hessblocks if kind == "hessblocks" else _of_family
        return of_kind(model, group, numbers)
    modules = dict(model.named_modules())
    if group in modules:
        return _of_layer(modules[group], numbers).reshape(-1)
    return numbers[id(model.get_parameter(group))].reshape(-1)


def _of_layer(module: Any, numbers: Numbers) -> Tensor:
    """(inputs, outputs), a bias as the last row."""
    weight = getattr(module, "update", None)
    found: Tensor = numbers[id(module.weight if weight is None else weight)]
    found = found if isinstance(module, Conv1D) else found.T
    if getattr(module, "bias", None) is not None:
        found = torch.cat([found, numbers[id(module.bias)][None]])
    return found


def _of_module(module: nn.Module, numbers: Numbers) -> Tensor:
    return torch.cat([numbers[id(p)].reshape(-1) for p in module.parameters() if p.requires_grad])


def _by_head(matrix: Tensor, heads: int) -> Tensor:
    apart: Tensor = matrix.unflatten(1, (heads, -1))
    return apart.transpose(0, 1).reshape(-1)


def _of_hessblocks(model: Any, group: str, numbers: Numbers) -> Tensor:
    attention = model.model.layers[-1].attention
    if group in GAINS:
        return numbers[id(getattr(attention.gains, group))].reshape(-1)
    if group in NORMS:
        return _of_module(getattr(attention, group), numbers)
    matrix = _of_layer(getattr(attention, group.replace("query_key", "query")), numbers)
    if group == "projection":
        return matrix.reshape(-1)
    return _by_head(
        matrix, attention.key_value_heads if group in ("key", "value") else attention.heads
    )


def _of_family(model: Any, group: str, numbers: Numbers) -> Tensor:
    config = model.config
    family = FAMILIES[config.model_type]
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    if group == "projection":
        return _of_layer(family.written(layer), numbers).reshape(-1)
    if group in NORMS:
        return _of_module(getattr(attention, family.norms[group == "key_norm"]), numbers)
    role, heads = ROLES.index(group), int(config.num_attention_heads)
    if len(family.read) == 3:
        shared = getattr(config, "num_key_value_heads", None) or heads
        matrix = _of_layer(attention.get_submodule(family.read[role]), numbers)
        return _by_head(matrix, heads if group == "query" else shared)
    matrix = _of_layer(attention.get_submodule(family.read[0]), numbers)
    apart = matrix.unflatten(1, (heads, 3, -1) if family.interleaved else (3, heads, -1))
    own: Tensor = apart.select(2 if family.interleaved else 1, role)
    return own.transpose(0, 1).reshape(-1)
