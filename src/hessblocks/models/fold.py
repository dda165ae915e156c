"""Fold a trained model into an equivalent one with fewer matrices and gains.

Reparametrised weights αW_init + βΔW become one matrix. The gain of a branch is multiplied into a
matrix of the branch. The result is an ordinary model of the library, with its own configuration.

Letters follow torch: a weight is stored (outputs, inputs) and applied as x @ weight.T.
"""

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Shaped
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

from hessblocks import blocks
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models.modeling import HessblocksModel

State = dict[str, Shaped[Tensor, "..."]]

PLAIN = blocks.Dense()


def merged_block(block: blocks.BlockConfig) -> blocks.BlockConfig:
    """Return the block's configuration after merging.

    Returns:
        A block without reparametrised weights and branch gains.

    Raises:
        ArgumentError: nothing can be merged; the message says why.
    """
    if block.heads > 1:
        raise ArgumentError(
            f"merge: {block.heads} heads: each head's product of two matrices would be larger than "
            "the two; only blocks with one head have neighbouring matrices to merge"
        )
    attention = block.attention
    if _values_touch(block):
        attention = attention.replace(first_value=None, projection=blocks.Identity())
    if _scores_touch(block):
        attention = attention.replace(query_key="one-matrix")
    if attention == block.attention:
        raise ArgumentError(
            "merge: no two matrices are neighbours; identities, biases, gates, query-key norms and "
            "rotary positions stand between"
        )
    return block.replace(attention=attention)


def merge_layer(
    state: State, prefix: str, wide: blocks.BlockConfig, merged: blocks.BlockConfig
) -> None:
    """Multiply one layer's matrices in a state dictionary.

    Args:
        state: state dictionary, changed in place.
        prefix: prefix of the layer's names, with the final dot.
        wide: configuration before merging.
        merged: configuration after merging.
    """
    attention = prefix + "attention."
    if merged.attention.projection != wide.attention.projection:
        projection = state.pop(attention + "projection.weight")
        state[attention + "value.weight"] = projection @ state[attention + "value.weight"]
    if merged.attention.query_key != wide.attention.query_key:
        key, query = state.pop(attention + "key.weight"), state[attention + "query.weight"]
        state[attention + "query.weight"] = wide.resolved_head_width**-0.5 * key.T @ query


def _values_touch(block: blocks.BlockConfig) -> bool:
    attention = block.attention
    values = (attention.value, attention.first_value or attention.value, attention.projection)
    apart = attention.gate is not None or attention.value_residual is not None
    return not apart and all(weight == PLAIN for weight in values)


def _scores_touch(block: blocks.BlockConfig) -> bool:
    attention = block.attention
    norms = (attention.query_key_norm, attention.resolved_query_norm)
    return (
        attention.query_key == "two-matrix"
        and attention.query == attention.key == PLAIN
        and all(isinstance(norm, blocks.NoNorm) for norm in norms)
        and not isinstance(block.position, blocks.RotaryPosition)
    )


MATRICES = (blocks.Dense, blocks.Reparametrised)
"""Weights that are one matrix, or can be folded into one."""


def fold(
    model: PreTrainedModel, *, merge: bool = False, tolerance: float = 1e-6
) -> PreTrainedModel:
    """Fold reparametrised weights and branch gains into matrices, without changing the function.

    A branch gain is multiplied into the output matrix of its sub-block or, without such a matrix,
    into the gains of shaped attention. It is kept if there are neither, or if a norm follows. The
    given model is not changed.

    Args:
        model: any model of `hessblocks.build`.
        merge: whether to multiply also W_V W_P and W_Q W_Kᵀ, if that is exact and saves parameters:
            in blocks with one head.
        tolerance: largest difference of the logits, relative to the largest logit.

    Returns:
        A model of the same class, on the same device and in the same precision.

    Raises:
        ArgumentError: not a model of this library, additional weights (parametrisations of torch,
            adapters), or nothing to merge although `merge` is set.
        RunError: the logits differ by more than `tolerance`, as in half precision.

    Cost: copies of both models in float64, and a forward pass of each over 32 tokens.
    """
    if not isinstance(getattr(model, "model", None), HessblocksModel):
        raise ArgumentError(
            f"model: expected a model that hessblocks.build makes, got {type(model).__name__}"
        )
    state: State = dict(model.state_dict())
    _check_own(model, state)
    folded_blocks = []
    for at, (layer, block) in enumerate(zip(model.model.layers, model.config.blocks, strict=True)):
        _fold_layer(state, f"model.layers.{at}.", layer, block)
        wide = _folded_block(block)
        folded_blocks.append(merged_block(wide) if merge else wide)
        if merge:
            merge_layer(state, f"model.layers.{at}.", wide, folded_blocks[-1])
    folded = _with_blocks(model, folded_blocks[: len(model.config.pattern)], state)
    _check_same(model, folded, tolerance)
    return folded


def _check_own(model: PreTrainedModel, state: State) -> None:
    """Check that the model has only tensors of our models, none of a parametrisation."""
    with torch.device("meta"):
        expected = type(model)(model.config).state_dict()
    if foreign := sorted(state.keys() ^ expected.keys()):
        raise ArgumentError(
            f"model: its weights are not those of its configuration ({foreign[0]} is the first of "
            f"{len(foreign)} names that differ); take off what was added (parametrisations by "
            "torch.nn.utils.parametrize.remove_parametrizations), merge adapters, and fold then"
        )


def _folded_block(block: blocks.BlockConfig) -> blocks.BlockConfig:
    attention, mlp = block.attention, block.mlp
    names = ("query", "key", "value", "first_value", "projection", "gate")
    plain = {"gain": 1.0, "trainable": False, "over_sqrt_depth": False}
    return block.replace(
        attention=attention.replace(**{name: _dense(getattr(attention, name)) for name in names}),
        mlp=mlp.replace(input=_dense(mlp.input), output=_dense(mlp.output)),
        **{branch: getattr(block, branch).replace(**plain) for branch in _gain_targets(block)},
    )


def _gain_targets(block: blocks.BlockConfig) -> dict[str, tuple[str, ...]]:
    """Find the tensors that absorb each branch's gain; none before a norm or for a user's part."""
    absorbing: dict[str, tuple[str, ...]] = {}
    projection = block.attention.projection
    if isinstance(projection, MATRICES):
        absorbing["attention_branch"] = ("attention.projection.weight", "attention.projection.bias")
    elif isinstance(projection, blocks.Identity) and block.attention.shaping is not None:
        gains = ("alpha", "beta", "gamma")
        absorbing["attention_branch"] = tuple(f"attention.gains.{name}" for name in gains)
    if isinstance(block.mlp.output, MATRICES):
        absorbing["mlp_branch"] = ("mlp.output.weight", "mlp.output.bias")
    return {
        name: targets
        for name, targets in absorbing.items()
        if isinstance(getattr(block, name).norm, blocks.NoNorm)
    }


def _dense(weight: blocks.Weight | None) -> blocks.Weight | None:
    """Return the configuration of a weight as one plain matrix; a user's weight is unchanged."""
    if not isinstance(weight, MATRICES):
        return weight
    return blocks.Dense(bias=getattr(weight, "bias", False))


def _fold_layer(state: State, prefix: str, layer: Any, block: blocks.BlockConfig) -> None:
    for name, module in layer.named_modules():
        if isinstance(module, blocks.ReparametrisedLinear):
            for key in module.state_dict():
                del state[f"{prefix}{name}.{key}"]
            state[f"{prefix}{name}.weight"] = module.effective_weight().detach()
    for branch, targets in _gain_targets(block).items():
        gain = getattr(layer, branch).gain
        for target in (prefix + target for target in targets):
            if target in state:  # there may be no bias
                state[target] = (gain * state[target]).detach()
        state.pop(f"{prefix}{branch}.gain", None)


def _with_blocks(
    model: PreTrainedModel, pattern_blocks: Sequence[blocks.BlockConfig], state: State
) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    pattern = [block.to_dict() for block in pattern_blocks]
    config.block = pattern if pattern[1:] else pattern[0]
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        folded: Any = type(model)(config)
    folded.to(device=model.device, dtype=model.dtype)
    folded.load_state_dict(state)
    if isinstance(model, GenerationMixin):
        folded.generation_config = copy.deepcopy(model.generation_config)
    folded.train(model.training)
    return cast(PreTrainedModel, folded)


@torch.no_grad()
def _check_same(model: PreTrainedModel, folded: PreTrainedModel, tolerance: float) -> None:
    tokens = torch.arange(min(32, model.config.context))[None] % model.config.vocab_size
    expected, logits = (_double(m)(input_ids=tokens.to(m.device)).logits for m in (model, folded))
    difference = float((logits - expected).abs().max() / expected.abs().max())
    if not difference <= tolerance:
        raise RunError(
            f"model: folding would change the logits by {difference:.1e} of the largest, more than "
            f"tolerance={tolerance:.0e}; fold before the weights are rounded to {model.dtype}, or "
            "allow more"
        )


def _double(model: PreTrainedModel) -> Any:
    """Copy the model in float64, with an attention kernel that supports it."""
    double: Any = copy.deepcopy(model).double().eval()
    double.set_attn_implementation("sdpa")
    return double
