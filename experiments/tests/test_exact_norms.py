"""Closed-form norms take losses by the names that `Problem` takes, and refuse what they do not
cover."""

import pytest
import torch

from hessblocks.errors import ArgumentError
from hessblocks_studies.data import addition_batch
from hessblocks_studies.growth import addition_model
from hessblocks_studies.growth.addition_model import one_hot_squares
from hessblocks_studies.growth.exact_norms import exact_norms
from hessblocks_studies.growth.growth_points import GROUPS

BATCH = addition_batch(3, seed=1)


@pytest.mark.parametrize("loss", ["cross-entropy", "squares", "masked-lm", lambda *_: 0.0])
def test_any_other_loss_is_refused(loss: object) -> None:
    model = addition_model("linear-alone", layers=1, width=6, sigma=0.5, seed=0)
    with pytest.raises(ArgumentError, match="loss: expected causal-lm or one_hot_squares, got"):
        exact_norms(model, BATCH, loss, GROUPS)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", ["linear", "softmax", "softmax-pre-ln", "softmax-mlp-biases"])
def test_squares_with_more_than_an_unembedding_behind_the_attention_are_refused(block: str) -> None:
    model = addition_model(block, layers=1, width=6, sigma=0.5, seed=0)
    with pytest.raises(ArgumentError, match="its unembedding alone may follow the last attention"):
        exact_norms(model, BATCH, one_hot_squares, GROUPS)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 10.0])
def test_squares_in_single_precision_are_those_in_double(sigma: float) -> None:
    double, single = (
        exact_norms(
            addition_model("linear-alone", layers=2, width=6, sigma=sigma, seed=3).to(dtype),
            BATCH,
            one_hot_squares,
            GROUPS,
        )
        for dtype in (torch.float64, torch.float32)
    )
    for key, norm in double.items():
        assert single[key].value == pytest.approx(norm.value, rel=1e-3)
