"""Layers with blocks of their own, in turn: each computes what it would in a model of equal
blocks."""

from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoModelForCausalLM

import hessblocks as hb
from hessblocks.blocks import ALiBiPosition, Context, RMSNorm
from hessblocks.errors import ArgumentError
from hessblocks.inspection import measure_signal
from hessblocks.models import HessblocksConfig
from tests.curvature.cases import Case, padded_batches
from tests.curvature.oracle import check_partition, dense
from tests.models.cases import SIZES, ids, perturbed

NAMES = ("pre-ln", "sas-p", "parallel")


def test_each_layer_is_that_of_its_own_preset() -> None:
    model, tokens = perturbed("+".join(NAMES), depth=6, position="no"), ids(2, 7)
    x = model.model.token_embedding(tokens)
    for index, layer in enumerate(model.model.layers):
        name = NAMES[index % 3]
        alone = hb.build(name, **(SIZES | {"depth": 6}), position="no").model.layers[index]
        alone.load_state_dict(layer.state_dict())
        x = alone(x, Context())
    expected = model.lm_head(model.model.final_norm(x))
    assert torch.allclose(model(tokens).logits, expected, atol=1e-5)


def test_names_joined_by_plus_a_list_and_blocks_are_one_thing() -> None:
    blocks = [hb.preset(name, width=16, heads=4) for name in NAMES[:2]]
    for given, preset in (
        ("pre-ln+sas-p", "pre-ln+sas-p"),
        (NAMES[:2], "pre-ln+sas-p"),
        (blocks, None),
        (["pre-ln", blocks[1]], None),
    ):
        config = hb.build(given, **SIZES).config
        assert (config.blocks, config.preset) == (blocks, preset)
    assert hb.build(["sas"], **SIZES).config.to_dict() == hb.build("sas", **SIZES).config.to_dict()


def test_the_first_layer_alone_may_differ() -> None:
    model = hb.build(["pre-ln", *["sas-p"] * 3], **(SIZES | {"depth": 4}))
    kinds = [type(layer.attention.value).__name__ for layer in model.model.layers]
    assert kinds == ["DenseLinear", "Identity", "Identity", "Identity"]


def test_a_pattern_is_saved_loaded_printed_and_generates(tmp_path: Path) -> None:
    model, prompt = perturbed("pre-ln+sas-p", depth=4), ids(2, 5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.blocks == model.config.blocks
    assert [len(loaded.config.pattern), loaded.config.hidden_size] == [2, 16]
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    found = loaded.generate(prompt, **settings)
    assert torch.equal(found, model.generate(prompt, use_cache=False, **settings))


def test_curvature_knows_every_parameter_and_the_last_layer() -> None:
    sizes = {"width": 4, "mlp_width": 6, "heads": 2, "vocab_size": 7, "context": 6}
    model = perturbed("sas-p+pre-ln", **sizes).double()
    model.set_attn_implementation("eager")
    case = Case(model=model, batches=padded_batches())
    groups, truth = hb.parameter_groups(model), dense(case)
    check_partition(groups.values(), dict(model.named_parameters()))
    query = groups["layers.0.attention.query"]
    found = hb.Hessian(case.problem, query).dense()
    torch.testing.assert_close(found, truth.block("full", query, query), rtol=1e-9, atol=1e-11)
    value = groups["layers.1.attention.value"]
    exact = hb.exact_attention_curvature(model, case.batches[0]).block("value", "value")
    one = Case(model=model, batches=case.batches[:1])
    expected = dense(one).block("full", value, value).norm()
    assert exact.frobenius_norm() == pytest.approx(float(expected), rel=1e-10)


def test_the_openers_take_the_joined_names() -> None:
    sizes = {"depth": 2, "width": 8, "heads": 2, "vocab_size": 64, "tokens": 6, "sequences": 2}
    rows = measure_signal("preset:pre-ln+sas-plain", "random", jacobian_steps=0, **sizes)
    entropies = [row["value"] for row in rows if row["quantity"] == "attention_entropy"]
    assert {row["model"] for row in rows} == {"pre-ln+sas-plain"}
    assert len(entropies) == 2
    with pytest.raises(hb.ArgumentError, match="MODEL: 'sas-q' is unknown"):
        measure_signal("preset:pre-ln+sas-q", "random", **sizes)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("given", "fields", "message"),
    [
        (
            ["pre-ln", "sas-p"],
            {"depth": 3},
            "depth: 3 layers are not a multiple of 2 blocks",
        ),
        ([], {}, "block: expected a preset's name or a BlockConfig, got"),
        (["pre-ln", 3], {}, "block: expected a preset's name or a BlockConfig, got 3"),
        (["pre-ln", "saas"], {}, "preset: 'saas' is unknown"),
        ("pre-ln+", {}, "preset: '' is unknown"),
        (
            ["pre-ln", "post-ln"],
            {},
            "final_norm: all blocks of a model share it, but blocks 0 and 1 have",
        ),
        (
            ["pre-ln", hb.preset("pre-ln", head_width=6)],
            {},
            "head_width: all blocks of a model share it",
        ),
        ("pre-ln", {"sub_blocks": "mlp"}, "sub_blocks: no layer has attention"),
    ],
)
def test_what_does_not_fit_into_one_model_is_refused(given, fields, message) -> None:
    with pytest.raises(hb.ArgumentError, match=message):
        hb.build(given, **(SIZES | fields))
    hb.build(["pre-ln", "post-ln"], **SIZES, final_norm=RMSNorm())
    with pytest.raises(hb.ArgumentError, match="block_config: the layers have several blocks"):
        _ = hb.build("pre-ln+sas-p", **SIZES).config.block_config


def test_heads_with_alibi_are_those_of_the_model() -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "heads"}
    blocks = [hb.preset("pre-ln", position=ALiBiPosition(), heads=n, head_width=4) for n in (2, 1)]
    with pytest.raises(hb.ArgumentError, match="heads: all blocks of a model share it"):
        hb.build(blocks, **sizes)


def test_equal_blocks_are_not_a_pattern_and_names_may_be_joined_inside_a_list() -> None:
    sizes = {"depth": 4, "width": 16, "heads": 2, "vocab_size": 20, "context": 8}
    assert (
        hb.build("pre-ln+pre-ln", **sizes).config.block_config
        == hb.build("pre-ln", **sizes).config.block_config
    )
    joined = hb.build(["pre-ln", "pre-ln+sas-p", "sas-p"], **sizes).config
    assert joined.blocks == hb.build("pre-ln+pre-ln+sas-p+sas-p", **sizes).config.blocks
    with pytest.raises(StrictDataclassClassValidationError, match="at least one"):
        HessblocksConfig(block=[])
    with pytest.raises(ArgumentError, match="block: expected"):
        hb.build(b"pre-ln", **sizes)
