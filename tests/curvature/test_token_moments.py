"""Moments of a model's last attention, beside transformers' own attention."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.theory import attention_hessian
from tests.theory.cases import CASES, arguments

HEADS, TOKENS = 2, 7


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=HEADS, vocab_size=20, n_positions=TOKENS, bos_token_id=0,
        eos_token_id=0, attn_implementation="eager", initializer_range=0.8,
    )  # fmt: skip
    return GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def batch() -> dict[str, Tensor]:
    ids = torch.randint(0, 20, (3, TOKENS), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids}


def test_what_keys_add_is_what_transformers_attention_says(model: Any, batch: Any) -> None:
    seen: list[Tensor] = []
    handle = model.transformer.h[-1].ln_1.register_forward_hook(lambda m, i, out: seen.append(out))
    with torch.no_grad():
        attention = model(**batch, output_attentions=True).attentions[-1]
    handle.remove()
    x = seen[0]
    for sequence, head in torch.cartesian_prod(torch.arange(3), torch.arange(HEADS)):
        rows = attention[sequence, head]
        apart = x[sequence][None] - (rows @ x[sequence])[:, None]
        expected = rows * apart.square().sum(-1)
        found = hb.exact_attention_curvature(model, batch).moments.second_by_key[sequence, head]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keys_add_up_to_the_trace_of_the_second_moment(case: Any) -> None:
    found = attention_hessian(**arguments(case)).moments
    traces = found.second.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert (found.second_by_key.sum(-1) - traces).norm() <= 1e-12 * found.first.norm()
