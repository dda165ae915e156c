"""The state (x, x₀, v₁) as one tensor: against the formulas, layer by layer, written out again."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.blocks import Branch, Context
from tests.models.cases import ids, perturbed

WIDE: dict[str, Any] = {
    "attention.value_residual": Branch(skip=0.5, trainable_skip=True, gain=0.5, trainable=True),
    "embedding_skip": Branch(skip=0.3, trainable_skip=True, gain=0.9, trainable=True),
}


def attended(layer: Any, x: Tensor, first: Tensor | None, rotation: Any) -> tuple[Tensor, Tensor]:
    """Plain attention of one layer and its values, by products of matrices."""
    part = layer.attention
    heads = [
        weight(x).unflatten(2, (part.heads, -1)).transpose(1, 2)
        for weight in (part.query, part.key)
    ]
    half = heads[0].shape[-1] // 2
    query, key = (
        h * rotation[0] + torch.cat([-h[..., half:], h[..., :half]], -1) * rotation[1]
        for h in heads
    )
    own = part.value(x)
    mixed = own
    if first is not None:
        residual = layer.value_residual
        mixed = residual.gain * own + residual.skip * first
    scores = query @ key.mT * part.scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    values = mixed.unflatten(2, (part.heads, -1)).transpose(1, 2)
    return part.projection((shares @ values).transpose(1, 2).flatten(2)), own


def test_values_of_the_first_layer_and_embeddings_reach_every_layer() -> None:
    """Zhou et al. (2024), arXiv 2410.17897: V = λ₁ V_1 + λ₂ V_l, in each layer behind the first."""
    torch.manual_seed(0)
    model = perturbed("pre-ln", slots=WIDE, depth=3).double()
    tokens = ids(2, 7)
    embedded = x = model.model.token_embedding(tokens)
    block = model.config.block_config
    rotation = block.position.rotation(torch.arange(7)[None], block.width // block.heads, x.dtype)
    first = None
    with torch.no_grad():
        for layer in model.model.layers:
            skip = layer.embedding_skip
            x = skip.gain * x + skip.skip * embedded
            added, own = attended(layer, layer.attention_norm(x), first, rotation)
            first = own if first is None else first
            x = x + added
            x = x + layer.mlp(layer.mlp_norm(x))
        expected = model.lm_head(model.model.final_norm(x))
        found = model(tokens, output_hidden_states=True)
    assert (found.logits - expected).abs().max() <= 1e-12 * expected.abs().max()
    assert {state.shape for state in found.hidden_states} == {(2, 7, 16)}


def test_a_layer_is_a_function_of_its_input_alone() -> None:
    """So that it can be computed again, and differentiated, by itself."""
    model = perturbed("sas", slots=WIDE, depth=3)
    seen: dict[int, tuple[Any, Tensor]] = {}
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_hook(
            lambda module, inputs, output, index=index: seen.update({index: (inputs, output)})
        )
    model(ids(1, 5))
    (x, context, *_), output = seen[1]
    assert x.shape == output.shape == (1, 5, 3 * 16)
    assert torch.equal(model.model.layers[1](x.clone(), context), output)
    model.activation_checkpointing_enable()
    again = ids(2, 5)
    expected = torch.autograd.grad(model.eval()(again, labels=again).loss, [*model.parameters()])
    found = torch.autograd.grad(model.train()(again, labels=again).loss, [*model.parameters()])
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_signal_is_that_of_the_stream_and_blocks_of_a_pattern_carry_the_same() -> None:
    model = perturbed("pre-ln", slots=WIDE)
    tokens = ids(2, 6)
    signal = hb.signal(model, tokens, jacobian_steps=0)
    states = model(tokens, output_hidden_states=True).hidden_states
    expected = states[1].square().mean().sqrt()
    assert signal.layers[0].tokens.norm == pytest.approx(float(expected.detach()), rel=1e-5)
    wide = hb.preset("pre-ln", width=16, heads=4).replace(embedding_skip=Branch(skip=0.1))
    with pytest.raises(hb.ArgumentError, match="carried: all blocks of a model share it"):
        hb.build([wide, hb.preset("sas", width=16, heads=4)], depth=2)
    assert Context().causal
