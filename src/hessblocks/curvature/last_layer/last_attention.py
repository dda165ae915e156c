"""Extract the last attention of a known model; those of hessblocks have a file of their own."""

from functools import partial
from typing import Any

import torch
from torch import nn

from hessblocks.curvature.last_layer.families import FAMILIES, output_layer
from hessblocks.curvature.last_layer.forward_pass import Seen, forward_pass, logits
from hessblocks.curvature.last_layer.from_hessblocks import from_hessblocks
from hessblocks.curvature.last_layer.heads_and_masks import cut_into_heads, permitted
from hessblocks.curvature.last_layer.norms import head_norms, norm_multipliers
from hessblocks.curvature.last_layer.sub_block import LastAttention
from hessblocks.curvature.last_layer.supported import check_linear
from hessblocks.curvature.last_layer.token_network import feeding, token_network
from hessblocks.curvature.losses import Batch, TextPositions
from hessblocks.errors import ArgumentError, check_name
from hessblocks.theory import Rotation

_PARAMETRISED = ".parametrizations."


def last_attention(model: nn.Module, batch: Batch) -> LastAttention:
    """Run the model once, inside `undisturbed`, and extract its last attention.

    Args:
        model: a hessblocks model, or one of a kind in `FAMILIES` with its head.
        batch: inputs, with an attention mask where there is padding.

    Returns:
        The sub-block, and what follows it as a function of one token.

    Raises:
        ArgumentError: a model that is not known, or parts that the closed form does not cover.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    own = {"hessblocks": from_hessblocks}
    check_name("model: closed-form attention curvature of", kind, [*own, *FAMILIES])
    check_linear("the output layer", output_layer(model))
    with torch.no_grad():
        told = TextPositions(model).put_into(batch, partial(logits, model))
        return own.get(kind, _from_family)(model, told)


def _from_family(model: Any, batch: Batch) -> LastAttention:
    """Extract the last attention of a model of one of the kinds in `FAMILIES`."""
    config = model.config
    family = FAMILIES[config.model_type]
    family.check(model)
    if "encoder_hidden_states" in batch.keywords:
        raise ArgumentError(
            "batch: the closed form does not cover cross-attention; leave encoder_hidden_states "
            "out or use hessblocks.Hessian"
        )
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    written = family.written(layer)
    last = output_layer(model)
    seen = forward_pass(
        model, batch, layer, attention, written if family.apart else attention, last
    )
    heads = int(config.num_attention_heads)
    for name in family.read:
        check_linear(name, attention.get_submodule(name))
    check_linear(family.write, written)
    weights = family.weights(layer, heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    head_width = weights["query"].shape[1] // heads
    turned = seen.keywords.get("position_embeddings")
    rotation = turned and Rotation.of_halves(
        turned[0].to(seen.inputs), turned[1].to(seen.inputs), head_width
    )
    _check_rows(batch, seen)
    bias = written.bias
    norms = head_norms(
        seen.inputs.new_zeros(1, head_width),
        *(getattr(attention, name, None) for name in family.norms),
    )
    before = feeding(family, model, seen.x[0, 0], seen.layer_keywords)
    stems = {name.partition(_PARAMETRISED)[0] for name in before if _PARAMETRISED in name}
    stems |= {name.rpartition(".")[0] for name in before if _PARAMETRISED not in name}
    trained = [name for name, norm in norms.items() if len(norm.parameters)]
    return LastAttention(
        layer=cut_into_heads(
            seen.inputs,
            weights,
            heads=heads,
            groups=groups,
            permitted=permitted(
                seen.inputs,
                batch.attention_mask,
                causal=family.causal,
                window=_window(attention, config),
                places=batch.keywords.get("position_ids"),
            ),
            scale=float(getattr(attention, "scaling", head_width**-0.5)),
            parameters=(*family.trained(layer), *trained),
            **norms,
            projection_bias=bias is not None,
            rotation=rotation,
        ),
        seen=seen,
        network=token_network(family, model, seen.layer_keywords),
        projection_bias=None if bias is None else bias.detach(),
        output_layer=last,
        rounding=torch.finfo(torch.float32).eps if family.single else 0.0,
        before=before,
        multipliers=norm_multipliers(model, stems, seen),
    )


def _check_rows(batch: Batch, seen: Seen) -> None:
    """Refuse rows that the model reads in two ways, and outputs of some tokens alone."""
    places = batch.keywords.get("position_ids")
    apart = places is not None and bool((places.diff(dim=-1) != 1).any())
    if apart and batch.attention_mask is None and batch.keywords.get("use_cache"):
        raise ArgumentError(
            "batch: with use_cache=True transformers lets packed sequences see each other; leave "
            "it out, as in training"
        )
    if seen.hidden.shape[1] != seen.x.shape[1]:
        raise ArgumentError(
            "batch: the output layer does not read every token (logits_to_keep?); leave that out"
        )


def _window(attention: Any, config: Any) -> int | None:
    """Count the tokens that a query sees, itself included; None for all before it."""
    of = config if config.model_type == "mistral" else attention
    return getattr(of, "sliding_window", None)
