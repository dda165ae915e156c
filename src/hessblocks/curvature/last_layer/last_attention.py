"""Extract the last attention of a known model, of transformers or of ours, with its norms.

These are the norms of queries and keys (QK norm), and the norm before the attention.

Letters: B sequences, L tokens, D width, K query-key width.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.func import functional_call

from hessblocks.architectures import ARCHITECTURES, heads_of
from hessblocks.curvature.closed import spelled
from hessblocks.curvature.last_layer.forward_pass import (
    LastAttention,
    Seen,
    feeding,
    forward_pass,
    logits,
    token_network,
)
from hessblocks.curvature.last_layer.supported import (
    ROLES,
    check_linear,
    is_trained,
    last_modules,
    matrix,
    output_layer,
    uncovered,
)
from hessblocks.curvature.losses import Batch, TextPositions, check_packing
from hessblocks.errors import ArgumentError, check_name
from hessblocks.theory import AttentionLayer, HeadNorm, HeadRotation


def head_norms(
    like: Float[Tensor, "rows K"], query: nn.Module | None = None, key: nn.Module | None = None
) -> dict[str, HeadNorm]:
    """Return the norms of queries and keys (QK norm) as `query_norm` and `key_norm`, if any."""
    modules = {"query_norm": query, "key_norm": key}
    return {
        name: _head_norm(name, module, like)
        for name, module in modules.items()
        if not isinstance(module, nn.Identity | None)
    }


def _head_norm(name: str, module: nn.Module, like: Tensor) -> HeadNorm:
    copied = copy.deepcopy(module)
    flat = [p.detach().flatten().to(like) for p in _trained(copied).values()]
    # a partial, since closures cannot be pickled
    function = partial(_normed, copied)
    norm = HeadNorm(function=function, parameters=torch.cat([like.new_zeros(0), *flat]))
    try:
        norm.check(like.shape[-1])
    except ArgumentError as error:
        raise uncovered(
            f"expects {name} to act on each head's vector by itself ({error})"
        ) from error
    return norm


def _normed(module: nn.Module, vector: Tensor, parameters: Tensor) -> Tensor:
    """Apply a norm to one vector, with the given values of its trained parameters."""
    trained = _trained(module)
    pieces = parameters.split([p.numel() for p in trained.values()])
    shaped = (piece.view_as(p) for piece, p in zip(pieces, trained.values(), strict=True))
    with spelled():
        normed: Tensor = functional_call(module, dict(zip(trained, shaped, strict=True)), (vector,))
    return normed


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def norm_multipliers(
    model: nn.Module, stems: set[str], recorded: Seen
) -> dict[str, Float[Tensor, "B L D"]]:
    """Compute the factor that multiplies each trained parameter of the norm before the attention.

    Args:
        model: model with the norm, any module that acts on each token separately.
        stems: names of the modules between the layer's input and its attention.
        recorded: record of the norm's input and the attention's input.

    Returns:
        Factors by name, of parameters that act entrywise. Empty if there are several modules, or
        the attention's input is not the norm's output.
    """
    if len(stems) != 1:
        return {}
    (stem,) = stems
    norm, x, inputs = model.get_submodule(stem), recorded.x, recorded.inputs
    multipliers: dict[str, Tensor] = {}
    if not inputs.isfinite().all() or not _close(norm(x), inputs, 1e-6):
        return multipliers
    # values of both signs, smaller and larger than 1
    generic = 3 * torch.arange(1, x.shape[-1] + 1).to(x).sin()
    for name, parameter in norm.named_parameters():
        if not parameter.requires_grad or parameter.shape != x.shape[-1:]:
            continue

        def at(values: Tensor, name: str = name) -> Tensor:
            normed: Tensor = functional_call(norm, {name: values}, (x,))
            return normed

        start = at(torch.zeros_like(generic))
        slope = at(torch.ones_like(generic)) - start
        tried = ((at(v), start + slope * v) for v in (generic, -generic, parameter.detach()))
        if all(_close(value, expected, 1e-4) for value, expected in tried):
            multipliers[f"{stem}.{name}"] = slope
    return multipliers


def _close(value: Tensor, expected: Tensor, share: float) -> bool:
    return torch.allclose(value, expected, rtol=share, atol=share * float(expected.abs().max()))


_PARAMETRISED = ".parametrizations."


def last_attention(model: nn.Module, batch: Batch) -> LastAttention:
    """Run the model once, inside `undisturbed`, and extract its last attention.

    Args:
        model: a hessblocks model, or one of an architecture in `ARCHITECTURES` with its head.
        batch: inputs, with an attention mask if there is padding.

    Returns:
        The attention, and the network after it as a function of one token.

    Raises:
        ArgumentError: the architecture is unknown, or the closed form does not support a part.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    ours = {"hessblocks": from_hessblocks}
    families = [name for name, architecture in ARCHITECTURES.items() if architecture.behind]
    check_name("model: closed-form attention curvature of", kind, [*ours, *families])
    check_linear("the output layer", output_layer(model))
    with torch.no_grad():
        positioned = TextPositions(model).put_into(batch, partial(logits, model))
        return ours.get(kind, _from_family)(model, positioned)


def _from_family(model: Any, batch: Batch) -> LastAttention:
    """Extract the last attention of a model whose architecture is in `ARCHITECTURES`."""
    config, architecture = model.config, ARCHITECTURES[model.config.model_type]
    modules = last_modules(model)
    if "encoder_hidden_states" in batch.keywords:
        raise ArgumentError(
            "batch: the closed form does not cover cross-attention; leave encoder_hidden_states "
            "out or use hessblocks.Hessian"
        )
    attention, projection = modules.attention, modules.linear["projection"]
    windowed = config if config.model_type == "mistral" else attention
    last = output_layer(model)
    written = projection if modules.apart else attention
    recorded = forward_pass(model, batch, modules.layer, attention, written, last)
    weights, heads = modules.weights(config), heads_of(config)
    head_width = weights["query"].shape[1] // heads.count
    turned = recorded.keywords.get("position_embeddings")
    rotation = turned and HeadRotation.of_halves(
        turned[0].to(recorded.inputs), turned[1].to(recorded.inputs), head_width
    )
    check_packing(batch)
    if recorded.hidden.shape[1] != recorded.x.shape[1]:
        raise ArgumentError(
            "batch: the output layer does not read every token (logits_to_keep?); leave that out"
        )
    bias = projection.bias
    norms = head_norms(
        recorded.inputs.new_zeros(1, head_width),
        *(
            getattr(attention, f"{role}_norm", getattr(attention, f"{role}_layernorm", None))
            for role in ("q", "k")
        ),
    )
    before = feeding(modules, model, recorded.x[0, 0], recorded.layer_keywords)
    stems = {name.partition(_PARAMETRISED)[0] for name in before if _PARAMETRISED in name}
    stems |= {name.rpartition(".")[0] for name in before if _PARAMETRISED not in name}
    trained = [name for name, norm in norms.items() if len(norm.parameters)]
    return LastAttention(
        layer=cut_into_heads(
            recorded.inputs,
            weights,
            heads=heads.count,
            groups=heads.groups,
            permitted=permitted(
                recorded.inputs,
                batch.attention_mask,
                causal=architecture.causal,
                window=getattr(windowed, "sliding_window", None),
                places=batch.keywords.get("position_ids"),
            ),
            scale=float(getattr(attention, "scaling", head_width**-0.5)),
            parameters=(*modules.trained(), *trained),
            **norms,
            projection_bias=bias is not None,
            rotation=rotation,
        ),
        seen=recorded,
        network=token_network(modules, model, recorded.layer_keywords),
        projection_bias=None if bias is None else bias.detach(),
        output_layer=last,
        rounding=torch.finfo(torch.float32).eps if architecture.single_rotation else 0.0,
        before=before,
        multipliers=norm_multipliers(model, stems, recorded),
    )


def from_hessblocks(model: Any, batch: Batch) -> LastAttention:
    """Extract the last attention of a hessblocks model.

    Args:
        model: hessblocks model whose parts the closed form supports.
        batch: batch of one forward pass.

    Returns:
        The attention, and the network after it as a function of one token.

    Raises:
        ArgumentError: the closed form does not support a part.
    """
    block = model.model.layers[-1]
    attention = block.attention
    if not getattr(block, "attends", False):
        raise uncovered("does not cover a last layer without attention")
    _check_parts(attention)
    if "values" in block.carried:
        raise uncovered("does not cover a value residual")
    if model.softcap is not None:
        raise uncovered("does not cover a softcap of logits")
    recorded = forward_pass(model, batch, block, attention, attention, model.lm_head)
    inputs = recorded.inputs
    context = next(argument for argument in recorded.arguments if hasattr(argument, "rotation"))
    turned = context.rotation

    def network(a: Tensor, state: Tensor) -> Tensor:
        x = block.read(state)
        normalised = x if block.post else block.attention_norm(x)
        hidden: Tensor = model.model.final_norm(block.after_attention(a, x, normalised))
        return hidden

    stem = f"model.layers.{len(model.model.layers) - 1}.attention_norm"
    before = [] if block.post else [name for name, _ in block.attention_norm.named_parameters()]
    of_layer = stem.removesuffix("attention_norm")
    mixed = [name for name, _ in block.named_parameters() if name.startswith("embedding_skip.")]

    for name in ROLES:
        if isinstance(module := getattr(attention, name), nn.Linear):
            check_linear(name, module)
    slots = {name: module for name in ROLES if (module := getattr(attention, name)) is not None}
    trained = [name for name, module in slots.items() if is_trained(module)]
    matrices = {name: _matrix(module, inputs.shape[-1]) for name, module in slots.items()}
    gain = float(getattr(attention.value, "update_gain", 1.0))
    if gain != 1.0:  # W_V W_P = (W_V / β) (β W_P), and d(W_V / β) = d(ΔW)
        matrices |= {
            "value": matrices["value"] / gain,
            "projection": gain * matrices["projection"].to(inputs),
        }
    if attention.one_matrix:
        trained = ["query_key" if name == "query" else name for name in trained]
    bias = getattr(attention.projection, "bias", None)
    gains = {} if attention.gains is None else dict(attention.gains.named_parameters())
    width = attention.head_width
    norms = head_norms(inputs.new_zeros(1, width), attention.query_norm, attention.key_norm)
    trained += [name for name, norm in norms.items() if len(norm.parameters)]
    trained += [name for name, gain in gains.items() if gain.requires_grad]
    layer = cut_into_heads(
        inputs,
        matrices,
        heads=attention.heads,
        groups=attention.key_value_heads,
        permitted=permitted(
            inputs, batch.attention_mask, causal=model.config.causal, window=attention.window
        ),
        scale=float(attention.scale),
        softmax=not attention.linear,
        bias=context.bias,
        rotation=turned and HeadRotation.of_halves(turned[0][:, 0], turned[1][:, 0], width),
        gains={name: gain.detach() for name, gain in gains.items()},
        parameters=tuple(trained),
        projection_bias=bias is not None,
        **norms,
    )
    return LastAttention(
        layer=layer,
        seen=recorded,
        output_layer=model.lm_head,
        network=network,
        before=frozenset(
            [f"{stem}.{name}" for name in before] + [of_layer + name for name in mixed]
        ),
        multipliers=norm_multipliers(
            model, {stem} if before else set(), replace(recorded, x=block.read(recorded.x))
        ),
        left_out=tuple(
            name
            for name, parameter in attention.named_parameters()
            if name.endswith(("initial_gain", "update_gain")) and parameter.requires_grad
        ),
        projection_bias=bias,
    )


def _check_parts(attention: Any) -> None:
    if any(hasattr(module, "share") for module in attention.children()):
        raise uncovered("does not cover weights shared with the first layer")
    if attention.gate is not None:
        raise uncovered("does not cover a gate on the heads' outputs")
    if attention.softcap is not None or attention.sink is not None:
        raise uncovered("does not cover a softcap of scores or a sink")
    norms = (attention.query_norm, attention.key_norm)
    if attention.one_matrix and not all(isinstance(norm, nn.Identity) for norm in norms):
        raise uncovered("covers norms of queries and keys only with a matrix each")
    for name in ROLES:
        gain = float(getattr(getattr(attention, name), "update_gain", 1.0))
        if gain != 1.0 and not (gain and name == "value" and not is_trained(attention.projection)):
            raise uncovered(
                "covers reparametrised weights only with an update gain of 1 (values before a "
                "fixed projection: any but 0)"
            )


def _matrix(module: nn.Module, width: int) -> Tensor:
    """Return the weight of a slot as (inputs, outputs), with a bias as the last row."""
    if isinstance(module, nn.Identity):
        return torch.eye(width)
    if isinstance(module, nn.Linear):
        return matrix(module)
    effective: Tensor = module.effective_weight()  # type: ignore[operator]
    return effective.T


def cut_into_heads(
    inputs: Float[Tensor, "B L D"],
    weights: Mapping[str, Float[Tensor, "rows columns"]],
    *,
    heads: int,
    groups: int,
    **fields: Any,
) -> AttentionLayer:
    """Split the weights into heads; append a column of ones to the inputs for biases."""
    width = inputs.shape[-1]
    biased = {len(w) == width + 1 for name, w in weights.items() if name != "projection"}
    if "key" not in weights and True in biased:
        raise uncovered("covers one query-key matrix only without biases")
    if len(biased) == 2:
        raise uncovered("expects biases on all of query, key and value, or on none")
    x = torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=-1) if True in biased else inputs

    def per_head(name: str, count: int) -> Tensor:
        weight = weights[name].to(inputs).reshape(x.shape[-1], count, -1)
        return weight.transpose(0, 1).clone(memory_format=torch.contiguous_format)

    value = per_head("value", groups)
    projection = weights["projection"][: heads * value.shape[2]].to(inputs).clone()
    return AttentionLayer(
        x=x,
        query=per_head("query", heads),
        key=per_head("key", groups) if "key" in weights else None,
        value=value,
        projection=projection.unflatten(0, (heads, -1)),
        **fields,
    )


def permitted(
    inputs: Float[Tensor, "B L D"],
    attention_mask: Shaped[Tensor, "B L"] | None,
    *,
    causal: bool,
    window: int | None = None,
    places: Int[Tensor, "*B L"] | None = None,
) -> Bool[Tensor, "#B L L"]:
    """Build the mask, True where a query may attend; a padded query attends to itself.

    Args:
        inputs: inputs of the attention.
        attention_mask: 0 at padding.
        causal: whether a token attends only to itself and earlier tokens.
        window: number of tokens that a token attends to, itself included (to each side if not
            causal).
        places: positions. A position that is not the previous one plus 1 starts a new sequence in
            the same row; without a mask, causal models of transformers separate such sequences.

    Returns:
        One mask for all rows, or one per row.
    """
    tokens = inputs.shape[1]
    diagonal = torch.eye(tokens, dtype=torch.bool, device=inputs.device)
    allowed = torch.ones_like(diagonal)[None]
    if causal:
        allowed = allowed.tril()
    if window:
        allowed = allowed.triu(1 - window)
        allowed = allowed if causal else allowed & allowed.mT
    if attention_mask is not None:
        return (allowed & attention_mask.bool()[:, None, :]) | diagonal
    if causal and places is not None:
        places = places.reshape(-1, tokens)
        sequence = nn.functional.pad(places.diff(dim=-1) != 1, (1, 0)).cumsum(-1)
        allowed = allowed & (sequence[:, :, None] == sequence[:, None, :])
    return allowed
