"""The closed form on Hugging Face models of every kind that it knows, against dense autodiff."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn.utils import parametrize

import hessblocks as hb
from hessblocks.architectures import ARCHITECTURES
from hessblocks.conventions import PARTS
from hessblocks.curvature.exact.block_hessian import LastBlockHessian
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature.architectures import (
    FAMILY_MODELS,
    MASKED,
    MODELS,
    batch_of,
    model_of,
    without_casts,
)
from tests.curvature.cases import Case, padded_batches, stir, tokens
from tests.curvature.last_layers import check_last_block, compare, places
from tests.curvature.oracle import Dense, dense

EVERYDAY = ("hessblocks, sas-p", "vit", "phi")
"""Models whose last layers are compared every day."""


def lifted(model: nn.Module) -> nn.Module:
    """The model without casts to single precision in its norms."""
    with without_casts(model):
        return model


def made(name: str) -> Any:
    torch.manual_seed(0)
    return stir(FAMILY_MODELS[name]())


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
    model = lifted(made(name))
    batch, loss = batch_of(model)
    case = Case(model=model, batches=[batch], loss=loss)
    if loss == "causal-lm":  # the oracle judges every token that is no padding
        case = replace(case, batches=padded_batches()[:1])
    return case, dense(case)


def rows_of(case: Case, truth: Dense, group: str) -> Tensor:
    """Places of a group in the dense matrix."""
    numbers = {
        id(p): truth.starts[name] + torch.arange(p.numel()).view_as(p)
        for name, p in case.model.named_parameters()
    }
    return places(case.model, group, numbers)


# two to eight seconds each
@pytest.mark.parametrize("name", everyday(MODELS, *EVERYDAY))
def test_every_block_of_the_last_layer_equals_dense_autodiff(name: str) -> None:
    checks = check_last_block(name, MODELS[name])
    assert not [check for check in checks if not check.passed]
    blocks = {check.block for check in checks}
    assert "unembedding, unembedding" in blocks
    if name in FAMILY_MODELS:
        assert {"query, query", "key, value", "projection, unembedding"} < blocks


def test_every_family_is_verified() -> None:
    known = {name for name, architecture in ARCHITECTURES.items() if architecture.behind}
    assert {name.partition(",")[0] for name in FAMILY_MODELS} == known


def test_a_fault_in_one_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LastBlockHessian._with_unembedding
    monkeypatch.setattr(
        LastBlockHessian, "_with_unembedding", lambda self, move, part: own(self, move, "outer")
    )
    failed = {c.block for c in check_last_block("llama", MODELS["llama"]) if not c.passed}
    assert "query, unembedding" in failed
    assert "query, query" not in failed


@pytest.mark.parametrize("name", everyday(["llama", "qwen2"], "qwen2"))
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
    with pytest.raises(ArgumentError, match="attention differs from the closed form"):
        hb.exact_last_block(made("opt"), {"input_ids": tokens(1), "position_ids": places})


@pytest.mark.parametrize("name", everyday(["modernbert", "mistral"], "mistral"))
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
    """In double precision as they come: their norms round to single precision inside, also in
    autodiff."""
    model = made(name)
    batch, loss = batch_of(model)
    batches = padded_batches()[:1] if loss == "causal-lm" else [batch]
    case = Case(model=model, batches=batches, loss=loss)
    truth = dense(case)
    found = hb.exact_last_block(case.model, case.batches[0], case.loss)
    for group in ("query", "key", "value", "projection"):
        rows = rows_of(case, truth, group)
        expected = truth.full[rows][:, rows]
        ours = found.block(group, group).dense()
        assert (ours - expected).norm() <= 1e-6 * expected.norm(), group


@pytest.mark.parametrize("name", ["gemma2", "phi3", "bloom", "falcon, grouped"])
def test_a_kind_that_is_not_known_is_refused_by_name(name: str) -> None:
    model = model_of(name)
    with pytest.raises(ArgumentError) as caught:
        hb.exact_last_block(model, {"input_ids": tokens(1)})
    assert f"{model.config.model_type!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gemma3_text", "final_logit_softcapping", 30.0),
        ("opt", "do_layer_norm_before", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ],
)
def test_a_configuration_that_is_not_covered_is_refused_by_its_field(
    name: str, field: str, value: object
) -> None:
    model = made(name)
    setattr(model.config, field, value)
    with pytest.raises(ArgumentError, match=f"expects {field}=.*; use hessblocks.Hessian"):
        hb.exact_last_block(model, {"input_ids": tokens(1)})


def test_another_head_is_refused_by_name() -> None:
    config = made("bert").config
    model = hf.BertForSequenceClassification(config).double()
    batch = {"input_ids": tokens(2), "labels": torch.tensor([0, 1])}
    with pytest.raises(ArgumentError, match=r"expects cls.predictions .* BertForSequenceClass"):
        hb.exact_last_block(model, batch, "classification")


@pytest.mark.parametrize(
    ("batch", "loss", "words"),
    [
        ({"labels": torch.tensor([0, 2])}, "causal-lm", "input_ids: expected whole numbers"),
        ({"labels": torch.tensor([0, 2])}, "masked-lm", "input_ids: expected whole numbers"),
        ({}, "classification", "labels: expected one for each of the 2 images, got none"),
        ({"labels": torch.tensor([0, 3])}, "classification", "labels: expected 0 to 2 .* 0 to 3"),
    ],
)
def test_images_and_labels_that_do_not_fit(batch: dict[str, Tensor], loss: str, words: str) -> None:
    images = torch.randn(2, 3, 4, 4).double()
    with pytest.raises(ArgumentError, match=words):
        hb.exact_last_block(made("vit"), {"pixel_values": images, **batch}, loss)


@pytest.mark.slow
def test_images_as_a_pair_and_of_another_size() -> None:
    model, labels = made("vit"), torch.tensor([0, 2])
    images = torch.randn(2, 3, 4, 4).double()
    as_dict = {"pixel_values": images, "labels": labels}
    pair, named = (
        hb.exact_last_block(model, batch, "classification").dense()
        for batch in ((images, labels), as_dict)
    )
    assert torch.equal(pair, named)
    larger = {
        "pixel_values": torch.randn(1, 3, 8, 8).double(),
        "labels": labels[:1],
        "interpolate_pos_encoding": True,
    }
    found = hb.exact_last_block(model, larger, "classification")
    assert found.attention.layer.x.shape[1] == 17


def test_classification_of_a_language_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="classification does not fit LlamaForCausalLM"):
        hb.exact_last_block(
            made("llama"),
            {"input_ids": tokens(2), "labels": torch.tensor([0, 1])},
            "classification",
        )


def test_pixels_that_are_not_finite_are_refused() -> None:
    images = torch.full((1, 3, 4, 4), torch.nan).double()
    with pytest.raises(ArgumentError, match="not finite on this batch"):
        hb.exact_last_block(
            made("vit"), {"pixel_values": images, "labels": torch.tensor([0])}, "classification"
        )


class Clamped(nn.Module):
    """A norm whose gain enters linearly between -1 and 1 only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(3 * torch.randn(width).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight.clamp(-1, 1)


def test_a_gain_that_does_not_enter_linearly_has_no_block() -> None:
    model = lifted(made("qwen3"))
    model.model.layers[0].input_layernorm = Clamped(8)
    with pytest.warns(UserWarning, match="input_layernorm.* in front of the attention"):
        found = hb.exact_last_block(model, {"input_ids": tokens(2)})
    assert "model.layers.0.input_layernorm.weight" not in found.groups


def test_head_norms_are_those_of_the_call() -> None:
    """Also those of frozen weights, which are no parameters of the closed form."""
    model = lifted(made("qwen3"))
    norm = model.model.layers[0].self_attn.q_norm
    norm.weight.requires_grad_(False)
    ids = {"input_ids": tokens(2)}
    expected = hb.exact_attention_curvature(model, ids).block("query", "query").dense()
    found = hb.exact_attention_curvature(model, ids)
    norm.weight.mul_(3)
    assert torch.equal(found.block("query", "query").dense(), expected)
    assert pickle.loads(pickle.dumps(found)).block("query", "query").shape == expected.shape


def test_weights_in_another_order_are_noticed() -> None:
    model = lifted(made("llama"))
    found = hb.exact_last_block(model, {"input_ids": tokens(2)})
    weight = model.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.copy_(weight.roll(1, 0))
    with pytest.raises(ArgumentError, match="weights or modules have changed"):
        found.block("model.norm.weight", "model.norm.weight").dense()


def test_a_block_under_autocast_is_refused() -> None:
    found = hb.exact_last_block(made("llama").float(), {"input_ids": tokens(2)})
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="autocast"):
        found.block("query", "query")


def test_packed_sequences_with_a_cache_are_refused() -> None:
    """There transformers lets them see each other."""
    places, model = torch.tensor([[0, 1, 0, 1]]), made("qwen2")
    batch = {"input_ids": tokens(1), "position_ids": places}
    hb.exact_last_block(model, batch)
    alone = model(**batch, labels=batch["input_ids"], use_cache=False).loss
    mixed = model(**batch, labels=batch["input_ids"]).loss
    assert hb.Problem(model, batch).value() == pytest.approx(float(alone.detach()), rel=1e-6)
    assert float(mixed.detach()) != pytest.approx(float(alone.detach()), rel=1e-4)
    for asked in (hb.exact_last_block, lambda m, b: hb.Problem(m, b).value()):
        with pytest.raises(ArgumentError, match=r"use_cache=True .* see each other"):
            asked(model, batch | {"use_cache": True})
        with pytest.raises(ArgumentError, match="see each other"):
            asked(model, batch | {"use_cache": torch.tensor([True, True])})
    hb.Problem(model, {"input_ids": tokens(1), "use_cache": True}).value()


class PassesOn(nn.Module):
    """A model whose `forward` names no cache, as that of a PEFT adapter."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: Tensor, **more: object) -> object:
        return self.inner(input_ids, **more)


@pytest.mark.filterwarnings("ignore:batches. 'position_ids' is not an argument")
def test_packed_sequences_stay_apart_where_the_cache_is_passed_on() -> None:
    batch = {"input_ids": tokens(1), "position_ids": torch.tensor([[0, 1, 0, 1]])}
    model = made("qwen2")
    alone = hb.Problem(model, batch).value()
    assert hb.Problem(PassesOn(model), batch).value() == pytest.approx(alone, rel=1e-12)


class AcrossHeads(nn.Module):
    """A norm over all heads together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean((-1, -2), keepdim=True) + 1e-6).rsqrt() * self.weight


def test_a_norm_across_heads_is_refused() -> None:
    model = made("qwen3")
    model.model.layers[0].self_attn.q_norm = AcrossHeads()
    with pytest.raises(ArgumentError, match="expects query_norm to act on each head's vector"):
        hb.exact_last_block(model, {"input_ids": tokens(2)})


@pytest.mark.slow
def test_a_head_norm_without_parameters() -> None:
    model = lifted(made("qwen3"))
    model.model.layers[0].self_attn.q_norm = nn.Tanh()
    batch, loss = batch_of(model)
    assert all(check.passed for check in compare("tanh", model, batch, loss))


@pytest.mark.parametrize("name", ["qwen3", "vit"])
def test_outputs_of_some_tokens_and_empty_batches_are_refused(name: str) -> None:
    model = made(name)
    batch, loss = batch_of(model)
    none = {key: value[:0] for key, value in batch.items()}
    with pytest.raises(ArgumentError, match="expected at least one row, got none"):
        hb.exact_last_block(model, none, loss)
    if name == "qwen3":
        with pytest.raises(ArgumentError, match="does not read every token"):
            hb.exact_last_block(model, batch | {"logits_to_keep": 2}, loss)


def test_a_norm_cut_off_by_a_hook_or_parametrised() -> None:
    """Neither has blocks; all others are exact."""
    model = lifted(made("llama"))
    norm = model.model.layers[0].input_layernorm
    handle = norm.register_forward_hook(lambda module, inputs, output: output.detach())
    ids = {"input_ids": tokens(2)}
    assert not [g for g in hb.exact_last_block(model, ids).groups if "input_layernorm" in g]
    handle.remove()
    parametrize.register_parametrization(norm, "weight", nn.Softplus())
    with pytest.warns(UserWarning, match="input_layernorm.* in front of the attention"):
        groups = hb.exact_last_block(model, ids).groups
    assert not [group for group in groups if "input_layernorm" in group]


def test_one_token_has_nothing_to_attend_to() -> None:
    """No query or key matters where a token sees itself alone."""
    ids = tokens(2, 1)
    found = hb.exact_last_block(made("bert"), {"input_ids": ids, "labels": ids}, "masked-lm")
    assert found.block("query", "query").frobenius_norm() == 0
    assert found.block("key", "key").frobenius_norm() == 0
    assert found.block("value", "value").frobenius_norm() > 0
    with pytest.raises(ArgumentError, match="every label is ignored"):
        hb.exact_last_block(made("llama"), {"input_ids": ids})


def test_a_description_that_is_wrong_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values swapped would be another attention."""
    llama = ARCHITECTURES["llama"]
    swapped = {"key": "value", "value": "key"}
    rules = [replace(rule, role=swapped.get(rule.role, rule.role)) for rule in llama.rules]
    monkeypatch.setitem(ARCHITECTURES, "llama", replace(llama, rules=rules))
    with pytest.raises(ArgumentError, match="differs from the closed form"):
        hb.exact_last_block(made("llama"), {"input_ids": tokens(1)})


def test_another_network_behind_is_noticed() -> None:
    """One that reads its neighbours, so that it does not act on each token by itself."""
    model = made("llama")
    layer = model.model.layers[-1]
    own = layer.mlp.forward
    layer.mlp.forward = lambda x: own(x + x.mean(1, keepdim=True))
    for taken in (hb.exact_last_block, hb.exact_attention_curvature):
        with pytest.raises(ArgumentError, match="closed form"):
            taken(model, {"input_ids": tokens(2)})


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
