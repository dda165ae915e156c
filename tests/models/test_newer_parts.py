"""Newer neighbours as parts: each equals an independent witness, and meets every law of a part."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.activations import ACT2FN
from transformers.models.qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

import hessblocks as hb
from hessblocks.blocks import (
    MLP,
    Attention,
    Context,
    Reparametrised,
    RMSNorm,
    RotaryPosition,
    Shaping,
    with_slots,
)
from hessblocks.blocks import Dense as DenseWeight
from hessblocks.conventions import PARTS
from hessblocks.errors import ArgumentError
from hessblocks.training.following import gain_values
from tests.curvature.cases import Case, padded_batches
from tests.curvature.oracle import Dense, check_partition, dense
from tests.models.cases import ids, perturbed

TYPED: dict[str, list[str]] = {
    "relu squared": ["mlp.activation=relu-squared"],
    "gainless norms": [
        *(f"{name}.gain=none" for name in ("norm", "final_norm")),
        *("attention.query=dense", "attention.query_key_norm=rms"),
        "attention.query_key_norm.gain=none",
    ],
    "gate": ["attention.gate=dense", "attention.gate.bias=true"],
    "gate a head": ["attention.gate=dense", "attention.gate_per=head"],
    "window": ["attention.window=2"],
    "window, shaped": ["attention.window=2", "attention.shaping=shaping"],
    "branch norms": [
        *("attention_branch.norm=rms", "mlp_branch.norm=layer"),
        *("mlp_branch.gain=0.5", "mlp_branch.trainable=true"),
    ],
    "softcaps": ["attention.softcap=1.5", "logit_softcap=2"],
    "softcap, shaped": ["attention.softcap=1.5", "attention.shaping=shaping"],
    "alibi": ["position=alibi"],
    "alibi, shaped": ["position=alibi", "attention.shaping=shaping", "attention.window=3"],
    "derf": ["norm=derf", "attention_branch.norm=derf"],
    "embedding skip": [
        *("embedding_skip=branch", "embedding_skip.gain=0.9", "embedding_skip.skip=0.2"),
        *("embedding_skip.trainable=true", "embedding_skip.trainable_skip=true"),
    ],
    "value residual": [
        *("attention.value_residual=branch", "attention.value_residual.gain=0.5"),
        *("attention.value_residual.trainable=true", "attention.value_residual.skip=0.5"),
        *(
            "attention.value_residual.trainable_skip=true",
            "embedding_skip=branch",
        ),
    ],
    "sink": ["attention.sink=sink", "attention.sink.score=0.5", "attention.window=3"],
    "sink, shaped": ["attention.sink=sink", "attention.shaping=shaping"],
    "gate, shaped": ["attention.gate=reparametrised", "attention.shaping=shaping"],
}
"""Slots of each part, as they are typed."""

LONG = ("window, shaped", "softcap, shaped", "sink, shaped", "gate, shaped", "alibi, shaped")
"""Made of two parts that have cases of their own."""
FEW = ("gainless norms", "softcaps", "sink")
"""Whose dense matrices are assembled every day; each takes a second."""
parts = pytest.mark.parametrize("name", TYPED)
DECODED = [
    pytest.param(
        *(static, preset, name),
        id=f"{'static' if static else 'dynamic'}-{preset}-{name}",
        marks=[pytest.mark.slow]
        * (name in LONG or preset == "parallel+sas-p" or (static and preset == "sas-p")),
    )
    for name in TYPED
    for preset in ("pre-ln", "sas-p", "parallel+sas-p")
    for static in (False, True)
]


def model_of(name: str, preset: str = "pre-ln", **fields: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return perturbed(preset, slots=TYPED[name], **fields)


@parts
def test_a_saved_model_is_loaded_as_it_was(name: str, tmp_path) -> None:
    model, tokens = model_of(name), ids(2, 6)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert loaded.config.block == model.config.block
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize(("static", "preset", "name"), DECODED)
def test_decoding_with_a_cache_equals_the_whole_pass(name: str, preset: str, static: bool) -> None:
    model, tokens = model_of(name, preset), ids(2, 10)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, :3] = 0
    expected = model(tokens, attention_mask=mask).logits
    kept: Any = StaticCache(config=model.config, max_cache_len=20) if static else DynamicCache()
    for start, stop in ((0, 5), (5, 8), (8, 9), (9, 10)):
        piece = {"attention_mask": mask[:, :stop], "past_key_values": kept, "use_cache": True}
        found = model(tokens[:, start:stop], **piece).logits
        real = mask[:, start:stop].bool()
        assert torch.allclose(found[real], expected[:, start:stop][real], atol=1e-5)


@cache
def case_of(name: str) -> Case:
    sizes = {"depth": 2, "width": 4, "heads": 2, "mlp_width": 6, "vocab_size": 7, "context": 6}
    model = model_of(name, **sizes).double()
    model.set_attn_implementation("eager")  # without a fused kernel, which curvature would warn of
    return Case(model=model, batches=padded_batches())


@cache
def assembled(name: str) -> Dense:
    return dense(case_of(name))


@parts
def test_groups_know_every_parameter(name: str) -> None:
    case = case_of(name)
    groups = hb.parameter_groups(case.model)
    check_partition(groups.values(), dict(case.model.named_parameters()))
    assert "other" not in {group.role for group in groups.values()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in TYPED]
)
@pytest.mark.parametrize("part", PARTS)
def test_products_are_those_of_the_dense_matrix(name: str, part: str) -> None:
    case, truth = case_of(name), assembled(name)
    operators = {"full": hb.Hessian, "outer": hb.OuterProduct, "functional": hb.Functional}
    matrix = getattr(truth, part)
    columns = torch.randn(len(matrix), 2, dtype=matrix.dtype)
    found = operators[part](case.problem) @ columns
    torch.testing.assert_close(found, matrix @ columns, rtol=1e-9, atol=1e-10)


def test_relu_squared_is_that_of_transformers() -> None:
    made = MLP(activation="relu-squared").build(6, 10)
    x = torch.randn(3, 6)
    hidden: Tensor = ACT2FN["relu2"](x @ made.input.weight.T)
    assert torch.allclose(made(x), hidden @ made.output.weight.T)


def test_a_gainless_norm_has_rows_of_length_one_an_entry_and_no_parameter() -> None:
    norm, x = RMSNorm(gain=None).build(6), 5 * torch.randn(3, 6)
    assert not list(norm.parameters())
    assert torch.allclose(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-8).sqrt())
    assert RMSNorm.from_dict(RMSNorm(gain=None).to_dict()) == RMSNorm(gain=None)


def test_a_gate_on_each_entry_is_that_of_qwen3_next() -> None:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    config = Qwen3NextConfig(hidden_size=16, attn_implementation="eager", **sizes)
    theirs, x = Qwen3NextAttention(config, layer_idx=3), torch.randn(2, 6, 16)
    part = Attention(query_key_norm=RMSNorm(eps=1e-6), gate=DenseWeight())
    ours = part.build(width=16, heads=4, key_value_heads=2, layer=0)
    with torch.no_grad():
        fused = torch.stack([w.weight.unflatten(0, (4, 4)) for w in (ours.query, ours.gate)], dim=1)
        theirs.q_proj.weight.copy_(fused.flatten(0, 2))
        for mine, name in (("key", "k"), ("value", "v"), ("projection", "o")):
            getattr(theirs, f"{name}_proj").weight.copy_(getattr(ours, mine).weight)
    rotation = RotaryPosition().rotation(torch.arange(6)[None], 4, x.dtype)
    mask = torch.full((6, 6), -torch.inf).triu(1)[None, None]
    expected = theirs(x, (rotation[0][:, 0], rotation[1][:, 0]), mask)[0]
    assert torch.allclose(ours(x, Context(rotation=rotation)), expected, atol=1e-6)


@pytest.mark.parametrize("per", ["entry", "head"])
@pytest.mark.parametrize("shaping", [None, Shaping(alpha=0.7, gamma=0.3)], ids=["plain", "shaped"])
def test_a_gate_multiplies_what_each_head_returns(per: str, shaping: Shaping | None) -> None:
    part = Attention(gate=DenseWeight(std=1.0, bias=True), gate_per=per, shaping=shaping)
    made, x = part.build(width=8, heads=2, key_value_heads=2, layer=0), torch.randn(3, 5, 8)
    matrix = made.matrix(x, Context())
    values, gates = made.value(x), (x @ made.gate.weight.T + made.gate.bias).sigmoid()
    heads = []
    for head in range(2):
        own = slice(4 * head, 4 * head + 4)
        gate = gates[..., own] if per == "entry" else gates[..., head : head + 1]
        heads.append(gate * (matrix[:, head] @ values[..., own]))
    expected = torch.cat(heads, dim=-1) @ made.projection.weight.T
    assert torch.allclose(made(x, Context()), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (TYPED["gate"], "does not cover a gate on the heads' outputs"),
        (TYPED["gate a head"], "does not cover a gate on the heads' outputs"),
        (["attention.softcap=1.5"], "does not cover a softcap of scores"),
        (["attention.sink=sink"], "does not cover a softcap of scores or a sink"),
        (["logit_softcap=1e9"], "does not cover a softcap of logits"),
        (["attention.value_residual=branch"], "does not cover a value residual"),
    ],
)
def test_closed_forms_refuse_what_they_do_not_cover_by_name(slots: list[str], words: str) -> None:
    model = perturbed("pre-ln", slots=slots, depth=1, width=8, heads=2)
    for exact in (hb.exact_attention_curvature, hb.exact_last_block):
        with pytest.raises(hb.ArgumentError, match=words):
            exact(model, ids(1, 5))


def test_heads_of_a_gate_are_groups_and_its_gains_have_names_of_their_own() -> None:
    groups = hb.parameter_groups(case_of("gate a head").model, level="head")
    assert groups["layers.1.attention.gate.head.1"].size == 4
    slots = {
        "attention.gate": Reparametrised(trainable_gains=True),
        "mlp": MLP(gated=True, input=Reparametrised(trainable_gains=True)),
    }
    found = [row["quantity"] for row in gain_values(perturbed("pre-ln", slots=slots, depth=1))]
    assert sorted(found) == [
        f"{gain}_{of}" for gain in ("alpha", "beta") for of in ("G", "gate", "in")
    ]


@pytest.mark.bad_input
def test_what_excludes_each_other_is_refused() -> None:
    block = hb.preset("pre-ln", width=8, heads=2)
    for slots, message in (
        (["mlp.activation=relu-squared", "mlp.input.init=zeros"], "a zero input and activation="),
        (["attention.gate_per=head"], "gate_per='head' and no gate exclude each other"),
        (
            ["attention.gate=identity", "attention.gate_per=head"],
            "a square gate and gate_per='head' exclude each other",
        ),
        (["embedding_skip=branch", "embedding_skip.skip=0"], "embedding_skip: skip=0 and"),
        (["attention.softcap=0"], "softcap: expected a number above 0, got 0"),
        (["attention.scores=linear", "attention.sink=sink"], "scores='linear' and sink exclude"),
        (["norm=layer", "norm.gain=none"], r"norm\.gain: expected a number, got 'none'"),
    ):
        with pytest.raises(hb.ArgumentError, match=message):
            with_slots(block, slots)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", ["alibi", "alibi, shaped", "sink, shaped", "softcap, shaped"])
def test_generation_behind_padding_equals_that_of_the_row_alone(name: str, static: bool) -> None:
    model, tokens = model_of(name), ids(2, 6)
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    if static:
        settings |= {"cache_implementation": "static", "disable_compile": True}
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    found = model.generate(tokens, attention_mask=mask, **settings)
    alone = model.generate(tokens[1:, 2:], attention_mask=mask[1:, 2:], **settings)
    assert torch.equal(found[1, 2:], alone[0])
    if name.startswith("alibi"):
        given = {"position_ids": 2 * mask.cumsum(1), "past_key_values": DynamicCache()}
        with pytest.raises(ArgumentError, match="counts the unpadded tokens itself"):
            model(tokens, attention_mask=mask, use_cache=True, **given)


def test_a_row_that_may_attend_to_nothing_near_does_not_look_beyond_the_window() -> None:
    torch.manual_seed(0)
    model = hb.build(
        "pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=9, slots=["attention.window=3"]
    )
    tokens = torch.randint(20, (1, 9))
    other = tokens.clone()
    other[0, :4] = (other[0, :4] + 1) % 20
    mask = torch.zeros(1, 1, 9, 9).masked_fill(torch.ones(9, 9).triu(1).bool(), torch.finfo().min)
    mask[..., -1, 4:] = torch.finfo().min
    with torch.no_grad():
        last = [model(t, attention_mask=mask).logits[0, -1] for t in (tokens, other)]
    assert torch.equal(*last)
    with pytest.raises(ArgumentError, match="four axes"):
        model(tokens, attention_mask=mask.int())
