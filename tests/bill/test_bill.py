"""The bill in nats: forecasts against dense algebra and measured KL, edits, sums, allocation,
refusals."""

import contextlib
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.bill.allocation import allocate
from hessblocks.bill.bill import Bill
from hessblocks.bill.draws import Ledger
from hessblocks.bill.prices import (
    MOST_CHANGED,
    MOST_NATS,
    ratio_estimate,
    weight_of_full,
)
from hessblocks.errors import ArgumentError, RunError
from tests.linalg.coverage import LEVELS


def table(rows: int = 12, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, hb.Problem]:
    """A classifier of 93 parameters and its rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).to(dtype)
    data = torch.randn(rows, 4, dtype=dtype), torch.randint(5, (rows,))
    return model, hb.Problem(model, data, "classification")


def language(rows: int = 8, tokens: int = 6) -> tuple[nn.Module, hb.Problem]:
    """A causal language model of some 300 parameters and its sequences."""
    torch.manual_seed(0)
    build: dict[str, Any] = {"depth": 1, "width": 4, "heads": 2, "vocab_size": 7, "context": 8}
    model = hb.build("pre-ln", **build).double()
    ids = torch.randint(7, (rows, tokens))
    ids[0, 3:] = 0
    labels = ids.clone()
    labels[0, 3:] = -100
    return model, hb.Problem(model, {"input_ids": ids, "labels": labels})


def directions(problem: hb.Problem, seed: int = 1, size: float = 0.1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(p.shape, generator=draw, dtype=p.dtype)
        for name, p in problem.parameters.items()
    }


def moved(problem: hb.Problem, step: dict[str, Tensor], by: float = 1.0) -> dict[str, Tensor]:
    return {name: problem.parameters[name] + by * one for name, one in step.items()}


def dense(problem: hb.Problem) -> Tensor:
    return hb.OuterProduct(problem).dense()


def flat(problem: hb.Problem, step: dict[str, Tensor]) -> Tensor:
    """A change as a vector of `dense`."""
    parameters = problem.parameters
    return torch.cat([step.get(n, torch.zeros_like(p)).flatten() for n, p in parameters.items()])


def test_over_200_seeds_both_forms_are_unbiased_and_their_bars_are_right() -> None:
    _, problem = table()
    step = directions(problem)
    delta, h_o = flat(problem, step), dense(problem)
    truth = {
        "full": float(delta @ h_o @ delta) / 2,
        "diagonal": float(h_o.diagonal() @ delta.square()) / 2,
    }
    bills = [
        hb.price(problem, {"step": moved(problem, step)}, samples=2, seed=s) for s in range(200)
    ]
    for form, value in truth.items():
        found = torch.tensor([getattr(bill["step"], form).value for bill in bills])
        assert abs(found.mean() - value) < 3 * found.std() / math.sqrt(200), form
        assert found.std() > 0.01 * value


@pytest.mark.parametrize("samples", [8, 40, 100])
def test_tokens_are_cut_where_rows_are_few_and_the_forms_stay_unbiased(samples: int) -> None:
    _, problem = language(rows=3)
    step = directions(problem)
    delta, h_o = flat(problem, step), dense(problem)
    bill = hb.price(problem, {"step": moved(problem, step)}, samples=samples)
    found, tokens = bill["step"], 3 * 5 - 3
    assert len(bill.draws.shares) == min(samples, tokens)
    assert len(bill.draws.pieces) >= samples
    assert float(bill.draws.shares.sum()) == pytest.approx(1)
    for form, value in (
        (found.full, float(delta @ h_o @ delta) / 2),
        (found.diagonal, float(h_o.diagonal() @ delta.square()) / 2),
    ):
        # the pieces differ, so that the bar is wider than the error over signs alone
        assert abs(form.value - value) < 3 * form.standard_error
        # a bar follows its form: where 100 samples share 37 pieces, sums would be 2.7 times as
        # large
        assert form.value == pytest.approx(value, rel=0.5)


def test_bars_are_over_rows_whose_tokens_are_alike() -> None:
    model, problem = language()
    step = directions(problem)
    bill = hb.price(problem, {"step": moved(problem, step)}, samples=32)
    assert len(bill.draws.shares) == 8
    assert bill.draws.pieces.bincount().tolist() == [4] * 8
    inputs, labels = problem.batches[0].keywords, problem.batches[0].labels
    counted = labels[:, 1:] != -100  # type: ignore[index]
    new = torch.func.functional_call(model, moved(problem, step), kwargs=inputs).logits
    before, after = (x[:, :-1].log_softmax(-1).detach() for x in (model(**inputs).logits, new))
    kl = (before.exp() * (before - after)).sum(-1) * counted / counted.sum()
    rows, shares = kl.sum(1), counted.sum(1) / counted.sum()
    found, variance = bill.check("step").measured[0], (rows - shares * rows.sum()).square().sum()
    assert found.value == pytest.approx(float(rows.sum()))
    plain = ratio_estimate(rows, shares, 8)
    assert found.standard_error == pytest.approx(plain.standard_error)
    assert found.standard_error > math.sqrt(float(variance) * 8 / 7)


def test_the_gradients_term_is_exact_for_the_data_at_hand() -> None:
    model, problem = language()
    step = directions(problem)
    loss = model(**problem.batches[0].keywords, labels=problem.batches[0].labels).loss
    gradients = dict(
        zip(problem.parameters, torch.autograd.grad(loss, [*model.parameters()]), strict=True)
    )
    bill = hb.price(problem, {"step": moved(problem, step)}, samples=16)
    expected = sum(float((gradients[name] * one).sum()) for name, one in step.items())
    assert bill["step"].gradient.value == pytest.approx(expected, rel=1e-6)


def test_kl_is_the_quadratic_to_third_order() -> None:
    _, problem = table()
    step, scales = directions(problem, size=0.02), [1.0, 0.5, 0.25, 0.125]
    changes = {str(scale): moved(problem, step, scale) for scale in scales}
    bill = hb.price(problem, changes, samples=8)
    delta = flat(problem, step)
    quadratic = float(delta @ dense(problem) @ delta) / 2
    found = bill.check(list(changes)).measured
    errors = [
        abs(one.value - scale**2 * quadratic) for one, scale in zip(found, scales, strict=True)
    ]
    slopes = [math.log2(large / small) for large, small in pairwise(errors)]
    assert slopes == pytest.approx([3, 3, 3], abs=0.1)


def test_measured_kl_is_that_of_the_probabilities() -> None:
    model, problem = table()
    new = {"0.weight": hb.rounded(bits=2, block=4)}
    bill = hb.price(problem, {"two": new}, samples=12)
    inputs = problem.batches[0].inputs
    before = model(inputs).log_softmax(-1).detach()
    after = torch.func.functional_call(
        model, dict(bill.changes["two"].made(problem.parameters)), inputs
    )
    after = after.log_softmax(-1).detach()
    rows = (before.exp() * (before - after)).sum(-1)
    found = bill.check(["two"]).measured[0]
    assert found.value == pytest.approx(float(rows.mean()), rel=1e-9)
    spread = float(rows.std()) / math.sqrt(12)
    assert spread < found.standard_error < 2.5 * spread


def test_the_divergence_of_squared_errors_is_the_outputs_squared_change() -> None:
    model, _ = table()
    data = torch.randn(12, 4, dtype=torch.float64), torch.randn(12, 5, dtype=torch.float64)
    problem = hb.Problem(model, data, "regression")
    new = {"2.bias": lambda old: old + 0.1}
    bill = hb.price(problem, {"up": new}, samples=200)
    (found,) = bill.check(["up"]).measured
    assert found.value == pytest.approx(0.01, rel=1e-9)
    assert str(found).endswith(f"({found.probes} pieces of the data)")
    price = bill["up"]
    assert abs(price.full.value - 0.01) < 3 * price.full.standard_error


def population(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=draw, dtype=torch.float64)
    inputs *= 2 * torch.rand(rows, 1, generator=draw, dtype=torch.float64)  # unlike, as tokens are
    return inputs, torch.randint(5, (rows,), generator=draw)


def test_bars_of_squares_of_unlike_widths_cover() -> None:
    draw = torch.Generator().manual_seed(0)
    shares = torch.full((32,), 1 / 32, dtype=torch.float64)
    sizes = (2000, 32)
    widths = torch.rand(sizes, generator=draw, dtype=torch.float64)
    normal = torch.randn(sizes, generator=draw, dtype=torch.float64)
    found = [ratio_estimate(x, shares, 32) for x in (widths * normal).square()]
    far = [abs(one.value - 32 / 3) / one.standard_error for one in found]
    assert sum(errors <= 3 for errors in far) / len(far) > 0.97  # 0.957 if widened as a norm is


@pytest.mark.slow
def test_bars_cover_what_other_data_give() -> None:
    model, _ = table()
    step = {"2.weight": torch.full((5, 8), 0.05, dtype=torch.float64)}
    step["2.weight"][::2] *= -1
    large = hb.Problem(model, population(20_000, 0), "classification")
    delta = flat(large, step)
    product_ = hb.OuterProduct(large) @ delta
    truth = float(delta @ product_) / 2
    ratios = []
    for seed in range(1, 151):
        problem = hb.Problem(model, population(32, seed), "classification")
        full = hb.price(problem, {"step": moved(problem, step)}, seed=seed)["step"].full
        ratios.append(abs(full.value - truth) / full.standard_error)
    shares = [sum(r <= k for r in ratios) / len(ratios) for k in (1, 2, 3)]
    # fewer draws than LEVELS are for: a binomial error of two is left
    assert all(
        share > level - 2 * math.sqrt(level * (1 - level) / 150)
        for share, level in zip(shares, LEVELS.values(), strict=True)
    ), shares


def test_many_changes_cost_no_more_passes_and_the_order_of_gradients_is_kept() -> None:
    _, problem = table(rows=Ledger.most + 3)
    step = directions(problem)
    one = hb.price(problem, {"step": moved(problem, step)}, samples=11, seed=3)
    many = {f"{n}": moved(problem, step, 0.1 * n) for n in range(5)} | {
        "step": moved(problem, step)
    }
    other = hb.price(problem, many, samples=11, seed=3)
    assert other["step"].diagonal == one["step"].diagonal
    assert other["step"].gradient == one["step"].gradient
    assert other["0"].diagonal.value == 0 == other["0"].full.value
    assert other["2"].full.value == pytest.approx(0.04 * one["step"].full.value)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def untouched(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_the_model_is_not_changed_also_after_an_exception() -> None:
    model, problem = language()
    before, identities = state(model), [id(p) for p in model.parameters()]
    bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=3), hb.removed()), samples=8)
    bill.check(4)
    assert untouched(model, before)

    calls = []

    def breaks(old: Tensor) -> Tensor:
        calls.append(old.fill_(7.0))  # what it is given is a copy
        if len(calls) > 4:
            raise KeyboardInterrupt
        return old

    name = next(iter(problem.parameters))
    with pytest.raises(KeyboardInterrupt):
        hb.price(problem, {"a": {name: breaks}, "b": {name: breaks}}, samples=8).check(2)
    assert untouched(model, before)
    assert [id(p) for p in model.parameters()] == identities


NORMAL = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_rule_says_outside_at_two_bits_and_not_at_three_and_four(symmetric: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    nn.init.normal_(model[0].weight, std=0.1)
    problem = hb.Problem(
        model, (torch.randn(64, 64).double(), torch.randint(3, (64,))), "classification"
    )
    edits = [hb.rounded(bits=bits, symmetric=symmetric) for bits in (2, 3, 4)]
    bill = hb.price(problem, hb.change_each(model, *edits))
    at = {price.bits: price for price in bill.values() if price.place == "0.weight"}
    assert [at[bits].trusted for bits in (2, 3, 4)] == [False, True, True]
    assert "norm" in at[2].outside
    assert at[3].relative_size < MOST_CHANGED
    assert "outside" in str(at[2])


def test_the_rule_says_outside_where_the_forecast_is_large() -> None:
    _, problem = table()
    step = {"2.weight": 3 * problem.parameters["2.weight"].abs().amax(0) * torch.ones(5, 8)}
    step["2.weight"][::2] *= -1
    small = {"2.weight": step["2.weight"] * 0.01}
    bill = hb.price(problem, {"far": moved(problem, step), "near": moved(problem, small)})
    assert bill["far"].forecast.value > MOST_NATS
    assert "nats" in bill["far"].outside
    assert bill["near"].trusted


def test_the_forecast_is_the_full_form_where_entries_pull_together() -> None:
    _, problem = table()
    together = {"0.weight": lambda old: 0.9 * old}
    rounding = {"0.weight": hb.rounded(bits=4, block=4)}
    common = torch.zeros(5, 8, dtype=torch.float64) + 0.2
    bill = hb.price(
        problem,
        {
            "together": together,
            "rounding": rounding,
            "nothing": {"2.weight": problem.parameters["2.weight"] + common},
        },
        samples=400,
    )
    assert 0 < bill["rounding"].full_share < 1
    # all classes up by the same: no probability changes, and only the full form sees it
    assert bill["nothing"].full.value == pytest.approx(0, abs=1e-20)
    assert bill["nothing"].diagonal.value > 0
    assert bill["nothing"].full_share == 1
    assert bill["nothing"].forecast.value == bill["nothing"].full.value
    assert bill.check(["nothing"]).measured[0].value == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_signs_of_rounding_have_the_variance_that_is_reported() -> None:
    _, problem = table(rows=300)
    step, h_o = directions(problem), dense(problem)
    size = flat(problem, step).abs()
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (2000, len(size)), generator=draw) * 2.0 - 1
    forms = ((signs * size) @ h_o * (signs * size)).sum(1) / 2
    bill = hb.price(problem, {"step": moved(problem, step)}, samples=300)
    own = float((h_o.diagonal() * size.square()).square().sum()) / 2
    # the diagonal's entries, which have no sign, are counted too: more than it is
    assert 0.7 < bill.draws.signs([0]) / (float(forms.var()) + own) < 1.4


def test_the_full_form_is_weighed_by_its_error() -> None:
    assert weight_of_full(1.0, 1.5, 0.0625, 32) == pytest.approx(0.5)
    assert weight_of_full(1.0, 1.5, 0.0, 32) == 0
    # far beyond the error that 32 samples have: the signs cannot be random
    assert weight_of_full(1.0, 5.0, 0.01, 32) > 0.99
    assert weight_of_full(0.0, 0.0, 0.0, 32) == 1


@pytest.mark.slow
def test_the_forecasts_bar_holds_the_signs_of_rounding() -> None:
    # inputs are ±1, eight at a time the same: every row has the same diagonal, which makes most of
    # the forecast, and over all such rows ½ ΔᵀHΔ is a sum of squares
    draw = torch.Generator().manual_seed(0)
    errors, bars = [], []
    for seed in range(20):
        signs = torch.randint(2, (32, 80), generator=draw) * 2.0 - 1
        model = nn.Linear(640, 1, bias=False).double()
        nn.init.normal_(model.weight, generator=draw)
        data = signs.double().repeat_interleave(8, 1), torch.zeros(32, 1, dtype=torch.float64)
        problem = hb.Problem(model, data, "regression")
        bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=4)), seed=seed)
        ((name, change),) = bill.changes.items()
        delta = dict(change.made(problem.parameters))["weight"] - problem.parameters["weight"]
        assert bill[name].diagonal.value == pytest.approx(float(delta.square().sum()))
        truth = float(delta.view(-1, 8).sum(1).square().sum())
        errors.append(bill[name].forecast.value / truth - 1)
        bars.append(bill[name].forecast.standard_error / truth)
    spread = float(torch.tensor(errors).square().mean().sqrt())
    # without the signs the bar is a third of the spread
    assert 0.8 < sum(bars) / len(bars) / spread < 1.5


def test_the_forecasts_bar_covers_the_truth_of_rounding() -> None:
    model, problem = table(rows=400)
    edits = [hb.rounded(bits=bits, block=block) for bits in (3, 4, 5) for block in (3, 4, 5, 8)]
    ratios = []
    h_o, parameters = dense(problem), problem.parameters
    for edit in edits:
        bill = hb.price(problem, hb.change_each(model, edit), samples=32)
        for name, change in bill.changes.items():
            new = dict(change.made(parameters))
            delta = flat(problem, {n: one - parameters[n] for n, one in new.items()})
            truth = float(delta @ h_o @ delta) / 2
            ratios.append(
                abs(bill[name].forecast.value - truth) / bill[name].forecast.standard_error
            )
    shares = [sum(r <= k for r in ratios) / len(ratios) for k in (1, 2, 3)]
    assert shares[0] > 0.5
    assert shares[1] > 0.8
    assert shares[2] > 0.9
    assert len(ratios) == 24


def test_sums_have_own_terms_and_cross_terms() -> None:
    _, problem = table()
    step = directions(problem)
    changes = {name: {name: problem.parameters[name] + one} for name, one in step.items()}
    bill = hb.price(problem, changes, samples=200)
    total, whole = bill.sum(), hb.price(problem, {"all": moved(problem, step)}, samples=200)
    assert total.diagonal.value == pytest.approx(sum(p.diagonal.value for p in bill.values()))
    assert total.full.value == pytest.approx(whole["all"].full.value)
    own = sum(price.full.value for price in bill.values())
    assert total.cross.value == pytest.approx(total.full.value - own)
    h_o, delta = dense(problem), flat(problem, step)
    each = [flat(problem, {name: one}) for name, one in step.items()]
    cross = float(delta @ h_o @ delta - sum(float(one @ h_o @ one) for one in each)) / 2
    assert abs(total.cross.value - cross) < 3 * total.cross.standard_error
    assert total.gradient.value == pytest.approx(sum(p.gradient.value for p in bill.values()))
    assert bill["0.weight"].cross.value == 0
    measured = bill.check([tuple(changes)]).measured[0]
    alone = whole.check(["all"]).measured[0]
    assert measured.value == pytest.approx(alone.value)


def test_changes_that_share_entries_have_no_sum() -> None:
    model, problem = table()
    bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=3), hb.rounded(bits=4)))
    with pytest.raises(ArgumentError, match="no two that change the same entries"):
        bill.sum()
    with pytest.raises(ArgumentError, match="no two that change the same entries"):
        bill.check([("0.weight, 3 bits", "0.weight, 4 bits")])
    with pytest.raises(ArgumentError, match="no two that change the same entries"):
        bill.sum(["0.weight, 3 bits", "0.weight, 3 bits"])
    with pytest.raises(ArgumentError, match=r"'0.weight, 5 bits' is unknown"):
        bill.sum(["0.weight, 5 bits"])


def naive(row: list[float], bits: int, block: int, symmetric: bool) -> list[float]:
    """Nearest of all levels, written out."""
    found: list[float] = []
    for start in range(0, len(row), block):
        some = row[start : start + block]
        if symmetric:
            step = max(some, key=abs) / -(2 ** (bits - 1))
            levels = [step * n for n in range(-(2 ** (bits - 1)), 2 ** (bits - 1))]
        else:
            low, high = min(some), max(some)
            levels = [low + (high - low) * n / (2**bits - 1) for n in range(2**bits)]
        found += [min(levels, key=lambda level, x=x: abs(level - x)) for x in some]  # type: ignore[misc]
    return found


@pytest.mark.parametrize(("bits", "symmetric"), [(2, True), (3, False), (4, True), (8, False)])
def test_rounding_goes_to_the_nearest_level_of_its_block(bits: int, symmetric: bool) -> None:
    old = NORMAL[:3, :21].double()
    old[1, 8:16] = 0.25
    old[2, 16:].abs_().add_(1)  # a short block far from 0
    edit = hb.rounded(bits=bits, block=8, symmetric=symmetric)
    expected = [naive(row, bits, 8, symmetric) for row in old.tolist()]
    assert torch.allclose(edit.new(old, "", lambda t: t), torch.tensor(expected).double())


def test_symmetric_rounding_to_four_bits_is_that_of_llama_cpp() -> None:
    quants = pytest.importorskip("gguf.quants")
    kind = pytest.importorskip("gguf").GGMLQuantizationType.Q4_0
    theirs = quants.dequantize(quants.quantize(NORMAL.numpy(), kind), kind)
    ours = hb.rounded(bits=4, block=32, symmetric=True).new(NORMAL, "", lambda t: t)
    # theirs keeps the step in half precision, and sends halves another way
    assert float((ours - torch.from_numpy(theirs)).abs().max()) < 0.002
    assert float((ours - NORMAL).abs().mean()) > 0.05


def test_pruning_merging_and_removing() -> None:
    old = torch.tensor([[3.0, -1.0], [0.5, -2.0]])
    other = {"w": torch.ones(2, 2)}
    assert hb.pruned(share=0.5).new(old, "w", lambda t: t).tolist() == [[3.0, 0.0], [0.0, -2.0]]
    merged = hb.merged(other, weight=0.25).new(old, "w", lambda t: t)
    assert merged.tolist() == [[2.5, -0.5], [0.625, -1.25]]
    assert hb.removed().new(old, "w", lambda t: t).tolist() == [[0, 0], [0, 0]]
    assert hb.pruned(share=0).new(old, "w", lambda t: t).equal(old)


def test_groups_are_cut_out_of_fused_weights() -> None:
    model, problem = table()
    groups = hb.custom_groups(model, {"top": "0.weight[0:4]", "low": "0.weight[4:8]"})
    changes = hb.change_each(groups, hb.removed(), hb.pruned(share=0.5), hb.merged(model))
    old = problem.parameters
    new = dict(changes["top, removed"].made(old))["0.weight"]
    assert torch.equal(new[4:], old["0.weight"][4:])
    assert not new[:4].any()
    half = dict(changes["low, 0.5 pruned"].made(old))["0.weight"]
    assert (half == 0).sum() == (half[4:] == 0).sum() == 8
    assert torch.equal(dict(changes["top, 0.5 merged"].made(old))["0.weight"], old["0.weight"])
    bill = hb.price(problem, changes)
    both = bill.check([("top, removed", "low, removed")]).measured[0]
    whole = hb.price(problem, {"all": {"0.weight": hb.removed()}}).check(1).measured[0]
    assert both.value == pytest.approx(whole.value)
    assert bill["top, removed"].relative_size == pytest.approx(1)


def test_matrices_are_all_but_embeddings_and_what_is_tied_to_them() -> None:
    model, _ = language()
    places = {change.place for change in hb.change_each(model, hb.removed()).values()}
    tables = {n for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    assert tables
    named = {n for n, p in model.named_parameters() if p.ndim > 1}
    assert places == named - {f"{table}.weight" for table in tables}


def fine(old: Tensor) -> Tensor:
    return old


REFUSED: dict[str, tuple[Callable[[hb.Problem], Any], str]] = {
    "absent": (lambda p: hb.price(p, {"a": {"9.weight": fine}}), "has no parameter '9.weight'"),
    "shape": (
        lambda p: hb.price(p, {"a": {"0.weight": torch.zeros(2, 2)}}),
        r"expected shape \(8, 4\), got \(2, 2\)",
    ),
    "not finite": (
        lambda p: hb.price(p, {"a": {"0.bias": torch.full((8,), math.nan)}}),
        "would become nan or infinite",
    ),
    "beyond the dtype": (
        lambda p: hb.price(p, {"a": {"0.bias": lambda old: old / 0}}),
        "would become nan or infinite",
    ),
    "no tensor": (
        lambda p: hb.price(p, {"a": {"0.bias": lambda old: 3}}),
        "expected a tensor of real numbers",
    ),
    "complex": (
        lambda p: hb.price(p, {"a": {"0.bias": torch.zeros(8, dtype=torch.cfloat)}}),
        "expected a tensor of real numbers",
    ),
    "frozen": (lambda p: hb.price(p, {"a": {"2.bias": fine}}), "'2.bias' is frozen"),
    "two budgets": (
        lambda p: hb.quantise(p.model, p, ["gguf:Q4_0"], bits=8, bytes=10.0),
        "give exactly one of bits=, bytes= and nats=",
    ),
    "budget in words": (
        lambda p: hb.quantise(p.model, p, ["gguf:Q4_0"], bits="8"),  # type: ignore[arg-type]
        "bits: expected a number, got '8'",
    ),
    "one sample": (lambda p: hb.price(p, {"a": {"0.bias": fine}}, samples=1), "at least 2"),
    "no seed": (lambda p: hb.price(p, {"a": {"0.bias": fine}}, seed=0.5), "whole number"),  # type: ignore[arg-type]
    "no changes": (lambda p: hb.price(p, {}), "at least one"),
    "empty change": (lambda p: hb.price(p, {"a": {}}), "by parameter name"),
    "no problem": (lambda p: hb.price(p.model, {}), "expected hessblocks.Problem"),  # type: ignore[arg-type]
    "other lacks it": (
        lambda p: hb.price(p, {"a": {"0.bias": hb.merged({})}}),
        "has no '0.bias' to merge with",
    ),
    "other of another shape": (  # of as many entries
        lambda p: hb.price(p, {"a": {"0.weight": hb.merged({"0.weight": torch.zeros(4, 8)})}}),
        r"other: '0.weight': expected shape \(8, 4\) to merge with, got \(4, 8\)",
    ),
    "callable loss": (
        lambda p: hb.price(
            hb.Problem(p.model, p.batches[0].raw, lambda out, batch: out.sum(-1)),
            {"a": {"0.bias": fine}},
        ),
        "need a formula for the loss's curvature",
    ),
    "one row": (
        lambda p: hb.price(
            hb.Problem(
                p.model, (torch.ones(1, 4).double(), torch.ones(1, 5).double()), "regression"
            ),
            {"a": {"0.bias": fine}},
        ),
        "one row",
    ),
    "bits": (lambda p: hb.rounded(bits=0), "bits: expected"),
    "block": (lambda p: hb.rounded(bits=3, block=0), "block: expected"),
    "share": (lambda p: hb.pruned(share=1.5), "share: expected"),
    "weight": (lambda p: hb.merged(p.model, weight=-1), "weight: expected"),
    "no edit": (lambda p: hb.change_each(p.model), "expected edits"),
    "edits alike": (
        lambda p: hb.change_each(p.model, hb.rounded(bits=3), hb.rounded(bits=3, block=32)),
        "2 edits with the names 3 bits",
    ),
    "no cost": (
        lambda p: hb.price(p, hb.change_each(p.model, hb.rounded(bits=3))).allocate(
            bits=3, costs={"0.weight, 3 bits": math.nan}
        ),
        "expected a number for '0.weight, 3 bits', got nan",
    ),
    "another model": (
        lambda p: hb.price(p, {"a": {"0.bias": fine}}).check(1, table()[1]),
        "bill's own model",
    ),
    "no names": (lambda p: hb.price(p, {"a": {"0.bias": fine}}).check([]), "which: expected"),
    "one row held out": (
        lambda p: hb.price(p, {"a": {"0.bias": fine}}).check(
            "a", tuple(one[:1] for one in p.batches[0].raw)
        ),
        "held_out: one row",
    ),
    "a sum held out": (
        lambda p: hb.price(
            hb.Problem(p.model, p.batches[0].raw, nn.CrossEntropyLoss(reduction="sum")),
            {"a": {"0.bias": fine}},
        ).check("a", p),
        "reduction='sum' grows with the amount of data",
    ),
    "a budget that is no number": (
        lambda p: hb.price(p, hb.change_each(p.model, hb.rounded(bits=3))).allocate(bits=math.nan),
        "a number",
    ),
    "no budget": (lambda p: hb.price(p, {"a": {"0.bias": fine}}).allocate(), "one of bits="),
    "nothing rounds": (
        lambda p: hb.price(p, {"a": {"0.bias": fine}}).allocate(bits=3),
        "found none",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_price_is_refused(case: str) -> None:
    model, _ = table()
    model[2].bias.requires_grad_(False)  # type: ignore[index, union-attr]
    data = torch.randn(12, 4, dtype=torch.float64), torch.randint(5, (12,))
    call, said = REFUSED[case]
    with pytest.raises(ArgumentError, match=said):
        call(hb.Problem(model, data, "classification"))


def test_a_compiled_models_own_names_are_taken() -> None:
    model, _ = table()
    data = torch.randn(12, 4, dtype=torch.float64), torch.randint(5, (12,))
    compiled = torch.compile(model)
    name = "_orig_mod.0.weight"
    new = dict(compiled.named_parameters())[name] + 0.01
    prices = [
        hb.price(hb.Problem(one, data, "classification"), {"a": {n: new.detach()}})["a"]
        for one, n in ((compiled, name), (model, name[10:]))
    ]
    assert prices[0].forecast == prices[1].forecast
    assert prices[0].place == "0.weight"


def test_tied_weights_do_not_change_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    problem = hb.Problem(model, torch.randint(6, (4, 5)))
    with pytest.raises(ArgumentError, match=r"'1.weight' is tied to '0.weight'"):
        hb.price(problem, {"a": {"0.weight": fine, "1.weight": hb.removed()}})
    assert hb.price(problem, {"a": {"0.weight": hb.rounded(bits=3)}})["a"].diagonal.value > 0


def test_a_check_of_weights_that_have_moved_since_is_refused() -> None:
    model, problem = table()
    bill = hb.price(problem, {"two": {"0.weight": hb.rounded(bits=2, block=4)}})
    with torch.no_grad():
        model[2].bias += 0.1  # type: ignore[index]
    with pytest.raises(ArgumentError, match="have changed since the prices"):
        bill.check(["two"])


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    model, problem = table(dtype=torch.float32)
    with torch.no_grad():
        model[2].weight.mul_(1e30)  # type: ignore[index, union-attr, operator]
    with pytest.raises(RunError, match="not finite"):
        hb.price(problem, {"a": {"0.weight": lambda old: old * 1e20}})


@cache
def rounded_bill() -> tuple[nn.Module, Bill]:
    model, problem = language()
    edits = [hb.rounded(bits=bits, block=4) for bits in (2, 3, 4, 8)]
    return model, hb.price(problem, hb.change_each(model, *edits), samples=40)


def test_allocation_costs_least_among_all_of_its_size() -> None:
    _, bill = rounded_bill()
    few = [f"{place}" for place in dict.fromkeys(p.place for p in bill.values())][:4]
    prices = [p for p in bill.values() if p.place in few]
    kept = {p.name: bill.changes[p.name] for p in prices}
    small = hb.price(bill.problem, kept, samples=40)
    by_place = [[p for p in small.values() if p.place == place] for place in few]
    for bits in (2, 2.6, 3.1, 4.5, 8, 20):
        found = small.allocate(bits=bits)
        assert found.total.bits is not None
        assert found.total.bits <= bits
        size = sum(p.size * (p.bits or 0) for p in found.choices)
        best = min(
            sum(p.forecast.value for p in some)
            for some in product(*by_place)
            if sum(p.size * (p.bits or 0) for p in some) <= size
        )
        # a point of the hull: nothing of its size costs less
        assert sum(p.forecast.value for p in found.choices) == pytest.approx(best)


def test_more_bits_never_cost_more_and_bounds_are_kept() -> None:
    _, bill = rounded_bill()
    spent = [bill.allocate(bits=2 + n / 10) for n in range(61)]
    costs = [sum(p.forecast.value for p in one.choices) for one in spent]
    assert all(b <= a for a, b in pairwise(costs))
    assert costs[0] > 3 * costs[-1]
    for nats in (costs[5], costs[30] * 1.001, costs[-1]):
        found = bill.allocate(nats=nats)
        assert sum(p.forecast.value for p in found.choices) <= nats
        assert any(
            f.names == found.names or (f.total.bits or 0) >= (found.total.bits or 0) for f in spent
        )
    with pytest.raises(ArgumentError, match="that of the most bits"):
        bill.allocate(nats=costs[-1] / 2)
    with pytest.raises(ArgumentError, match="expected at least 2, the fewest that were priced"):
        bill.allocate(bits=1.5)


def test_bits_go_where_other_costs_say() -> None:
    _, bill = rounded_bill()
    dearest = max(bill.values(), key=lambda price: price.forecast.value).place
    costs = {
        p.name: 4.0 ** -(p.bits or 0) * (1 + 1e6 * (p.place != dearest)) for p in bill.values()
    }
    own, others = bill.allocate(bits=2.5), bill.allocate(bits=2.5, costs=costs)
    bits = [{price.place: price.bits or 0 for price in found.choices} for found in (own, others)]
    assert bits[1][dearest] < bits[0][dearest]
    assert own.total.forecast.value < others.total.forecast.value
    assert all(bill[price.name] is price for price in others.choices)
    same = {price.name: price.forecast.value for price in bill.values()}
    assert bill.allocate(bits=2.5, costs=same).names == own.names


@pytest.mark.parametrize("bits", [2.5, 3.0, 4.2, 7.9])
def test_a_large_matrix_does_not_end_the_allocation(bits: float) -> None:
    """A step that does not fit is left out; the smaller ones behind it are taken."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 80), nn.Tanh(), nn.Linear(80, 6))
    problem = hb.Problem(model, torch.randint(6, (8, 5)))
    edits = [hb.rounded(bits=width, block=8) for width in (2, 3, 4, 8)]
    bill = hb.price(problem, hb.change_each(model, *edits), samples=16)
    found = bill.allocate(bits=bits)
    size = sum(price.size for price in found.choices)
    for place, chosen in zip((price.place for price in found.choices), found.choices, strict=True):
        wider = [
            p for p in bill.values() if p.place == place and (p.bits or 0) > (chosen.bits or 0)
        ]
        for price in wider:
            cheaper = price.forecast.value < chosen.forecast.value
            more = price.size * ((price.bits or 0) - (chosen.bits or 0)) / size
            assert not (cheaper and (found.total.bits or 0) + more <= bits)


def test_bits_cost_at_most_what_uniform_ones_cost() -> None:
    """The small matrix' step to 8 bits saves most a bit, and leaves no room for a large one's."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(6, 8), nn.Linear(8, 6), nn.Linear(6, 106), nn.Tanh(), nn.Linear(106, 6)
    )
    problem = hb.Problem(model, torch.randint(6, (8, 5)))
    edits = [hb.rounded(bits=width, block=2) for width in (2, 3, 8)]
    bill = hb.price(problem, hb.change_each(model, *edits), samples=4)
    at = {"1.weight": (0.4, 0.39, 0.0), "2.weight": (0.8, 0.0, 0.0), "4.weight": (0.8, 0.0, 0.0)}
    widths = (2, 3, 8)
    costs = {p.name: at[p.place][widths.index(int(p.bits or 0))] for p in bill.values()}
    found = bill.allocate(bits=3, costs=costs)
    assert sum(costs[name] for name in found.names) == pytest.approx(0.39)
    # also where one place has a single edit, as one that no gradient reaches
    prices = [replace(p, forecast=replace(p.forecast, value=costs[p.name])) for p in bill.values()]
    prices += [replace(prices[0], name="fixed", place="fixed", how="other", size=8, bytes=8.0)]
    uniform = 8.0 + sum(p.bytes or 0 for p in prices if p.how == "3 bits")
    chosen = allocate(prices, bytes=uniform)
    assert sum(p.forecast.value for p in chosen if p.place != "fixed") == pytest.approx(0.39)


def test_symmetric_rounding_is_a_change_of_its_own() -> None:
    model, _ = language()
    both = hb.change_each(model, hb.rounded(bits=3), hb.rounded(bits=3, symmetric=True))
    assert len(both) == 2 * len(hb.change_each(model, hb.rounded(bits=3)))


def test_an_allocation_is_a_table_and_is_checked_together(tmp_path: Any) -> None:
    _, bill = rounded_bill()
    found = bill.allocate(bits=3)
    found.save(tmp_path / "bits.csv")
    assert (tmp_path / "bits.csv").read_text().startswith("place,how,bits,bytes,size,")
    assert found.total.size == sum(p.size for p in found.choices)
    check = bill.check([found.names], {"input_ids": torch.randint(7, (6, 8))})
    assert check.held_out
    assert check.measured[0].value > 0
    assert "bits on average" in str(found)


def test_changes_that_cost_nothing_leave_the_ratio_of_the_others() -> None:
    model, problem = language()
    changes = {
        "none": {"model.token_embedding.weight": fine},
        **hb.change_each(model, hb.rounded(bits=3)),
    }
    check = hb.price(problem, changes, samples=8).check(10**6)
    assert math.isnan(check.to_rows()[0]["ratio"])
    assert f"{len(changes)} changes measured" in str(check)
    assert "nan" not in str(check)


def test_pictures_show_both_errors_and_the_line_of_equals() -> None:
    _, bill = rounded_bill()
    check = bill.check(6)
    axis = check.plot().axes[0]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    (guide, *_) = [line for line in axis.lines if line.get_linestyle() not in ("none", "None")]
    assert list(guide.get_xdata()) == list(guide.get_ydata())
    bars = [one for one in axis.containers if one.has_xerr and one.has_yerr]
    assert sum(len(one.lines[0].get_xdata()) for one in bars) == 6
    assert len(bill.plot().axes[0].containers) == 4
    row = check.to_rows()[0]
    assert row["ratio"] == pytest.approx(row["forecast"] / row["measured"])
    assert "6 changes measured on the bill's own data" in str(check)
    assert check.within(1) <= check.within(2) <= check.within(1e9) == 1


def test_a_count_is_spread_over_the_forecasts() -> None:
    _, bill = rounded_bill()
    found = [price.forecast.value for price in bill.check(5).forecasts]
    every = sorted(price.forecast.value for price in bill.values())
    assert found == sorted(found)
    assert found[0] in every[: len(every) // 5 + 1]
    assert found[-1] in every[-len(every) // 5 - 1 :]
    assert len(bill.check(10**6).forecasts) == len(bill)


def test_half_precision_prices_what_is_stored() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5)).bfloat16()
    data = torch.randn(12, 4).bfloat16(), torch.randint(5, (12,))
    problem = hb.Problem(model, data, "classification")
    change = {"less than a step": {"0.weight": lambda old: old.float() + 1e-6}}
    with pytest.warns(UserWarning, match="bfloat16"):
        bill = hb.price(problem, change)
    assert bill["less than a step"].diagonal.value == 0


@pytest.mark.slow  # all the code of the page, six seconds
def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "price.md").read_text(encoding="utf-8")
    (first, second), (shown,) = (
        re.findall(rf"```{kind}\n(.*?)```", page, flags=re.DOTALL) for kind in ("python", "text")
    )
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(first, "docs/price.md", "exec"), names)
    number = re.compile(r"\d+\.?\d*(?:e-?\d+)?")
    assert number.sub("#", printed.getvalue()) == number.sub("#", shown)
    pairs = zip(number.findall(printed.getvalue()), number.findall(shown), strict=True)
    assert all(float(got) == pytest.approx(float(said), rel=0.2) for got, said in pairs)
    exec(compile(second, "docs/price.md", "exec"), names)
    assert (tmp_path / "bits.csv").is_file()


def test_shares_that_differ_have_names_that_differ() -> None:
    model, _ = table()
    near = hb.change_each(model, hb.pruned(share=0.12341), hb.pruned(share=0.12342))
    assert len(near) == 2 * len(hb.change_each(model, hb.removed()))
    assert "0.weight, 0.9996 pruned" in hb.change_each(model, hb.pruned(share=0.9996))
    assert hb.merged(model, weight=0.99999).how == "0.99999 merged"


def _scale_buffer(model: Any, _: Tensor) -> None:
    model.scale.data.mul_(2)


def _hook(model: Any, _: Tensor) -> None:
    model[2].register_forward_hook(lambda module, args, out: 3 * out)


def _write_batch(_: Any, inputs: Tensor) -> None:
    inputs.data.mul_(2)


@pytest.mark.parametrize("write", [_scale_buffer, _hook, _write_batch])
def test_a_check_of_another_loss_than_was_priced_is_refused(
    write: Callable[[Any, Tensor], None],
) -> None:
    model, problem = table()
    model.register_buffer("scale", torch.ones(3))
    inputs = problem.batches[0].raw[0]
    bill = hb.price(problem, {"two": {"0.weight": hb.rounded(bits=2, block=4)}})
    bill.check(1)
    write(model, inputs)
    with pytest.raises(ArgumentError, match="have changed since the prices; price again"):
        bill.check(1)


def test_what_passes_and_uses_leave_behind_is_not_a_change() -> None:
    model, problem = table()
    seen: list[Any] = []
    model[2].register_forward_hook(lambda module, args, out: seen.append(len(seen)))  # type: ignore[index]
    bill = hb.price(problem, {"two": {"0.weight": hb.rounded(bits=2, block=4)}})
    first = bill.check(1)
    model.train()
    again = hb.Problem(model, problem.batches[0].raw, "classification")
    assert bill.check(1, again).measured == first.measured == bill.check(1).measured
    assert seen


def test_a_change_that_is_another_one_when_made_again_is_refused() -> None:
    _, problem = table()
    mine = problem.parameters["0.weight"] * 1.05
    other = {name: tensor * 1.05 for name, tensor in problem.parameters.items()}
    changes: dict[str, Any] = {"mine": {"0.weight": mine}, "merge": {"2.weight": hb.merged(other)}}
    bill = hb.price(problem, changes)
    bill.check(2)
    mine[0] *= -1
    other["2.weight"].neg_()
    for name in changes:
        with pytest.raises(
            ArgumentError, match=f"'{name}'.* the change of .* differs from the one"
        ):
            bill.check(name)
    assert hb.price(problem, changes).check(2).within(1e9) == 1
    noise = {"noise": {"0.weight": lambda old: old + 0.02 * torch.randn_like(old)}}
    with pytest.raises(ArgumentError, match="give a function without randomness"):
        hb.price(problem, noise)
    few = hb.price(table(rows=2)[1], noise, samples=2)  # made once, for all gradients together
    with pytest.raises(ArgumentError, match="give a function without randomness"):
        few.check("noise")


def test_a_check_says_the_median_of_its_ratios() -> None:
    _, bill = rounded_bill()
    check = bill.check(4)
    ratios = sorted(row["ratio"] for row in check.to_rows())
    said = (
        f"median ratio forecast/measured {(ratios[1] + ratios[2]) / 2:.3g}, range {ratios[0]:.3g}"
    )
    assert f"{said} to {ratios[3]:.3g}; " in str(check)
    assert re.search(r"; \d+ %, \d+ %, \d+ % within 1, 2, 3 standard errors$", str(check))


@pytest.mark.bad_input
def test_a_bill_is_a_mapping_whose_refusals_are_sentences() -> None:
    bill: Any = rounded_bill()[1]
    assert "nope" not in bill
    assert bill.get("nope") is None
    with pytest.raises(ArgumentError, match=r"^change: 'nope' is unknown"):
        bill["nope"]
    numbers: Any = dict.fromkeys(bill, "a")
    for call, said in (
        (lambda one: bill.sum(one), "expected names of changes, got 3"),
        (lambda one: bill.sum([one]), r"expected names of changes, got \[3\]"),
        (lambda one: bill.check(None), "expected names of changes, got None"),
        (lambda one: bill.check(2.5), "expected names of changes, got 2.5"),
        (lambda one: bill.check(0), "or a number of them, got 0"),
        (lambda one: bill.check(-one), "or a number of them, got -3"),
        (lambda one: bill.allocate(bits=str(one)), "bits: expected a number, got '3'"),
        (lambda one: bill.allocate(bits=one, costs=one), "costs: expected numbers by name"),
        (lambda one: bill.allocate(bits=one, costs=numbers), "expected a number for .*, got 'a'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            call(3)


loose: Any = hb


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: loose.pruned(share="0.1"), "share: expected a number from 0 to 1, got '0.1'"),
        (lambda p: loose.pruned(share=None), "share: expected a number from 0 to 1, got None"),
        (lambda p: loose.merged(3), "other: expected a model or tensors by parameter name, got 3"),
        (
            lambda p: loose.price(p, {"a": {"0.bias": loose.merged({"0.bias": 3})}}),
            "has no '0.bias'",
        ),
        (
            lambda p: loose.change_each(p.model, 3),
            r"expected edits, .* got edits \[3\] and 2 places",
        ),
        (lambda p: loose.change_each(3, loose.removed()), r"got edits \['removed'\] and 0 places"),
        (lambda p: loose.change_each({"a": 3}, loose.removed()), "0 places"),
        (lambda p: loose.price(p, None), "by parameter name, got None"),
        (lambda p: loose.price(p, 3), "by parameter name, got 3"),
        (lambda p: loose.price(p, [1]), "by parameter name, got 1"),
        (lambda p: loose.price(p, {1: {"0.bias": fine}}), r"a name of its own, got \[1\]"),
        (
            lambda p: loose.price(p, {"a": {"0.bias": None}}),
            "a tensor of real numbers, got NoneType",
        ),
        (lambda p: loose.price(p, {"a": {"0.bias": 3.0}}), "a tensor of real numbers, got float"),
        (
            lambda p: loose.price(p, {"a": {"0.bias": fine}}).check(
                "a", loose.Problem(p.model, p.batches[0].raw, nn.CrossEntropyLoss())
            ),
            "held_out: expected the bill's own loss, classification, got CrossEntropyLoss",
        ),
    ],
)
def test_what_is_of_another_type_is_refused_in_a_sentence(
    call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        call(table()[1])


def test_pruning_rounds_its_count_to_the_nearest():
    old = {"weight": torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])}
    changes = hb.change_each(torch.nn.Linear(7, 1, bias=False), hb.pruned(share=0.4))
    (new,) = dict(changes["weight, 0.4 pruned"].made(old)).values()
    assert int((new == 0).sum()) == 3  # of 2.8


def test_given_weights_are_measured_if_they_are_those_that_were_priced() -> None:
    model, problem = table()
    bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=3)), 8)
    made = dict(bill.changes["0.weight, 3 bits"].made(problem.parameters))
    names = ["0.weight, 3 bits"]
    found, again = bill.together(names), bill.together(names, new=made)
    assert again.measured[0].value == pytest.approx(found.measured[0].value, rel=1e-12)
    with pytest.raises(ArgumentError, match="differs from the one that was priced"):
        bill.together(names, new={"0.weight": made["0.weight"] + 0.1})
