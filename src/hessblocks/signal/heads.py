"""Entropy, largest logit and second moment of each attention head, by tiles of queries.

Letters: B sequences, H heads, G key-value heads, T queries, S keys, K head width, V value width,
D width of the layer's vectors, Q queries of a tile.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from hessblocks.attention_calls import wrapped_attention

TILE = 1 << 22
"""Largest number of entries in a tensor of a tile, so that memory is linear in the context."""


@dataclass(frozen=True, kw_only=True)
class HeadSignal:
    """Quantities of one head's attention over the unpadded tokens; None if not measurable."""

    entropy: float
    """Mean entropy of a token's attention row, in nats; for shaped attention see `LayerSignal`."""
    largest_logit: float | None
    """Largest absolute score, before mask and softmax, of a token and a permitted key."""
    second_moment: float | None
    """Mean of tr M_2 = Σ_j a_j ‖x_j − m‖², m = Σ_j a_j x_j; if 0, queries and keys have zero
    curvature."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxCall:
    """Arguments and result of a layer's call of softmax attention."""

    query: Float[Tensor, "B H T K"]
    """Queries, after rotary embedding."""
    key: Float[Tensor, "B G S K"]
    """Keys; H / G consecutive heads share one."""
    value: Float[Tensor, "B G S V"]
    """Values."""
    mask: Shaped[Tensor, "#B #H T S"] | None
    """Booleans (True: may attend), or numbers added to the scores."""
    scale: float
    """Scale of the scores."""
    causal: bool
    """Whether query i attends only to keys up to i."""
    output: Float[Tensor, "B T H V"]
    """Output of the attention, before the projection."""
    x: Float[Tensor, "B S D"] | None
    """Input vectors of the keys; None if unknown."""
    softcap: float | None = None
    """c, where c tanh(score / c) replaces each score (Gemma 2)."""
    sinks: Float[Tensor, " H"] | None = None
    """Score of each head's sink (GPT-OSS), which takes its share of a row and has no value."""


def head_signals(call: SoftmaxCall, real: Bool[Tensor, "B T"]) -> tuple[HeadSignal, ...] | str:
    """Measure every head, in float64.

    The output is recomputed as softmax(scale · q kᵀ + mask) v, with softcap and sinks where the
    layer gives them. If it differs from the layer's, the layer's attention has another form and is
    not measured. A sink's share counts in no quantity.

    Args:
        call: the layer's call.
        real: False at padding, which is left out.

    Returns:
        The heads in order, or the reason why they cannot be measured.

    Cost: products of T × S × (K + V + D) a head, and memory linear in the context.

    Source: M_2 is the second attention moment of Ormaniec et al. (2025), section 4.
    """
    if unfit := _unfit(call, real):
        return unfit
    tiles = []
    for of_tile, as_given in _tiles(call, real):
        if not as_given:
            return "its attention is more than softmax(scale q kᵀ + mask) v: a bias, ..."
        tiles.append(of_tile)
    entropies, logits, moments = torch.stack(tiles, dim=1)
    means = (torch.stack([entropies.sum(0), moments.sum(0)]) / real.sum()).T.tolist()
    has_inputs = call.x is not None
    return tuple(
        HeadSignal(
            entropy=entropy, largest_logit=logit, second_moment=moment if has_inputs else None
        )
        for (entropy, moment), logit in zip(means, logits.amax(0).tolist(), strict=True)
    )


def _tiles(
    call: SoftmaxCall, real: Bool[Tensor, "B T"]
) -> Iterator[tuple[Float[Tensor, "3 H"], bool]]:
    """Yield entropies, largest logit and tr M_2 per tile, and whether O equals the layer's."""
    wide = _wide(call.query)
    heads, keys = call.query.shape[1], call.key.shape[2]
    near = torch.finfo(call.output.dtype).eps ** 0.4  # 2e-3 in float32
    for sequence, tokens in enumerate(real):
        shared = heads // call.key.shape[1]
        k, v = (t[sequence].to(wide).repeat_interleave(shared, 0) for t in (call.key, call.value))
        x = k.new_zeros(keys, 1) if call.x is None else call.x[sequence].to(wide)
        if call.sinks is None:  # does not change M_2; avoids cancellation if the mean is large
            x = x - x.mean(0)
        bound = near * float(v.abs().nan_to_num().max())
        for queries in tokens.nonzero()[:, 0].split(max(1, TILE // (heads * max(x.shape)))):
            scores = call.scale * call.query[sequence][:, queries].to(wide) @ k.mT
            if call.softcap is not None:
                scores = call.softcap * (scores / call.softcap).tanh()
            visible, added = _visible(call, sequence, queries)
            logit = scores.abs().masked_fill(~visible, 0.0).amax((1, 2))
            scores = (scores + added).masked_fill(~visible, -torch.inf)
            if call.sinks is not None:
                sinks = call.sinks.to(wide).view(-1, 1, 1).expand(-1, len(queries), 1)
                scores = torch.cat([scores, sinks], dim=-1)
            shares = scores.softmax(-1)[..., :keys]
            shares = shares.masked_fill(~visible.any(-1, keepdim=True), 0.0)  # no permitted key
            entropy = torch.special.entr(shares).sum((1, 2))
            output = call.output[sequence, queries].transpose(0, 1).to(wide)
            as_given = torch.allclose(shares @ v, output, rtol=near, atol=bound, equal_nan=True)
            yield torch.stack([entropy, logit, _spread(shares, x)]), as_given


def _spread(shares: Float[Tensor, "H Q S"], x: Float[Tensor, "S D"]) -> Float[Tensor, " H"]:
    """Sum tr M_2 = Σ_j a_j ‖x_j‖² − ‖m‖² over queries; clamp rounding errors below 0."""
    spread = shares @ x.square().sum(-1) - (shares @ x).square().sum(-1)
    return spread.clamp(min=0.0).sum(-1)


def _visible(
    call: SoftmaxCall, sequence: int, queries: Int[Tensor, " _"]
) -> tuple[Bool[Tensor, "#H Q S"], Float[Tensor, "#H Q S"] | float]:
    """Return the mask of the keys permitted to some queries, and numbers added to the scores."""
    keys = call.key.shape[2]
    if call.mask is None:
        places = torch.arange(keys, device=queries.device).expand(len(queries), -1)
        return (places <= (queries[:, None] if call.causal else keys))[None], 0.0
    mask = call.mask[sequence % len(call.mask)].expand(-1, call.query.shape[2], -1)
    mask = mask[:, queries, :keys]
    if mask.dtype == torch.bool:
        return mask, 0.0
    return mask > torch.finfo(mask.dtype).min / 2, mask.to(_wide(call.query))


def _unfit(call: SoftmaxCall, real: Tensor) -> str:
    """Return a sentence about an unsupported argument; empty if there is none."""
    mask, query = call.mask, call.query
    mixed = (*real.shape, *query.shape[1:2], call.value.shape[-1])
    if query.ndim != 4 or call.output.shape != mixed:
        return "its queries or outputs are not (sequences, tokens, heads, width)"
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
        return "its attention function has no mask of four axes; use attn_implementation=sdpa"
    return ""


def _wide(tensor: Tensor) -> torch.dtype:
    """Return float64, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


UNSEEN = "its attention does not go through transformers' ALL_ATTENTION_FUNCTIONS"
ELSEWHERE = ("key_value_states", "encoder_hidden_states")
"""Names of the argument with the keys' input vectors, for cross-attention."""
Found = dict[int, tuple[HeadSignal, ...] | str]
"""For each layer's number, its heads, or the reason why they cannot be measured."""


@contextmanager
def watched(layers: Sequence[nn.Module], real: Bool[Tensor, "sequences tokens"]) -> Iterator[Found]:
    """Record the first attention call of each layer in a forward pass in the block.

    Args:
        layers: layers of the model.
        real: False at padding.

    Yields:
        Results of the layers recorded so far.
    """
    signals: Found = {}
    inputs: dict[nn.Module, Tensor | None] = {}
    owner = {module: number for number, layer in enumerate(layers) for module in layer.modules()}

    def enter(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        inputs[module] = _vectors(arguments, keywords)

    def leave(module: nn.Module, *_: Any) -> None:
        inputs.pop(module, None)

    def measure(module: Any, call: SoftmaxCall) -> None:
        number, x = owner.get(module), inputs.get(module)
        if number is not None and number not in signals:
            fits = x is not None and x.shape[:2] == (len(call.key), call.key.shape[-2])
            with torch.no_grad(), torch.autocast(real.device.type, enabled=False):
                signals[number] = head_signals(replace(call, x=x if fits else None), real)

    def call(
        function: Any, module: Any, tensors: tuple[Any, ...], keywords: dict[str, Any], eager: bool
    ) -> Any:
        output = function(module, *tensors, **keywords)
        measure(module, _call(module, tensors, keywords, output[0], eager))
        return output

    with ExitStack() as stack:
        for module in owner:
            before = module.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(wrapped_attention(call))
        yield signals


def _vectors(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor | None:
    """Find the input vectors of a module's keys."""
    x = arguments[0] if arguments else keywords.get("hidden_states")
    has_others = any(keywords.get(name) is not None for name in ELSEWHERE)
    return x if isinstance(x, Tensor) and x.ndim == 3 and not has_others else None


def _call(module: Any, tensors: Any, keywords: Any, output: Any, eager: bool) -> SoftmaxCall:
    query, key, value, *rest = tensors
    mask = rest[0] if rest else keywords.get("attention_mask")
    causal, scale = keywords.get("is_causal"), keywords.get("scaling")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return SoftmaxCall(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        # eager functions take causality only from the mask
        causal=bool(causal) and mask is None and not eager and query.shape[2] > 1,
        output=output,
        x=None,
        softcap=keywords.get("softcap"),
        sinks=keywords.get("s_aux"),
    )
