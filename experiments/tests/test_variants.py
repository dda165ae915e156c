"""The blocks of the studies are those of the paper's equations."""

import pytest
import torch

from hessblocks.figures.style import BESIDE, MARKS
from hessblocks.models.build import build
from hessblocks_studies import shared
from hessblocks_studies.catalogue import find
from hessblocks_studies.shared.trained_points import BIGRAMS, GPT2
from hessblocks_studies.shared.variants import (
    BETAS,
    SLOPES,
    VALUE_SKIPINIT,
    VARIANTS,
    best_start,
    make_block,
    restricted,
)

SIZES = {"width": 16, "heads": 2, "mlp_width": 32}


@pytest.mark.parametrize("name", ["sas", "sas-p"])
def test_v_skipinit_attention_is_the_identity_plus_beta_softmax(name: str) -> None:
    """Eq. 4, α = 1, β = 0 at first; all else is the block's own."""
    block = make_block(f"{name}, {VALUE_SKIPINIT}", **SIZES)
    own = make_block(name, **SIZES)
    shaping = block.attention.shaping
    assert (shaping.alpha, shaping.beta, shaping.centred, shaping.trainable) == (1, 0, False, True)
    assert block.replace(attention=own.attention) == own
    assert block.attention.replace(shaping=own.attention.shaping) == own.attention


@pytest.mark.parametrize("slope", SLOPES)
def test_a_linearised_block_differs_from_the_one_without_mlp_skip_in_its_activation(
    slope: float,
) -> None:
    block = make_block(f"sas, no MLP skip, LeakyReLU {slope:g}", **SIZES)
    plain = make_block("sas, no MLP skip", **SIZES)
    assert (block.mlp.activation, block.mlp.negative_slope) == ("leaky-relu", slope)
    assert block.replace(mlp=plain.mlp) == plain
    assert (plain.layout, plain.mlp_branch.skip) == ("sequential", 0)


@pytest.mark.parametrize("beta", BETAS)
def test_tied_values_and_projections_undo_each_other_in_every_layer(beta: float) -> None:
    torch.manual_seed(0)
    block = make_block(restricted("tied", beta), **SIZES)
    assert block.attention.value.update_gain == block.attention.projection.update_gain == beta
    model = build(block, depth=3, vocab_size=20, context=8)
    for layer in model.model.layers:
        value, projection = (
            getattr(layer.attention, name).effective_weight() for name in ("value", "projection")
        )
        assert torch.allclose(projection @ value, torch.eye(16), atol=1e-5)
        assert not torch.allclose(value, torch.eye(16), atol=0.1)


@pytest.mark.parametrize("name", VARIANTS)
def test_embeddings_are_wider_beside_an_attention_skip_alone(name: str) -> None:
    beside = make_block(name, **SIZES).attention_branch.skip != 0
    assert best_start(name, 256) == (1 / 16 if beside else None)


def test_trained_points_have_the_best_start_unless_they_name_one() -> None:
    found = {point.variant: point.embedding_std for point in find("skipless").settings("laptop", 1)}
    expected = {"pre-ln": 0.125, "v-skipinit": None, "skipless": None, BIGRAMS: None, GPT2: None}
    assert found == expected


def test_the_control_and_the_references_have_theirs() -> None:
    assert set(BESIDE) == {*shared.BASES, *shared.REFERENCES, "parallel, zero queries"} - set(MARKS)
