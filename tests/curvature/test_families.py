"""The closed form on Hugging Face models of every kind that it knows, against dense autodiff."""

from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.conventions import PARTS
from hessblocks.curvature.exact.families import FAMILIES
from hessblocks.errors import ArgumentError
from tests.curvature.architectures import _GROUPED, _SIZES, CAUSAL, MASKED, case_of, model_of
from tests.curvature.cases import Case, padded_batches, stir, tokens
from tests.curvature.oracle import Dense, dense
from tests.curvature.test_last_block import norm_places
from tests.curvature.test_last_layer import behind

NAMES = {
    "gpt2": "gpt2",
    "gpt-neox": "gpt_neox",
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "gemma": "gemma",
    "opt": "opt",
    "phi": "phi",
    "phi with norms": "phi",
    "bert": "bert",
    "roberta": "roberta",
    "modernbert": "modernbert",
    "vit": "vit",
}
"""Our names of tiny models, and their kinds."""
MADE = {
    **CAUSAL,
    "phi": lambda: hf.PhiConfig(**{**_SIZES, "num_attention_heads": 2}),
    **MASKED,
    "modernbert": lambda: hf.ModernBertConfig(
        **{**_SIZES, "num_hidden_layers": 2}, local_attention=4, cls_token_id=0, sep_token_id=0
    ),
    "phi with norms": lambda: hf.PhiConfig(
        **{**_SIZES, "num_attention_heads": 2}, qk_layernorm=True
    ),
    "mistral": lambda: hf.MistralConfig(**_GROUPED, sliding_window=2),
}
SEPARATE = ("q_proj", "k_proj", "v_proj")


class ExactNorm(nn.Module):
    """RMSNorm in the precision of its input; transformers' computes in single precision inside."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps
        self.shift = 1.0 if "Gemma" in type(norm).__name__ else 0.0

    def forward(self, x: Tensor) -> Tensor:
        root = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * root * (self.weight + self.shift)


def lifted(model: nn.Module) -> nn.Module:
    """The model without casts to single precision."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, ExactNorm(child))
    return model


def made(name: str) -> Any:
    torch.manual_seed(0)
    if name == "vit":
        return model_of(name)
    if name in MASKED:
        return stir(hf.AutoModelForMaskedLM.from_config(MADE[name](), attn_implementation="sdpa"))
    return stir(hf.AutoModelForCausalLM.from_config(MADE[name](), attn_implementation="sdpa"))


@pytest.fixture(autouse=True)
def exact_rotation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """ModernBERT turns queries and keys in single precision; here in that of its weights."""
    if "as_far_as" not in request.node.name:
        turned = hf.models.llama.modeling_llama.apply_rotary_pos_emb
        monkeypatch.setattr(
            hf.models.modernbert.modeling_modernbert, "apply_rotary_pos_emb", turned
        )


@cache
def solved(name: str) -> tuple[Case, Dense]:
    case = Case(model=lifted(made(name)), batches=padded_batches()[:1])
    if name == "vit" or name in MASKED:
        case = replace(case_of(name), model=case.model)
    return case, dense(case)


def rows_of(case: Case, truth: Dense, group: str) -> Tensor:
    """Places of a group of the attention: by head, (inputs, outputs), bias last."""
    model = case.model
    family = FAMILIES[model.config.model_type]
    layers = model.get_submodule(family.layers)
    stem = f"{family.layers}.{len(layers) - 1}.{family.attention}"
    heads = model.config.num_attention_heads
    if group == "projection":
        if family.apart:
            stem = stem.removesuffix(f".{family.attention}")
        return behind(case, truth, f"{stem}.{family.write}")
    if group in ("query_norm", "key_norm"):
        stem = f"{stem}.{family.norms[group == 'key_norm']}"
        return norm_places(truth, stem, model.get_submodule(stem))
    if len(family.read) == 3:
        name = family.read[("query", "key", "value").index(group)]
        module = model.get_submodule(f"{stem}.{name}")
        index = behind(case, truth, f"{stem}.{name}").view(-1, module.out_features)
        if group != "query":
            heads = getattr(model.config, "num_key_value_heads", None) or heads
    else:
        (name,) = family.read
        module = model.get_submodule(f"{stem}.{name}")
        index = behind(case, truth, f"{stem}.{name}").view(-1, 3 * model.config.hidden_size)
        role = ("query", "key", "value").index(group)
        apart = index.unflatten(1, (heads, 3, -1) if family.interleaved else (3, heads, -1))
        index = apart.select(2 if family.interleaved else 1, role).flatten(1)
    return index.unflatten(1, (heads, -1)).transpose(0, 1).reshape(-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", PARTS)
def test_every_block_of_the_last_layer_equals_dense_autodiff(name: str, part: str) -> None:
    case, truth = solved(name)
    found = hb.exact_last_block(case.model, case.batches[0], case.loss)
    rows = {
        group: (rows_of if group in found.attention.groups else behind)(case, truth, group)
        for group in found.groups
        if not (group == "unembedding" and found.tied)
    }
    assert {"query", "key", "value", "projection"} < set(rows)
    matrix = getattr(truth, part)
    every = torch.cat(list(rows.values()))
    whole = truth.full[every][:, every].norm()
    for row, column in combinations_with_replacement(rows, 2):
        expected = matrix[rows[row]][:, rows[column]]
        scale = expected.norm() if expected.norm() > 1e-3 * whole else 1e-3 * whole
        block = found.block(row, column, part)
        assert (block.dense() - expected).norm() <= 1e-12 * scale, (row, column)
        assert block.frobenius_norm() == pytest.approx(
            expected.norm().item(), rel=1e-9, abs=1e-12 * float(whole)
        )


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_packed_sequences_equal_themselves_apart(name: str) -> None:
    """Two sequences in one row, told apart by their positions, against one a row."""
    model = lifted(made(name))
    ids = tokens(2)
    length = ids.shape[1]
    labels = ids.clone()
    labels[:, 0] = -100
    places = torch.arange(length).repeat(2)[None]
    packed = {"input_ids": ids.view(1, -1), "labels": labels.view(1, -1), "position_ids": places}
    found = hb.exact_last_block(model, packed)
    expected = hb.exact_last_block(model, {"input_ids": ids, "labels": labels})
    for part in PARTS:
        ours, theirs = found.dense(part), expected.dense(part)
        assert (ours - theirs).norm() <= 1e-12 * theirs.norm()


def test_packed_sequences_of_a_model_that_mixes_them_are_refused() -> None:
    """OPT's positions come from its mask; rows of several sequences are one sequence to it."""
    places = torch.arange(2).repeat(2)[None]
    with pytest.raises(ArgumentError, match="attends otherwise"):
        hb.exact_last_block(made("opt"), {"input_ids": tokens(1), "position_ids": places})


@pytest.mark.parametrize("name", ["modernbert", "mistral"])
def test_a_window_that_hides_tokens(name: str) -> None:
    """Longer than the window, so that the first token is out of the last one's sight."""
    case, _ = solved(name)
    ids = tokens(2).repeat(1, 2)
    batch = {"input_ids": ids}
    if name in MASKED:
        batch["labels"] = torch.where(torch.rand(ids.shape) < 0.5, ids, -100)
    found = hb.exact_attention_curvature(case.model, batch, case.loss)
    assert not found.layer.permitted[0, -1, 0]
    truth = dense(replace(case, batches=[batch]))
    for group in ("query", "key", "value"):
        rows = rows_of(case, truth, group)
        expected = truth.full[rows][:, rows]
        ours = found.block(group, group).dense()
        assert (ours - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("name", ["llama", "gemma", "qwen2", "qwen3", "modernbert"])
def test_models_that_cast_inside_agree_as_far_as_they_go(name: str) -> None:
    """In double precision as they come: their norms round to single precision inside, also in autodiff."""
    case = case_of(name) if name in MASKED else Case(model=made(name), batches=padded_batches()[:1])
    truth = dense(case)
    found = hb.exact_last_block(case.model, case.batches[0], case.loss)
    for group in ("query", "key", "value", "projection"):
        rows = rows_of(case, truth, group)
        expected = truth.full[rows][:, rows]
        ours = found.block(group, group).dense()
        assert (ours - expected).norm() <= 1e-6 * expected.norm(), group


@pytest.mark.parametrize("name", ["gemma2", "phi3", "bloom"])
def test_a_kind_that_is_not_known_is_refused_by_name(name: str) -> None:
    model = model_of(name)
    with pytest.raises(ArgumentError) as caught:
        hb.exact_last_block(model, {"input_ids": tokens(1)})
    assert f"{model.config.model_type!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gemma3", "final_logit_softcapping", 30.0),
        ("opt", "do_layer_norm_before", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ],
)
def test_a_configuration_that_is_not_covered_is_refused_by_its_field(
    name: str, field: str, value: object
) -> None:
    config = MADE[name]()
    setattr(config, field, value)
    model = stir(hf.AutoModelForCausalLM.from_config(config))
    with pytest.raises(ArgumentError, match=f"expects {field}=.*; use hessblocks.Hessian"):
        hb.exact_last_block(model, {"input_ids": tokens(1)})


def test_a_description_that_is_wrong_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and queries swapped would be another attention."""
    family = FAMILIES["llama"]
    wrong = type(family)(**{**vars(family), "read": ("q_proj", "v_proj", "k_proj")})
    monkeypatch.setitem(FAMILIES, "llama", wrong)
    with pytest.raises(ArgumentError, match="than the closed form supposes"):
        hb.exact_last_block(made("llama"), {"input_ids": tokens(1)})


def test_another_network_behind_is_noticed() -> None:
    """One that reads its neighbours, so that it does not act on each token by itself."""
    model = made("llama")
    layer = model.model.layers[-1]
    own = layer.mlp.forward
    layer.mlp.forward = lambda x: own(x + x.mean(1, keepdim=True))
    with pytest.raises(ArgumentError, match="than the closed form supposes"):
        hb.exact_last_block(model, {"input_ids": tokens(2)})


def test_a_norm_that_feeds_attention_and_network_is_one_group() -> None:
    """Phi's attention and MLP read one norm: it moves the loss by both ways."""
    case, _ = solved("phi")
    found = hb.exact_last_block(case.model, case.batches[0])
    norms = [group for group in found.groups if "input_layernorm" in group]
    assert norms == [f"model.layers.0.input_layernorm.{own}" for own in ("weight", "bias")]
    assert "forward" not in vars(case.model.model.layers[-1].self_attn)


def test_a_key_block_that_is_out_of_reach_is_refused_with_its_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, _ = solved("llama")
    monkeypatch.setattr("hessblocks.theory.hessian.ALWAYS", 0)
    found = hb.exact_attention_curvature(case.model, case.batches[0], memory_limit=64)
    assert found.block("query", "query").frobenius_norm() > 0
    with pytest.raises(
        ArgumentError, match=r"key: rotary positions or norms .* hold \d+ × \d+ × \d+ numbers"
    ):
        found.block("key", "key").frobenius_norm()
