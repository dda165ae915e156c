"""Moments of a model's last attention: beside transformers' own attention, and what their figure
says."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.curvature import attention_moments, second_moment_figure
from hessblocks.drawing import draw
from hessblocks.errors import ArgumentError
from hessblocks.figures import Heatmap
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


def test_they_are_those_of_the_exact_curvature(model: Any, batch: Any) -> None:
    found, known = (
        attention_moments(model, batch),
        hb.exact_attention_curvature(model, batch).moments,
    )
    for name in ("first", "second", "third"):
        own, other = getattr(found, name), getattr(known, name)
        assert (own - other).abs().max() < 1e-13 * other.abs().max(), name
    assert all(parameter.requires_grad for parameter in model.parameters())


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
        found = attention_moments(model, batch).second_by_key[sequence, head]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keys_add_up_to_the_trace_of_the_second_moment(case: Any) -> None:
    found = attention_hessian(**arguments(case)).moments
    traces = found.second.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert (found.second_by_key.sum(-1) - traces).norm() <= 1e-12 * found.first.norm()


def test_the_figure_has_the_shares_of_keys_and_queries(model: Any, batch: Any) -> None:
    moments = attention_moments(model, batch)
    names = [f"t{number}$" for number in range(TOKENS)]
    figure = second_moment_figure(moments, names, sequence=1)
    counted = moments.second_by_key[1, :, :-1]  # the last token predicts nothing
    totals = counted.sum((-2, -1))
    keys, queries = figure.panels
    assert isinstance(keys, Heatmap)
    assert isinstance(queries, Heatmap)
    assert keys.columns == tuple(names)
    torch.testing.assert_close(
        torch.tensor(keys.values).double(), counted.sum(-2) / totals[:, None]
    )
    expected = torch.cat([counted.sum(-1), torch.zeros(HEADS, 1)], dim=1) / totals[:, None]
    torch.testing.assert_close(torch.tensor(queries.values).double(), expected)
    assert (
        f"head {int(totals.argmax())}, {float(totals.max() / totals.sum()):.0%}" in figure.caption
    )
    drawn = draw(figure).axes[0]
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["head 0", "head 1"]
    assert len(drawn.get_xticklabels()) == TOKENS


def test_a_figure_of_many_tokens_has_no_names() -> None:
    made = arguments(CASES[0])
    long = {**made, "x": made["x"].repeat(1, 30, 1), "target": made["target"].repeat(1, 30, 1)}
    figure = second_moment_figure(attention_hessian(**long).moments)
    assert all(isinstance(panel, Heatmap) and panel.columns == () for panel in figure.panels)
    draw(figure)


def test_what_cannot_be_shown_is_refused() -> None:
    moments = attention_hessian(**arguments(CASES[0])).moments
    with pytest.raises(ArgumentError, match="sequence: expected 0 to 1, got 2"):
        second_moment_figure(moments, sequence=2)
    with pytest.raises(ArgumentError, match="tokens: expected 4, one a token, got 1"):
        second_moment_figure(moments, ["a"])
    alone = next(case for case in CASES if case.name == "one token")
    with pytest.raises(ArgumentError, match="second moment"):
        second_moment_figure(attention_hessian(**arguments(alone)).moments)
