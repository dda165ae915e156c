"""The last attention of a model as it stands in one forward pass, taken out of models that are known.

What follows the last attention acts on each token by itself: that is what makes its curvature exact.

Letters: B sequences, L tokens, D width, H heads, G key-value heads, K query-key width, V value width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hessblocks.curvature.exact.behind_attention import HiddenNetwork
from hessblocks.curvature.exact.covered import ELSEWHERE, check_linear, undisturbed
from hessblocks.curvature.exact.families import (
    FAMILIES,
    ROLES,
    feeding,
    matrix,
    output_layer,
    token_network,
)
from hessblocks.curvature.exact.forward_pass import Seen, forward_pass, noted_inputs, without_cache
from hessblocks.curvature.exact.input_norm import multipliers
from hessblocks.curvature.exact.unembedding import Unembedding
from hessblocks.curvature.products import Batch
from hessblocks.errors import ArgumentError, check_name
from hessblocks.theory import AttentionLayer, HeadNorm, Rotation

_PARAMETRISED = ".parametrizations."
_TRIED = 4
"""Tokens at which the network behind is compared with the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LastAttention:
    """The last attention sub-block and the token-wise network behind it."""

    layer: AttentionLayer
    """Weights, input and mask."""
    attended: Float[Tensor, "B L D"]
    """Output of the sub-block."""
    sides: tuple[Float[Tensor, "B L D"], ...]
    """What the network behind reads besides."""
    network: HiddenNetwork
    """From one token's output and sides to its final hidden state."""
    pooled: bool = False
    """Whether the output layer reads the first token alone."""
    unembedding: Unembedding
    """From there to the logits."""
    hidden: Float[Tensor, "B L D"]
    """Output of the network behind, as the model gave it."""
    output_layer: nn.Module
    """What reads it and gives the logits."""
    projection_bias: Float[Tensor, " D"] | None = None
    """Bias of the output, where it has one."""
    rounding: float = 0.0
    """Relative error of an operation inside the attention, where it is larger than that of the weights."""
    left_out: tuple[str, ...] = ()
    """Trained parameters of the attention that have no group: gains of reparametrised weights."""
    before: frozenset[str]
    """Parameters of the layer that stand before its attention."""
    multipliers: Mapping[str, Float[Tensor, "B L D"]]
    """What those of them multiply that enter entry by entry: gain and shift of a norm."""

    def check(self, model: nn.Module, batch: Batch, valid: Bool[Tensor, "B L"]) -> None:
        """Hold attention, network and unembedding, computed anew, against what the model gave.

        Args:
            model: that they were taken out of.
            batch: that it was run on.
            valid: where outputs count.

        Raises:
            ArgumentError: one of them differs by more than rounding.
        """
        positions = valid.any(0).nonzero()[:, 0]
        output = self.layer.output(positions)
        if self.projection_bias is not None:
            output = output + self.projection_bias
        counted = valid[:, positions]
        if not self.attended[:, positions][counted].isfinite().all():
            raise ArgumentError(
                "model: the output of its last attention is not finite on this batch; check weights and inputs"
            )
        if not _close(output[counted], self.attended[:, positions][counted], self.rounding):
            raise ArgumentError(
                "batch: the model attends otherwise than the closed form supposes (packed sequences, a mask of its "
                "own, a softmax in single precision that attn_implementation='sdpa' would not have?); use "
                "hessblocks.Hessian for this batch"
            )
        hidden = vmap(self.network)(self.attended[valid], *(side[valid] for side in self.sides))
        if not _close(hidden, self.hidden[valid]):
            raise ArgumentError(
                "model: behind its last attention it does something else than the closed form supposes, or not token "
                f"by token; {ELSEWHERE}"
            )
        arguments: tuple[Any, ...] = (batch.inputs[:1, :_TRIED],)
        keywords: dict[str, Any] = without_cache(batch)
        if batch.inputs.is_floating_point():
            image = batch.split(1)[0]
            arguments, keywords = image.arguments, image.keywords
        with noted_inputs(self.output_layer) as seen:
            given = cast(Any, model)(*arguments, **keywords)
        logits: Tensor = given[0] if isinstance(given, tuple) else given.logits
        if not _close(self.unembedding.logits(seen[0]), logits):
            raise ArgumentError(
                "model: its logits are not the output layer's of the final hidden state (scaled, capped, changed by "
                f"a hook?); {ELSEWHERE}"
            )


def _close(found: Tensor, seen: Tensor, rounding: float = 0.0) -> bool:
    """Whether they differ by no more than 1e4 roundings of their own, or 100 of a given size."""
    share = max(1e4 * torch.finfo(seen.dtype).eps, 100 * rounding)
    tolerance = share * seen.abs().amax()
    return found.shape == seen.shape and bool((found - seen).abs().amax() <= tolerance)


def last_attention(model: nn.Module, batch: Batch) -> LastAttention:
    """Run the model once and take its last attention out.

    Args:
        model: a hessblocks model, or one of a kind in `FAMILIES` with its head.
        batch: inputs, with an attention mask where there is padding.

    Returns:
        The sub-block, and what follows it as a function of one token.

    Raises:
        ArgumentError: a model that is not known, or parts that the closed form does not cover.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    check_name("model: closed-form attention curvature of", kind, _TAKERS)
    check_linear("the output layer", output_layer(model))
    with undisturbed(model), torch.no_grad():
        return _TAKERS[kind](model, batch)


def _from_hessblocks(model: Any, batch: Batch) -> LastAttention:
    block = model.model.layers[-1]
    attention = block.attention
    _check_parts(attention)
    seen = forward_pass(model, batch, block, attention, attention, model.lm_head)
    inputs = seen.inputs
    turned = next((one.rotation for one in seen.arguments if hasattr(one, "rotation")), None)

    def network(a: Tensor, x: Tensor) -> Tensor:
        normalised = x if block.post else block.attention_norm(x)
        hidden: Tensor = model.model.final_norm(block.after_attention(a, x, normalised))
        return hidden

    stem = f"model.layers.{len(model.model.layers) - 1}.attention_norm"
    before = [] if block.post else [name for name, _ in block.attention_norm.named_parameters()]

    for name in ROLES:
        if isinstance(module := getattr(attention, name), nn.Linear):
            check_linear(name, module)
    slots = {name: module for name in ROLES if (module := getattr(attention, name)) is not None}
    trained = [name for name, module in slots.items() if _is_trained(module)]
    matrices = {name: _matrix(module, inputs.shape[-1]) for name, module in slots.items()}
    gain = float(getattr(attention.value, "update_gain", 1.0))
    if gain != 1.0:  # W_V W_P = (W_V / β) (β W_P), where W_V / β moves as ΔW does
        matrices |= {
            "value": matrices["value"] / gain,
            "projection": gain * matrices["projection"].to(inputs),
        }
    if attention.one_matrix:
        trained = ["query_key" if name == "query" else name for name in trained]
    bias = getattr(attention.projection, "bias", None)
    gains = {} if attention.gains is None else dict(attention.gains.named_parameters())
    norms = _norms(
        inputs.new_zeros(1, attention.head_width), attention.query_norm, attention.key_norm
    )
    trained += [name for name, norm in norms.items() if len(norm.parameters)]
    trained += [name for name, gain in gains.items() if gain.requires_grad]
    layer = _layer(
        inputs,
        matrices,
        heads=attention.heads,
        groups=attention.key_value_heads,
        permitted=_permitted(inputs, batch.attention_mask, causal=model.config.causal),
        scale=float(attention.scale),
        softmax=not attention.linear,
        rotation=None
        if turned is None
        else Rotation.of_halves(turned[0][:, 0], turned[1][:, 0], attention.head_width),
        gains={name: gain.detach() for name, gain in gains.items()},
        parameters=tuple(trained),
        projection_bias=bias is not None,
        **norms,
    )
    return LastAttention(
        layer=layer,
        attended=seen.attended,
        hidden=seen.hidden,
        output_layer=model.lm_head,
        sides=(seen.x,),
        network=network,
        before=frozenset(f"{stem}.{name}" for name in before),
        multipliers=_multipliers(model, {stem} if before else set(), seen),
        unembedding=Unembedding.of(model.lm_head),
        left_out=tuple(
            name
            for name, parameter in attention.named_parameters()
            if name.endswith(("initial_gain", "update_gain")) and parameter.requires_grad
        ),
        projection_bias=bias,
    )


def _from_family(model: Any, batch: Batch) -> LastAttention:
    config = model.config
    family = FAMILIES[config.model_type]
    family.check(model)
    if "encoder_hidden_states" in batch.keywords:
        raise ArgumentError(
            "batch: the closed form does not cover cross-attention; leave encoder_hidden_states out or use "
            "hessblocks.Hessian"
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
    rotation = None
    if (turned := seen.keywords.get("position_embeddings")) is not None:
        rotation = Rotation.of_halves(
            turned[0].to(seen.inputs), turned[1].to(seen.inputs), head_width
        )
    _check_rows(batch, seen)
    bias = written.bias
    norms = _norms(
        seen.inputs.new_zeros(1, head_width),
        *(getattr(attention, name, None) for name in family.norms),
    )
    before = feeding(family, model, seen.x[0, 0], seen.layer_keywords)
    stems = {name.partition(_PARAMETRISED)[0] for name in before if _PARAMETRISED in name}
    stems |= {name.rpartition(".")[0] for name in before if _PARAMETRISED not in name}
    trained = [name for name, norm in norms.items() if len(norm.parameters)]
    return LastAttention(
        layer=_layer(
            seen.inputs,
            weights,
            heads=heads,
            groups=groups,
            permitted=_permitted(
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
        attended=seen.attended,
        sides=(seen.x,),
        network=token_network(family, model, seen.layer_keywords),
        unembedding=Unembedding.of(last),
        projection_bias=None if bias is None else bias.detach(),
        hidden=seen.hidden if seen.hidden.ndim == 3 else _at_first(seen.hidden, seen.x),
        output_layer=last,
        rounding=torch.finfo(torch.float32).eps if family.single else 0.0,
        pooled=seen.hidden.ndim == 2,
        before=before,
        multipliers=_multipliers(model, stems, seen),
    )


def _check_rows(batch: Batch, seen: Seen) -> None:
    """Refuse rows that the model reads in two ways, and outputs of some tokens alone."""
    places = batch.keywords.get("position_ids")
    apart = places is not None and bool((places.diff(dim=-1) != 1).any())
    if apart and batch.attention_mask is None and batch.keywords.get("use_cache"):
        raise ArgumentError(
            "batch: with use_cache=True transformers lets packed sequences see each other; leave it out, as in training"
        )
    if seen.hidden.ndim == 3 and seen.hidden.shape[1] != seen.x.shape[1]:
        raise ArgumentError(
            "batch: the output layer does not read every token (logits_to_keep?); leave that out"
        )


def _multipliers(model: nn.Module, stems: set[str], seen: Seen) -> dict[str, Tensor]:
    """Those of the one module between the layer's input and its attention."""
    if len(stems) != 1:
        return {}
    (stem,) = stems
    found = multipliers(model.get_submodule(stem), seen.x, seen.inputs)
    return {f"{stem}.{name}": slope for name, slope in found.items()}


def _at_first(hidden: Float[Tensor, "B D"], like: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
    """The first token's hidden state in its place, zeros elsewhere."""
    found = torch.zeros_like(like)
    found[:, 0] = hidden
    return found


_TAKERS: dict[str, Callable[[Any, Batch], LastAttention]] = {
    "hessblocks": _from_hessblocks,
    **dict.fromkeys(FAMILIES, _from_family),
}


def _window(attention: Any, config: Any) -> int | None:
    """How many tokens a query sees, itself among them; None for all before it."""
    of = config if config.model_type == "mistral" else attention
    return getattr(of, "sliding_window", None)


def _norms(
    like: Float[Tensor, "rows K"], query: nn.Module | None = None, key: nn.Module | None = None
) -> dict[str, HeadNorm]:
    """Norms of queries and keys by their names, where there are any."""
    found = {"query_norm": query, "key_norm": key}
    return {
        name: _head_norm(name, module, like)
        for name, module in found.items()
        if not isinstance(module, nn.Identity | None)
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class _NormModule:
    """A norm as a function of one vector and its trained parameters, as it was when it was taken."""

    module: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> _NormModule:
        return cls(module=copy.deepcopy(module))

    @property
    def trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def __call__(self, vector: Tensor, parameters: Tensor) -> Tensor:
        trained = self.trained
        pieces = parameters.split([p.numel() for p in trained.values()])
        own = {
            name: piece.view_as(p) for (name, p), piece in zip(trained.items(), pieces, strict=True)
        }
        normed: Tensor = functional_call(self.module, own, (vector,))
        return normed


def _head_norm(name: str, module: nn.Module, like: Tensor) -> HeadNorm:
    function = _NormModule.of(module)
    trained = [p.detach().flatten().to(like) for p in function.trained.values()]
    norm = HeadNorm(function=function, parameters=torch.cat([like.new_zeros(0), *trained]))
    try:
        norm.check(like.shape[-1])
    except ArgumentError as error:
        raise _uncovered(
            f"expects {name} to act on each head's vector by itself ({error})"
        ) from error
    return norm


def _check_parts(attention: Any) -> None:
    norms = (attention.query_norm, attention.key_norm)
    if attention.one_matrix and not all(isinstance(norm, nn.Identity) for norm in norms):
        raise _uncovered("covers norms of queries and keys where these have a matrix each")
    for name in ROLES:
        gain = float(getattr(getattr(attention, name), "update_gain", 1.0))
        if gain != 1.0 and not (gain and name == "value" and not _is_trained(attention.projection)):
            raise _uncovered(
                "covers reparametrised weights with an update gain of 1 (values before a fixed projection "
                "with any but 0)"
            )


def _uncovered(limit: str) -> ArgumentError:
    """What the closed form covers or expects, and what to do about it."""
    return ArgumentError(f"model: the closed form {limit}; use hessblocks.Hessian for this model")


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _matrix(module: nn.Module, width: int) -> Tensor:
    """The weight of a slot as (inputs, outputs), a bias as its last row."""
    if isinstance(module, nn.Identity):
        return torch.eye(width)
    if isinstance(module, nn.Linear):
        return matrix(module)
    effective: Tensor = module.effective_weight()  # type: ignore[operator]
    return effective.T


def _layer(
    inputs: Tensor, weights: Mapping[str, Tensor], *, heads: int, groups: int, **fields: Any
) -> AttentionLayer:
    """Cut the weights into heads; a column of ones meets the biases."""
    width = inputs.shape[-1]
    biased = {len(w) == width + 1 for name, w in weights.items() if name != "projection"}
    if "key" not in weights and True in biased:
        raise _uncovered("covers one query-key matrix without biases only")
    if len(biased) == 2:
        raise _uncovered("expects biases on all of query, key and value, or on none")
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


def _permitted(
    inputs: Tensor,
    attention_mask: Tensor | None,
    *,
    causal: bool,
    window: int | None = None,
    places: Tensor | None = None,
) -> Bool[Tensor, "#B L L"]:
    """True where a query may attend; a padded query attends to itself, which enters no loss.

    Positions that do not go up by one begin another sequence in the same row, which causal models of
    transformers keep apart where no mask is given.

    Returns:
        One table for all rows, or one a row.
    """
    tokens = inputs.shape[1]
    own = torch.eye(tokens, dtype=torch.bool, device=inputs.device)
    permitted = torch.ones_like(own)[None]
    if causal:
        permitted = permitted.tril()
    if window:
        permitted = permitted.triu(1 - window)
        permitted = permitted if causal else permitted & permitted.mT
    if attention_mask is not None:
        return (permitted & attention_mask.bool()[:, None, :]) | own
    if causal and places is not None:
        places = places.reshape(-1, tokens)
        sequence = nn.functional.pad(places.diff(dim=-1) != 1, (1, 0)).cumsum(-1)
        permitted = permitted & (sequence[:, :, None] == sequence[:, None, :])
    return permitted
