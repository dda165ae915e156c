"""Folded models compute the same with fewer parts, and are ordinary models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize
from transformers import AutoModelForCausalLM

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch, Shaping
from hessblocks.blocks.mlp import MLP
from hessblocks.blocks.norms import LayerNorm, RMSNorm
from hessblocks.blocks.weights import Dense, Identity, Reparametrised, ReparametrisedLinear
from hessblocks.models.fold import fold
from tests.models.cases import ids, perturbed, presets

SLOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "reparametrised everywhere": (
        "v-skipinit",
        {
            "attention": Attention(
                shaping=Shaping(),
                query=Reparametrised(init="normal"),
                key=Reparametrised(trainable_gains=True),
                value=Reparametrised(initial_gain=0.5, update_gain=0.2),
                projection=Reparametrised(init="tied-orthogonal", trainable_gains=True),
            ),
            "mlp": MLP(input=Reparametrised(), output=Reparametrised(init="normal")),
        },
    ),
    "biases": (
        "op",
        {
            "attention": Attention(projection=Dense(bias=True)),
            "mlp": MLP(output=Dense(bias=True)),
            "norm": LayerNorm(),
        },
    ),
    "nothing takes the gain": (
        "pre-ln",
        {
            "attention": Attention(value=Identity(), projection=Identity()),
            "attention_branch": Branch(gain=0.3, trainable=True, trainable_skip=True),
            "mlp_branch": Branch(gain=0.3),
        },
    ),
}


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model.double().eval()(tokens).logits


@presets
@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_a_folded_preset_computes_the_same(name: str, task: str) -> None:
    model, tokens = perturbed(name, task=task), ids(2, 9)
    before = {n: p.clone() for n, p in model.named_parameters()}
    folded = fold(model)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not any(isinstance(m, ReparametrisedLinear) for m in folded.modules())
    assert all("_branch" not in n for n, _ in folded.named_parameters())
    assert torch.allclose(logits(folded, tokens), logits(model, tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "fields"), SLOTS.values(), ids=SLOTS)
def test_folded_slots_compute_the_same(name: str, fields: dict[str, Any]) -> None:
    model, tokens = perturbed(name, **fields), ids(2, 9)
    folded = fold(model)
    assert not any(isinstance(m, ReparametrisedLinear) for m in folded.modules())
    assert torch.allclose(logits(folded, tokens), logits(model, tokens), rtol=0, atol=1e-5)


def test_a_folded_model_is_saved_loaded_and_generates(tmp_path: Path) -> None:
    model, prompt = perturbed("sas"), ids(2, 5)
    fold(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    settings = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": 6,
        "do_sample": False,
        "pad_token_id": 0,
    }
    assert torch.equal(loaded.generate(prompt, **settings), model.generate(prompt, **settings))


@pytest.mark.parametrize("name", ["pre-ln", "skipless", "v-skipinit", "parallel"])
def test_with_one_head_neighbours_are_merged(name: str) -> None:
    model, tokens = perturbed(name, heads=1, position="learned"), ids(2, 9)
    folded = fold(model, merge=True)
    attention = folded.model.layers[0].attention
    assert attention.key is None
    assert isinstance(attention.projection, torch.nn.Identity)
    assert torch.allclose(logits(folded, tokens), logits(model, tokens), rtol=0, atol=1e-5)


def test_rotations_stand_between_queries_and_keys() -> None:
    """Values and projections are merged, the other two stay."""
    model, tokens = perturbed("pre-ln", heads=1, position="rotary"), ids(2, 9)
    folded = fold(model, merge=True)
    assert folded.model.layers[0].attention.key is not None
    assert isinstance(folded.model.layers[0].attention.projection, torch.nn.Identity)
    assert torch.allclose(logits(folded, tokens), logits(model, tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 4}, "4 heads"),
        (
            {
                "heads": 1,
                "attention": Attention(query_key_norm=RMSNorm(), projection=Identity()),
            },
            "no two matrices",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(hb.ArgumentError, match=words):
        fold(perturbed("pre-ln", **fields), merge=True)


def test_half_precision_cannot_be_folded_exactly() -> None:
    with pytest.raises(hb.RunError, match=r"bfloat16"):
        fold(perturbed("sas").bfloat16())


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_behind_a_parametrisation_are_refused(wrap: Any) -> None:
    model = perturbed("pre-ln")
    wrap(model.model.layers[1].mlp.output)
    with pytest.raises(hb.ArgumentError, match=r"layers.1.mlp.output.*remove_parametrizations"):
        fold(model)
    parametrize.remove_parametrizations(model.model.layers[1].mlp.output, "weight")
    fold(model)


def test_other_models_are_refused() -> None:
    with pytest.raises(hb.ArgumentError, match="Linear"):
        fold(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
