"""Compare every block of the last layer's Hessian with dense autodiff, for each architecture.

This shares no code with the closed form or with the products. The logits of the labelled rows are a
function of one vector of parameters, differentiated forward-over-reverse in float64.

Letters: P parameters (of a group), C classes, R labelled rows.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations_with_replacement, product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.pytorch_utils import Conv1D

from hessblocks.conventions import IGNORED, PARTS, Part
from hessblocks.curvature.exact import UNEMBEDDING, exact_last_block
from hessblocks.curvature.last_layer import ROLES, output_layer
from hessblocks.theory.piecewise import GAINS, NORMS
from tests.curvature.architectures import batch_of, without_casts
from tests.curvature.cases import stir
from tests.theory.autodiff import Check

Numbers = Mapping[int, Int[Tensor, "..."]]
"""For the `id` of each parameter, the indices of its entries in the vector of all parameters."""
BOUND = 1e-12
"""Largest accepted relative error of a block."""
SMALL = 1e-9
"""Share of the norm of the whole matrix below which autodiff's own rounding shows: then the error
is over it."""


def check_last_block(name: str, make: Callable[[], nn.Module]) -> list[Check]:
    """Compare `exact_last_block` with dense autodiff on a tiny random model, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = stir(make())
        batch, loss = batch_of(model)
    with without_casts(model):
        return compare(name, model, batch, loss)


def compare(name: str, model: nn.Module, batch: Mapping[str, Any], loss: str) -> list[Check]:
    """Compare all blocks of one model.

    Args:
        name: name of the case.
        model: model in float64, with a closed form.
        batch: batch with labels.
        loss: causal-lm, masked-lm or classification.

    Returns:
        One row for each part and each block on or above the diagonal, without a tied unembedding.
    """
    with warnings.catch_warnings():  # a DyT or Derf in front of the attention
        warnings.filterwarnings("ignore", "exact_last_block: .* in front of the attention")
        found = exact_last_block(model, batch, loss)
    groups = [group for group in found.groups if not (group == UNEMBEDDING and found.tied)]
    parameters = list(model.parameters())
    total = sum(p.numel() for p in parameters)
    pieces = torch.arange(total).split([p.numel() for p in parameters])
    numbers = {id(p): own.view_as(p) for p, own in zip(parameters, pieces, strict=True)}
    where = {group: places(model, group, numbers) for group in groups}
    used = torch.zeros(total, dtype=torch.bool)
    used[torch.cat(list(where.values()))] = True
    dense = dense_hessian(model, batch, loss, used)
    at = used.cumsum(0) - 1
    where = {group: at[rows] for group, rows in where.items()}
    whole = float(dense["full"].norm())
    checks = []
    for (row, column), part in product(combinations_with_replacement(groups, 2), PARTS):
        expected = dense[part][where[row]][:, where[column]]
        scale = max(float(expected.norm()), SMALL * whole)
        error = float((found.block(row, column, part).dense() - expected).norm()) / scale
        block = f"{row}, {column}"
        checks.append(Check(case=name, block=block, part=part, error=error, bound=BOUND))
    return checks


def dense_hessian(
    model: nn.Module, batch: Mapping[str, Any], loss: str, used: Bool[Tensor, " entries"]
) -> dict[Part, Float[Tensor, "P P"]]:
    """Compute dense H, H_o and H_f of the mean cross-entropy by some of the model's entries.

    Args:
        model: model that returns logits.
        batch: inputs and labels.
        loss: causal-lm (unshifted labels: position t − 1 predicts label t), masked-lm or
            classification.
        used: mask over the entries of all parameters, in their order: True to differentiate by it.

    Returns:
        Matrices by part.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    everything = torch.cat([p.flatten() for p in parameters.values()])
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if loss != "classification":
        inputs["use_cache"] = False  # as in training; with a cache, packed sequences are mixed
    targets, valid = _targets(batch["labels"], loss)
    index = used.nonzero()[:, 0]

    def logits(theta: Tensor) -> Any:
        flat = everything.index_put((index,), theta)
        pieces = flat.split([p.numel() for p in parameters.values()])
        pairs = zip(parameters.items(), pieces, strict=True)
        values = {name: piece.view_as(p) for (name, p), piece in pairs}
        output: Any = functional_call(model, values, (), inputs)
        return output.logits[valid]

    def along(theta: Tensor) -> Any:
        return (residual * logits(theta)).sum()

    def whole(theta: Tensor) -> Any:
        return mean_loss(logits(theta))

    mean_loss = partial(nn.functional.cross_entropy, target=targets)
    with sdpa_kernel(SDPBackend.MATH):
        point = everything[index]
        at = logits(point)
        residual = grad(mean_loss)(at)
        jacobian = jacfwd(logits)(point).flatten(0, 1)
        curvature = jacfwd(grad(mean_loss))(at).reshape(at.numel(), at.numel())
        return {
            "outer": jacobian.T @ curvature @ jacobian,
            "functional": jacfwd(grad(along))(point),
            "full": jacfwd(grad(whole))(point),
        }


def _targets(labels: Int[Tensor, "..."], loss: str) -> tuple[Tensor, Any]:
    """Return the valid labels (R,), and the positions of their logits."""
    if loss == "classification":
        return labels, slice(None)
    if loss == "causal-lm":
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    valid = labels != IGNORED
    return labels[valid], valid


def places(model: nn.Module, group: str, numbers: Numbers) -> Int[Tensor, " P"]:
    """Return the indices of a group's entries, in the closed form's flattened order.

    Args:
        model: model with a closed form.
        group: a name in `LastBlockHessian.groups`.
        numbers: indices of all parameters' entries.

    Returns:
        One index per entry.
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
    """Return the indices of a layer's weight, (inputs, outputs), with a bias as the last row."""
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


_READ = {"bert": "query", "roberta": "query", "gpt2": "c_attn", "gpt_neox": "query_key_value"}
_READ |= {"modernbert": "Wqkv"}
_WRITTEN = {"gpt2": "c_proj", "phi": "dense", "gpt_neox": "dense", "opt": "out_proj"}
_WRITTEN |= {"bert": "output.dense", "roberta": "output.dense", "modernbert": "Wo"}


def _of_family(model: Any, group: str, numbers: Numbers) -> Tensor:
    """Find the weights by their names, independently of the table of architectures."""
    config, kind = model.config, model.config.model_type
    read = _READ.get(kind, "q_proj")
    stem = next(name for name, _ in reversed(list(model.named_modules())) if name.endswith(read))
    stem = stem.removesuffix(f".{read}")
    attention = model.get_submodule(stem)
    if group == "projection":
        written = f"{stem.removesuffix('.self')}.{_WRITTEN.get(kind, 'o_proj')}"
        return _of_layer(model.get_submodule(written), numbers).reshape(-1)
    if group in NORMS:
        ending = "layernorm" if kind == "phi" else "norm"
        return _of_module(getattr(attention, f"{group[0]}_{ending}"), numbers)
    role, heads = ROLES.index(group), int(config.num_attention_heads)
    if read in ("q_proj", "query"):
        shared = getattr(config, "num_key_value_heads", None) or heads
        own = read.replace("query", group).replace("q_", f"{group[0]}_")
        matrix = _of_layer(attention.get_submodule(own), numbers)
        return _by_head(matrix, heads if group == "query" else shared)
    matrix = _of_layer(attention.get_submodule(read), numbers)
    interleaved = kind == "gpt_neox"
    apart = matrix.unflatten(1, (heads, 3, -1) if interleaved else (3, heads, -1))
    of_role: Tensor = apart.select(2 if interleaved else 1, role)
    return of_role.transpose(0, 1).reshape(-1)
