"""Newer neighbours as parts: each equals an independent witness, and meets every law of a part."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.activations import ACT2FN

import hessblocks as hb
from hessblocks.blocks import MLP, RMSNorm, with_slots
from hessblocks.conventions import PARTS
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
}
"""Slots of each part, as they are typed."""

parts = pytest.mark.parametrize("name", TYPED)


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


@parts
@pytest.mark.parametrize("preset", ["pre-ln", "sas-p"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
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
def solved(name: str) -> tuple[Case, Dense]:
    sizes = {"depth": 2, "width": 4, "heads": 2, "mlp_width": 6, "vocab_size": 7, "context": 6}
    model = model_of(name, **sizes).double()
    model.set_attn_implementation("eager")  # without a fused kernel, which curvature would warn of
    case = Case(model=model, batches=padded_batches())
    return case, dense(case)


@parts
def test_groups_know_every_parameter(name: str) -> None:
    case, _ = solved(name)
    groups = hb.parameter_groups(case.model)
    check_partition(groups.values(), dict(case.model.named_parameters()))
    assert "other" not in {group.role for group in groups.values()}


@parts
@pytest.mark.parametrize("part", PARTS)
def test_products_are_those_of_the_dense_matrix(name: str, part: str) -> None:
    case, truth = solved(name)
    operators = {"full": hb.Hessian, "outer": hb.OuterProduct, "functional": hb.Functional}
    for group in hb.parameter_groups(case.model).values():
        found = operators[part](case.problem, group).dense()
        torch.testing.assert_close(found, truth.block(part, group, group), rtol=1e-9, atol=1e-11)


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


@pytest.mark.bad_input
def test_what_excludes_each_other_is_refused() -> None:
    block = hb.preset("pre-ln", width=8, heads=2)
    for slots, message in (
        (["mlp.activation=relu-squared", "mlp.input.init=zeros"], "a zero input and activation="),
        (["norm=layer", "norm.gain=none"], r"norm\.gain: expected a number, got 'none'"),
    ):
        with pytest.raises(hb.ArgumentError, match=message):
            with_slots(block, slots)
