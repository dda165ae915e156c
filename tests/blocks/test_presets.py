"""Presets: what each removes, how large it is, and that it starts as the paper says."""

import math

import pytest
import torch

import hessblocks as hb
from hessblocks.blocks.norms import NoNorm
from hessblocks.blocks.weights import ReparametrisedLinear


def parameters(name: str, **sizes: int) -> int:
    with torch.device("meta"):
        model = hb.build(name, **sizes)
    return sum(p.numel() for p in model.parameters())


PUBLISHED = {"depth": 18, "width": 768, "heads": 12, "vocab_size": 50_000, "context": 128}


@pytest.mark.parametrize(
    ("name", "millions"), [("pre-ln", 167), ("parallel", 167), ("sas", 146), ("sas-p", 146)]
)
def test_parameter_counts_at_the_published_size(name: str, millions: int) -> None:
    assert parameters(name, **PUBLISHED) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", ["sas", "sas-p", "sas-p-no-norm"])
def test_the_gains_of_the_first_layers_values_are_trained(name: str) -> None:
    """α_V and β_V, in the paper and in its code."""
    model = hb.build(name, depth=2, width=8, heads=2, vocab_size=7, context=6)
    value = model.model.layers[0].attention.value
    assert {"initial_gain", "update_gain"} <= dict(value.named_parameters()).keys()
    assert not list(model.model.layers[1].attention.value.parameters())


def test_identity_values_and_projections_save_two_matrices_a_layer_but_the_first() -> None:
    norms_and_gains = 18 * (3 * 12 + 2) + 2  # of the first layer's values
    saved = (2 * 18 - 1) * 768**2
    assert (
        parameters("pre-ln", **PUBLISHED) - parameters("sas", **PUBLISHED)
        == saved - norms_and_gains
    )


@pytest.mark.parametrize(("mlp_width", "depth", "gain"), [(4, 18, 0.1), (2, 18, 0.2), (2, 72, 0.1)])
def test_the_mlp_gain_follows_depth_and_width(mlp_width: int, depth: int, gain: float) -> None:
    block = hb.preset("sas", width=64, heads=4, mlp_width=mlp_width * 64)
    assert block.mlp_branch.initial_gain(depth) == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize("name", hb.PRESETS)
def test_no_parameter_stays_without_gradient(name: str) -> None:
    model = hb.build(name, depth=2, width=16, heads=4, vocab_size=11, context=8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(0, 11, (4, 8))
    for _ in range(2):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimiser.step()
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


@pytest.mark.parametrize("name", ["skipless", "v-skipinit", "sas", "sas-p", "sas-p-no-norm"])
def test_shaped_presets_start_with_zero_queries_and_unit_gains(name: str) -> None:
    model = hb.build(name, depth=2, width=16, heads=4, vocab_size=11, context=8)
    for layer in model.model.layers:
        assert not layer.attention.query.weight.any()
        assert layer.attention_branch.skip == 0
        assert all(
            (getattr(layer.attention.gains, g) == 1).all() for g in ("alpha", "beta", "gamma")
        )


def test_only_the_first_layer_of_sas_has_values() -> None:
    model = hb.build("sas", depth=3, width=16, heads=4, vocab_size=11, context=8)
    kinds = [
        isinstance(layer.attention.value, ReparametrisedLinear) for layer in model.model.layers
    ]
    assert kinds == [True, False, False]
    assert torch.equal(model.model.layers[0].attention.value.effective_weight(), torch.eye(16))


def test_without_norms_the_first_and_the_last_norm_stay() -> None:
    block = hb.preset("sas-p-no-norm")
    assert isinstance(block.norm, NoNorm)
    assert not isinstance(block.first_norm, NoNorm)
    assert not isinstance(block.final_norm, NoNorm)


def test_v_skipinit_starts_orthogonal() -> None:
    model = hb.build("v-skipinit", depth=1, width=16, heads=4, vocab_size=11, context=8)
    for weight in (
        model.model.layers[0].attention.value.weight,
        model.model.layers[0].attention.projection.weight,
    ):
        assert torch.allclose(weight @ weight.T, torch.eye(16), atol=1e-5)


@pytest.mark.parametrize("name", hb.PRESETS)
def test_the_first_loss_is_that_of_guessing(name: str) -> None:
    sizes = {"depth": 2, "width": 64, "heads": 4, "vocab_size": 256, "context": 16}
    model = hb.build(name, **sizes, start="fixed")  # wider embeddings cost a nat or two
    ids = torch.randint(0, 256, (8, 16))
    assert model(ids, labels=ids).loss.item() == pytest.approx(math.log(256), rel=0.03)
