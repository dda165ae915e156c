"""Every pair of slots, in every layout, either trains or is refused with a reason that names
both."""

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.blocks.block import Block
from hessblocks.blocks.gains import Branch, Shaping, Sink
from hessblocks.blocks.kernels import Context
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import Derf, DyT, LayerNorm, NoNorm, RMSNorm
from hessblocks.blocks.positions import ALiBiPosition, RotaryPosition
from hessblocks.blocks.presets import with_start
from hessblocks.blocks.weights import Dense, Identity, Reparametrised
from hessblocks.models.attention_functions import with_bias

WIDTH, TOKENS = 8, 6
BASES: dict[str, dict[str, Any]] = {
    "sequential": {},
    "post": {"norm_placement": "post"},
    "parallel": {"layout": "parallel", "mlp_branch": Branch(skip=0.0)},
}
Choice = tuple[str, dict[str, Any]]
"""Words of which a refusal must show one, joined by |, and the fields of the choice."""

SLOTS: dict[str, list[Choice]] = {
    "norm": [
        ("norm", {"norm": norm})
        for norm in (LayerNorm(), DyT(), Derf(), NoNorm(), RMSNorm(gain=None))
    ],
    "first_norm": [("first_norm", {"first_norm": LayerNorm()})],
    "mlp_norm": [("mlp_norm|norm", {"mlp_norm": norm}) for norm in (LayerNorm(), NoNorm())],
    "sub_blocks": [
        ("sub_blocks", {"sub_blocks": "mlp"}),
        ("sub_blocks", {"sub_blocks": "attention"}),
    ],
    "head_width": [("head_width", {"head_width": 8}), ("head_width", {"head_width": 12})],
    "position": [
        ("position", {"position": RotaryPosition()}),
        ("position", {"position": RotaryPosition(share=0.5)}),
        ("position", {"position": ALiBiPosition()}),
    ],
    "key_value_heads": [("key_value_heads|grouped", {"key_value_heads": 1})],
    "mlp_width": [("mlp_width", {"mlp_width": WIDTH})],
    "scores": [("scores", {"attention.scores": "linear"})],
    "query_key": [("query_key='one-matrix'", {"attention.query_key": "one-matrix"})],
    "window": [("window", {"attention.window": 2})],
    "temperature": [("temperature", {"attention.temperature": 2.0})],
    "softcap": [("softcap", {"attention.softcap": 1.5})],
    "embedding_skip": [
        ("embedding_skip", {"embedding_skip": Branch(skip=0.3, trainable_skip=True, gain=0.9)})
    ],
    "value_residual": [
        (
            "value_residual",
            {
                "attention.value_residual": Branch(
                    skip=0.5, trainable_skip=True, gain=0.5, trainable=True
                )
            },
        )
    ],
    "sink": [("sink", {"attention.sink": Sink(score=0.5)})],
    "shaping": [
        ("shaping|centre", {"attention.shaping": shaping})
        for shaping in (
            Shaping(),
            Shaping(trainable=False),
            Shaping(alpha=0.0),
            Shaping(alpha=0.0, beta=0.0, gamma=0.0),
            Shaping(beta=0.0, centred=False),
        )
    ],
    "query_key_norm": [
        ("norm", {"attention.query_key_norm": norm})
        for norm in (RMSNorm(gain=None), LayerNorm(), DyT())
    ],
    "query_norm": [("query_norm|norm", {"attention.query_norm": RMSNorm(gain=0.0)})],
    **{
        name: [
            (name + ("|queries|keys" if name in ("query", "key") else ""), {f"attention.{name}": w})
            for w in weights
        ]
        for name, weights in {
            "query": [
                Dense(init="zeros"),
                Dense(bias=True),
                Identity(),
                Reparametrised(),
                Reparametrised(initial_gain=0.0),
            ],
            "key": [Dense(init="zeros"), Identity(), Reparametrised(init="identity")],
            "value": [
                Dense(init="orthogonal"),
                Dense(init="zeros"),
                Identity(),
                Reparametrised(init="normal"),
                Reparametrised(init="identity", trainable_gains=True),
                Reparametrised(initial_gain=0.5, update_gain=0.2),
                Reparametrised(initial_gain=0.0, trainable_gains=True),
            ],
            "first_value": [Identity(), Dense(init="orthogonal")],
            "projection": [
                Dense(init="tied-orthogonal"),
                Dense(init="zeros"),
                Identity(),
                Reparametrised(init="tied-orthogonal"),
                Reparametrised(initial_gain=0.0),
            ],
            "gate": [Dense(init="zeros"), Identity(), Reparametrised(initial_gain=0.0)],
        }.items()
    },
    "gate_per": [("gate", {"attention.gate": Dense(), "attention.gate_per": "head"})],
    "attention_branch": [
        ("attention_branch|skip", {"attention_branch": branch})
        for branch in (
            Branch(skip=0.0),
            Branch(skip=0.0, trainable_skip=True, gain=0.5, trainable=True),
            Branch(gain=0.0, trainable=True),
            Branch(norm=RMSNorm()),
            Branch(skip=0.0, norm=LayerNorm()),
            Branch(norm=DyT()),
            Branch(norm=RMSNorm(gain=0.0)),
        )
    ],
    "mlp_branch": [
        ("mlp_branch", {"mlp_branch": branch})
        for branch in (
            Branch(skip=0.0, gain=0.1),
            Branch(skip=0.0, gain=0.0, trainable=True),
            Branch(over_sqrt_depth=True, trainable=True),
            Branch(skip=0.0, norm=RMSNorm(gain=None)),
            Branch(norm=RMSNorm(gain=0.0), gain=0.5),
        )
    ],
    "activation": [
        ("mlp", {"mlp.activation": "gelu", "mlp.gated": True}),
        ("mlp", {"mlp.activation": "leaky-relu", "mlp.negative_slope": 0.2}),
        ("mlp", {"mlp.activation": "silu"}),
        ("mlp", {"mlp.activation": "relu-squared"}),
        ("mlp", {"mlp.activation": "gelu-tanh"}),
        ("mlp", {"mlp.activation": "gelu", "mlp.input": Dense(init="zeros")}),
    ],
    "mlp.input": [
        ("input", {"mlp.input": w})
        for w in (Dense(init="zeros"), Identity(), Reparametrised(initial_gain=0.0))
    ],
    "mlp.output": [("output", {"mlp.output": w}) for w in (Dense(init="zeros"), Reparametrised())],
}


def config(*choices: dict[str, Any]) -> hb.BlockConfig:
    fields = {name: value for choice in choices for name, value in choice.items()}
    parts = {"attention": hb.BlockConfig().attention, "mlp": MLP()}
    for name in [name for name in fields if "." in name]:
        part, slot = name.split(".")
        parts[part] = parts[part].replace(**{slot: fields.pop(name)})
    return hb.BlockConfig().replace(width=WIDTH, heads=2, **parts, **fields)


def made(*choices: dict[str, Any]) -> hb.BlockConfig | str:
    """The block, or why it is refused."""
    try:
        return config(*choices)
    except hb.ArgumentError as error:
        return str(error)


def outputs(blocks: nn.ModuleList, block: hb.BlockConfig, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])[None]
    bias = block.position.bias(places, places, block.heads, x.dtype)
    near = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril().triu(-1)
    context = Context(
        rotation=block.position.rotation(places, block.resolved_head_width, x.dtype),
        mask=with_bias(None, bias, causal=True),
        windows={2: with_bias(near, bias, causal=True)},
        aligned=bias is None,
    )
    x = blocks[0].widen(x)
    for layer in blocks:
        x = layer(x, context)
    return blocks[0].split(x)["x"]


def check_it_trains(block: hb.BlockConfig, least_steps: int = 1) -> None:
    """Every parameter has a gradient within three steps, which end early once it has."""
    torch.manual_seed(0)
    block = with_start(block, "fixed")  # small, so that no rate is too large
    blocks = nn.ModuleList(Block(block, layer, 2) for layer in range(2))
    optimiser = torch.optim.SGD(blocks.parameters(), lr=0.1)
    x, target = torch.randn(2, TOKENS, WIDTH), torch.randn(2, TOKENS, WIDTH)
    trained = {n: p for n, p in blocks.named_parameters() if p.requires_grad}
    alive: set[str] = set()
    for step in range(3):
        optimiser.zero_grad()
        (outputs(blocks, block, x) - target).square().mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained.values())
        alive |= {n for n, p in trained.items() if p.grad is not None and p.grad.any()}
        optimiser.step()
        if alive == trained.keys() and step + 1 >= least_steps:
            break
    assert alive == trained.keys(), f"no gradient: {sorted(trained.keys() - alive)}"
    changed = torch.cat([x[:, :-1], -x[:, -1:]], dim=1)
    before, after = outputs(blocks, block, torch.cat([x, changed])).split(len(x))
    assert torch.allclose(before[:, :-1], after[:, :-1], atol=1e-5)


@pytest.mark.parametrize("slot", SLOTS)
def test_each_choice_works_or_is_refused(slot: str) -> None:
    for (base, fields), (words, choice) in itertools.product(BASES.items(), SLOTS[slot]):
        block = made(fields, choice)
        if isinstance(block, str):
            assert re.search(words, block), f"{base}: {block}"
        else:
            check_it_trains(block)


PAIRED = ("sequential", "parallel")
PAIRS = list(itertools.combinations(SLOTS, 2))
bases = pytest.mark.parametrize("base", PAIRED)
pairs = pytest.mark.parametrize(("one", "other"), PAIRS)


def accepted(base: str, one: str, other: str) -> list[hb.BlockConfig]:
    """Blocks of all choices of two slots that are not refused, whose reasons are looked at."""
    found = []
    for (words, choice), (more_words, another) in itertools.product(SLOTS[one], SLOTS[other]):
        reason = made(BASES[base], choice, another)
        if not isinstance(reason, str):
            found.append(reason)
            continue
        alone = [made(BASES[base], choice), made(BASES[base], another)]
        if not any(isinstance(block, str) for block in alone):
            assert re.search(words, reason), reason
            assert re.search(more_words, reason), reason
        else:
            assert reason in alone or re.search(f"{words}|{more_words}", reason)
    return found


@pytest.mark.parametrize("slot", SLOTS)
def test_each_pair_works_or_is_refused_by_both_names(slot: str) -> None:
    """All choices of a pair for their refusals, in one base; one choice of every fourth pair is
    trained."""
    for number, pair in enumerate(PAIRS):
        if pair[0] == slot:
            blocks = accepted(PAIRED[number % 2], *pair)
            if blocks and number % 4 == 0:
                check_it_trains(blocks[number % len(blocks)])


@pytest.mark.slow  # five thousand blocks
@bases
@pairs
def test_all_choices_of_each_pair_train(base: str, one: str, other: str) -> None:
    for block in accepted(base, one, other):
        check_it_trains(block, least_steps=3)
