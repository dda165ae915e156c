"""Parts that a user writes: kept as they were built, saved, loaded and left alone by folding."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.blocks.norms import Norm, RMSNorm
from hessblocks.blocks.positions import Position
from hessblocks.blocks.weights import Weight
from tests.models.cases import ids

SIZES = {"depth": 2, "width": 16, "heads": 2, "vocab_size": 29, "context": 12}


@dataclass(frozen=True, kw_only=True)
class Ones(Weight, kind="test-ones"):
    """A plain linear layer of ones."""

    @property
    def initial(self) -> str:
        return "normal"

    def build(self, inputs: int, outputs: int) -> nn.Module:
        layer = nn.Linear(inputs, outputs, bias=False)
        return nn.init.ones_(layer.weight) is None or layer


class Thin(nn.Module):
    """A product of two thin matrices."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, inputs) / 4)
        self.up = nn.Parameter(torch.randn(outputs, rank) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down.T @ self.up.T


@dataclass(frozen=True, kw_only=True)
class LowRank(Weight, kind="test-low-rank"):
    """A weight with a field that must be given."""

    rank: int

    @property
    def initial(self) -> str:
        return "normal"

    def build(self, inputs: int, outputs: int) -> nn.Module:
        return Thin(inputs, outputs, self.rank)


@dataclass(frozen=True, kw_only=True)
class Required(Norm, kind="test-required"):
    """A norm with a field that must be given."""

    eps: float

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.eps, elementwise_affine=False)


@dataclass(frozen=True, kw_only=True)
class Flat(Position, kind="test-flat"):
    """Positions that start as ones."""

    def build(self, context: int, width: int) -> nn.Module | None:
        embedding = nn.Embedding(context, width)
        nn.init.ones_(embedding.weight)
        return embedding


def changed(**attention: Weight) -> dict[str, object]:
    return {"attention": hb.preset("sas", width=16, heads=2).attention.replace(**attention)}


def test_own_weights_and_positions_keep_their_values(tmp_path: Path) -> None:
    model = hb.build("sas", **SIZES, position=Flat(), **changed(key=Ones()))
    assert all((layer.attention.key.weight == 1).all() for layer in model.model.layers)
    assert (model.model.position_embedding.weight == 1).all()
    drawn = model.config.block_config.resolved_embedding_std
    assert model.model.token_embedding.weight.std().item() == pytest.approx(drawn, rel=0.2)
    model.resize_token_embeddings(40)
    assert model.model.token_embedding.weight[29:].std() < 0.1
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    tokens = ids(2, 5)
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)


def test_a_part_may_have_a_field_that_must_be_given(tmp_path: Path) -> None:
    model = hb.build("pre-ln", **SIZES, norm=Required(eps=1e-3)).eval()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.block_config.norm == Required(eps=1e-3)
    tokens = ids(2, 5)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_a_norm_without_output_is_refused() -> None:
    for name in ("norm", "first_norm", "final_norm"):
        with pytest.raises(hb.ArgumentError, match=f"{name}: rms-norm and gain=0 exclude"):
            hb.preset("pre-ln", **{name: RMSNorm(gain=0.0)})
