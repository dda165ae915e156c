"""Configurations: round trips, and refusals that name what was wrong."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch, Shaping
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import DyT, LayerNorm, NoNorm, RMSNorm
from hessblocks.blocks.parts import BlockPart
from hessblocks.blocks.positions import (
    LearnedPosition,
    NoPosition,
    RotaryPosition,
    SinusoidalPosition,
)
from hessblocks.blocks.weights import Dense, Identity, Reparametrised


@pytest.mark.parametrize("name", hb.PRESETS)
def test_a_configuration_survives_json(name: str) -> None:
    config = hb.preset(name, width=48, heads=4)
    assert hb.BlockConfig.from_dict(config.to_dict()) == config


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        hb.preset("sas").width = 3  # type: ignore[misc]


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "heads": ({"width": 64, "heads": 7}, ["heads", "7", "64", "4 or 8"]),
    "norm by name": ({"norm": "rms"}, ["block: norm", "RMSNorm, ", "'rms'"]),
    "no norm at all": ({"norm": None}, ["block: norm", "NoNorm", "None"]),
    "attention by name": ({"attention": "softmax"}, ["block: attention", "'softmax'"]),
    "branch as number": ({"mlp_branch": 0.5}, ["block: mlp_branch", "Branch", "0.5"]),
    "zero width": ({"width": 0}, ["width", "0"]),
    "boolean heads": ({"heads": True}, ["heads", "True"]),
    "unknown field": ({"widht": 64}, ["widht", "width"]),
    "layout": ({"layout": "paralel"}, ["layout", "parallel"]),
    "grouped identity": (
        {"key_value_heads": 2, "attention": Attention(value=Identity())},
        ["key_value_heads", "identity", "4"],
    ),
    "grouped one-matrix": (
        {"key_value_heads": 2, "attention": Attention(query_key="one-matrix")},
        ["one-matrix"],
    ),
    "parallel with an MLP skip": ({"layout": "parallel"}, ["mlp_branch", "parallel"]),
    "post without norm": (
        {"norm_placement": "post", "norm": NoNorm()},
        ["norm_placement", "no-norm"],
    ),
    "parallel post": (
        {"layout": "parallel", "mlp_branch": Branch(skip=0.0), "norm_placement": "post"},
        ["norm_placement", "parallel"],
    ),
    "zero queries normed": (
        {"attention": Attention(query=Dense(init="zeros"), query_key_norm=RMSNorm())},
        ["query", "norm"],
    ),
    "rotary one-matrix": (
        {"position": RotaryPosition(), "attention": Attention(query_key="one-matrix")},
        ["position", "one-matrix"],
    ),
    "silent branch": (
        {"mlp_branch": Branch(skip=0.0, gain=0.0, trainable=True)},
        ["mlp_branch", "no skip", "gain=0"],
    ),
    "two silent branches in parallel": (
        {
            "layout": "parallel",
            "attention_branch": Branch(skip=0.0, gain=0.0, trainable=True),
            "mlp_branch": Branch(skip=0.0, gain=0.0, trainable=True),
        },
        ["attention_branch", "mlp_branch", "gain=0"],
    ),
    "shaping at its centre": (
        {
            "attention": Attention(query=Dense(init="zeros"), shaping=Shaping(alpha=0.0)),
            "attention_branch": Branch(skip=0.0),
        },
        ["attention_branch", "no skip", "shaping", "zero query"],
    ),
    "zero input under a flat leaky relu": (
        {"mlp": MLP(activation="leaky-relu", negative_slope=0.0, input=Dense(init="zeros"))},
        ["mlp", "zero input", "leaky-relu"],
    ),
    "no gain of nothing": (
        {
            "mlp": MLP(output=Dense(init="zeros")),
            "mlp_branch": Branch(gain=0.0, trainable=True),
        },
        ["mlp_branch", "zero output", "gain=0"],
    ),
    "odd rotary": (
        {"width": 12, "heads": 4, "position": RotaryPosition()},
        ["position", "even", "3"],
    ),
    "the first layer's values without values": (
        {"sub_blocks": "mlp", "attention": Attention(value_residual=Branch())},
        ["attention: value_residual", "sub_blocks='mlp'", "leave value_residual out"],
    ),
}


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(hb.ArgumentError) as caught:
        hb.BlockConfig().replace(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hb.preset("sas-q"), ["sas-q", "sas-p"]),
        (lambda: Dense(init="ones"), ["init", "ones"]),
        (lambda: Shaping(alpha=float("nan")), ["alpha", "nan"]),
        (lambda: MLP(activation="tanh"), ["activation", "relu"]),
        (lambda: MLP(gated="false"), ["mlp: gated", "true or false", "'false'"]),  # type: ignore[arg-type]
        (lambda: BlockPart.from_dict({"kind": "norm"}), ["norm"]),
        (lambda: hb.build("sas", depth=0), ["depth", "0"]),
        (lambda: hb.build("sas", task="translation"), ["task", "causal-lm"]),
        (lambda: Identity().build(4, 6), ["4 inputs", "6 outputs"]),
    ],
)
def test_bad_parts_are_refused_by_name(make: Any, words: list[str]) -> None:
    with pytest.raises(hb.ArgumentError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


SLOTS: dict[str, dict[str, Any]] = {
    "layer norm": {"norm": LayerNorm(), "final_norm": LayerNorm()},
    "dyt": {"norm": DyT()},
    "no norm": {"norm": NoNorm()},
    "sinusoidal": {"position": SinusoidalPosition()},
    "no position": {"position": NoPosition()},
    "learned": {"position": LearnedPosition()},
    "grouped": {"key_value_heads": 2},
    "linear scores": {"attention": Attention(scores="linear")},
    "one matrix": {
        "position": LearnedPosition(),
        "attention": Attention(query_key="one-matrix"),
    },
    "query-key norm": {"attention": Attention(query_key_norm=RMSNorm())},
    "biases": {"attention": Attention(query=Dense(bias=True))},
    "orthogonal reparametrised": {
        "attention": Attention(value=Reparametrised(trainable_gains=True))
    },
    "swiglu": {"mlp": MLP(activation="silu", gated=True)},
    "leaky": {"mlp": MLP(activation="leaky-relu", negative_slope=0.3)},
    "small branch": {"mlp_branch": Branch(gain=0.5, trainable=True, over_sqrt_depth=True)},
}


@pytest.mark.parametrize("fields", SLOTS.values(), ids=SLOTS)
def test_every_slot_builds_trains_and_is_causal(fields: dict[str, Any]) -> None:
    model = hb.build("pre-ln", depth=2, width=16, heads=4, vocab_size=11, context=8, **fields)
    ids = torch.randint(0, 11, (2, 8))
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    assert torch.allclose(model(ids).logits[:, :-1], model(changed).logits[:, :-1], atol=1e-6)


@pytest.mark.parametrize("make", [lambda: Attention(value="identity"), lambda: MLP(input=None)])
def test_a_slot_takes_parts_of_its_kind_only(make: Callable[[], object]) -> None:
    with pytest.raises(hb.ArgumentError, match=r"(value|input): expected one of .*Identity, .*got"):
        make()


@pytest.mark.parametrize("block", [None, 3, [], [["sas"]]])
def test_a_block_is_a_name_or_a_configuration(block: object) -> None:
    with pytest.raises(hb.ArgumentError, match=r"block: expected a preset's name or a BlockConfig"):
        hb.build(block)  # type: ignore[arg-type]


def test_a_reparametrised_normal_has_entries_of_one_over_the_root_of_the_inputs() -> None:
    torch.manual_seed(0)
    assert float(Reparametrised(init="normal").build(256, 64).initial.std()) == pytest.approx(
        1 / 16, rel=0.03
    )
    given = Reparametrised(init="normal", std=0.5).build(256, 64)
    assert float(given.initial.std()) == pytest.approx(0.5, rel=0.03)
