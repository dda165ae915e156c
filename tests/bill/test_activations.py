"""Prices of rounded keys, values and inputs: dense algebra, closed form, a cache that rounds."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DynamicCache,
    Gemma2Config,
    Gemma3nTextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MiniCPM3Config,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    QuantizedCache,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hessblocks as hb
from hessblocks.bill.activations import (
    ActivationChange,
    activations_of,
    draw_activations,
    further_squares,
)
from hessblocks.bill.draws import Draws
from hessblocks.bill.prices import ratio_estimate
from hessblocks.bill.responses import responses
from hessblocks.bill.secant import STEPS, without_ruling_pieces
from hessblocks.bill.tapping import attention_tensors
from hessblocks.errors import ArgumentError
from hessblocks.linalg import Estimate

SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2: dict[str, Any] = {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 48}
ONE: dict[str, Any] = {"num_hidden_layers": 1}
OSS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 2, "sliding_window": 3}
OSS["experts_implementation"] = "eager"  # the others have no double precision
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "a window": lambda: MistralConfig(**SMALL, sliding_window=3),
    "a soft cap": lambda: Gemma2Config(**SMALL, sliding_window=4, attn_logit_softcapping=2.0),
    "gpt2": lambda: GPT2Config(**GPT2, **SMALL),
    "neox": lambda: GPTNeoXConfig(**SMALL),
    "sinks": lambda: GptOssConfig(**SMALL, **OSS),
}
OURS: dict[str, dict[str, Any]] = {
    "pre-ln": {},
    "sas": {},
    "modern": {},
    "skipless[attention.window=3]": {},
    "skipless[attention.sink=sink]": {},
    "pre-ln[attention.query_key=one-matrix]": {"position": "learned"},
    "pre-ln[attention.scores=linear]": {},
}


def built(family: str = "llama") -> PreTrainedModel:
    torch.manual_seed(0)
    if family in OURS:
        sizes = {"depth": 2, "width": 16, "heads": 2, "vocab_size": 101, "context": 48}
        ours: PreTrainedModel = hb.build(family, **{**sizes, **OURS[family]}).double().eval()
        for parameter in ours.parameters():  # gains and zeros of the start are special values
            parameter.data += 0.1 * torch.randn_like(parameter)
        return ours
    model: PreTrainedModel = AutoModelForCausalLM.from_config(FAMILIES[family]())
    model.double().eval()
    return model


def text(rows: int = 6, tokens: int = 7, seed: int = 1, words: int = 11) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(1, words, (rows, tokens), generator=draw)}


def dense_price(model: nn.Module, tokens: Tensor, change: ActivationChange) -> float:
    """½ Σ diag(JᵀH_ℓJ) δ², row by row, by the Jacobian of the logits; taps by eager code."""
    name, kind = change.tap.split()
    module, total = model.get_submodule(name), 0.0
    place = ("queries", "keys", "values").index(kind)
    eager = ALL_ATTENTION_FUNCTIONS["sdpa"]
    for row in tokens:
        seen: list[Tensor] = []

        def logits(step: Tensor, row: Tensor = row, seen: list[Tensor] = seen) -> Tensor:
            def attention(own: Any, *given: Any, **more: Any) -> Any:
                if own is module:
                    seen.append(given[place].detach())
                    given = (*given[:place], given[place] + step, *given[place + 1 :])
                return eager(own, *given, **more)

            ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
            try:
                found: Tensor = model(row[None], use_cache=False).logits[0, :-1]
                return found
            finally:
                ALL_ATTENTION_FUNCTIONS._local_mapping.pop("sdpa")  # the global one is left

        p = logits(torch.zeros(())).detach().softmax(-1)
        x = seen[0]
        jacobian = torch.autograd.functional.jacobian(logits, torch.zeros_like(x))
        jacobian = jacobian.flatten(2)  # tokens, classes, entries
        curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        diagonal = torch.einsum("tce,tcd,tde->e", jacobian, curvature, jacobian).view_as(x)
        cost = diagonal * (change.grid.new(x) - x).square()
        cost = cost if change.head is None else cost[:, change.head]
        total += float(cost.sum()) / 2
    return total / tokens[:, 1:].numel()


def responses_of(problem: hb.Problem, change: Any, heads: int = 1) -> Tensor:
    """What rounding moves and what small errors would, by piece and head; equal for values."""
    shape = {change.tap: (heads, 4)}
    found = responses(problem, {change.tap: [change.grid]}, shape, [*problem.batches])
    return found.get((change.tap, change.grid), torch.ones(3, 1, heads))


def test_over_40_seeds_prices_are_unbiased_and_their_bars_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hessblocks.bill.responses.SIGNS", 30)  # signs are the same in all bills
    model, data = built(), text(rows=24)
    changes: Any = hb.cache_changes(model, keys=3, values=2, queries=3, heads=True)
    problem = hb.Problem(model, [{"input_ids": row[None]} for row in data["input_ids"]])
    bills = [hb.price(problem, changes, samples=24, seed=seed) for seed in range(40)]
    looked_at = hb.Problem(model, [{"input_ids": row[None]} for row in data["input_ids"][1::3]])
    for kind in ("diagonal", "forecast"):  # at such costs the loss does not leave its quadratic
        apart = []
        for name, change in changes.items():
            truth = dense_price(model, data["input_ids"], change)
            if kind == "forecast":
                moved, small, _ = responses_of(looked_at, change, 1 + ("queries" in name)).sum(1)
                truth *= float((moved / small)[change.head])
            estimates = [getattr(bill[name], kind) for bill in bills]
            pairs = [(estimate.value, estimate.standard_error) for estimate in estimates]
            values, bars = torch.tensor(pairs, dtype=torch.float64).T
            assert abs(values.mean() - truth) < 4 * values.std() / 40**0.5, name
            apart.append((values - truth).abs() / bars)
        shares = [float((torch.cat(apart) < bound).double().mean()) for bound in (1, 2, 3)]
        assert all(a > least for a, least in zip(shares, (0.6, 0.9, 0.98), strict=True)), shares


def test_the_spread_over_pieces_has_the_error_of_a_response() -> None:
    model, rows = built(), text(rows=24)["input_ids"]
    problem = hb.Problem(model, [{"input_ids": row[None]} for row in rows])
    (name, change), *_ = hb.cache_changes(model, keys=2).items()
    draws, *_ = draw_activations(problem, [change], samples=24, seed=0)
    looked_at = slice(1, None, 3)
    some = hb.Problem(model, [{"input_ids": row[None]} for row in rows[looked_at]])
    full, small, _ = responses_of(some, change)[:, :, 0]
    response = full.sum() / small.sum()
    left_out = (full.sum() - full) / (small.sum() - small)
    jackknife = ((left_out - left_out.mean()).square().sum() * 7 / 8).sqrt()
    plain, shaped = (draws.by_piece(values)[:, 0] for values in (draws.squares, draws.forecasts))
    assert float(shaped.sum()) == pytest.approx(float(plain.sum() * response)), name
    apart = shaped - plain * response
    assert float(apart.sum()) == pytest.approx(0, abs=1e-12)
    assert apart.nonzero()[:, 0].tolist() == [*range(24)][looked_at]
    assert float(apart.norm()) == pytest.approx(float(jackknife * plain.sum()), rel=0.2)


@pytest.mark.parametrize("kind", ["queries", "keys"])
def test_a_response_is_what_rounding_moves_over_what_the_jacobian_of_the_output_says(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hessblocks.bill.responses.SIGNS", 400)
    model, heads, place = built(), 2 if kind == "queries" else 1, int(kind == "keys")
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0  # padding moves nothing
    problem = hb.Problem(model, {**text(rows=2), "attention_mask": mask})
    (change, *_) = activations_of(hb.cache_changes(model, **{kind: 2}).values())
    found = responses_of(problem, change, heads)
    calls: list[Any] = []
    eager = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(own: Any, *given: Any, **more: Any) -> Any:
        calls.append((own, given, more))
        return eager(own, *given, **more)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", attention)
    model(**text(rows=2), attention_mask=mask, use_cache=False)
    own, given, more = calls[0]

    def output(x: Tensor) -> Tensor:
        new: Tensor = eager(own, *given[:place], x, *given[place + 1 :], **more)[0]
        return new * mask[..., None, None]

    old = given[place].detach()
    delta = change.grid.new(old) - old
    moved = (output(old + delta) - output(old)).square().sum((0, 1, 3))
    jacobian = torch.autograd.functional.jacobian(output, old).square().sum((0, 1, 3)).flatten(1)
    small = jacobian @ delta.square().flatten()  # by head of the output
    expected = torch.stack([moved, small]).view(2, heads, -1).sum(2)
    torch.testing.assert_close(found[0, 0], expected[0])
    torch.testing.assert_close(found[1, 0], expected[1], rtol=0.1, atol=0)
    torch.testing.assert_close(found[2, 0], expected[1], rtol=1.0, atol=0)  # of one sign


class OneAttention(PreTrainedModel):
    """Attention of one-hot tokens: its keys and values are rows of the weights."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig, tokens: int, width: int) -> None:
        super().__init__(config)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(tokens, width, dtype=torch.float64)) for _ in range(3)
        )

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:
        x = nn.functional.one_hot(input_ids, len(self.key)).double()
        attend = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", scaled_dot_product_attention)
        given = ((x @ w)[:, None] for w in (self.query, self.key, self.value))
        found: Tensor = attend(self, *given, None, is_causal=False)[0][:, :, 0]
        return found


def test_for_one_attention_the_price_is_that_of_the_closed_form() -> None:
    torch.manual_seed(3)
    model = OneAttention(PretrainedConfig(**ONE), tokens=5, width=4)
    ids = torch.stack([torch.randperm(5) for _ in range(4)])
    target = torch.randn(4, 5, 4, dtype=torch.float64)
    problem = hb.Problem(model, [({"input_ids": ids}, target)], "regression")
    changes: Any = hb.cache_changes(model, keys=2, values=2, queries=2)
    x = nn.functional.one_hot(ids, 5).double()
    h = hb.attention_hessian(x, *(w.detach() for w in model.parameters()), target=target)
    bill = hb.price(problem, changes, samples=4000)
    for name, weight in (("query", model.query), ("key", model.key), ("value", model.value)):
        kind = {"query": "queries", "key": "keys", "value": "values"}[name]
        delta = changes[f" {kind}, 2 bits per token"].grid.new(weight.detach()) - weight.detach()
        diagonal = torch.diag(h.block(name, name, part="outer").dense())
        truth = float((diagonal * delta.flatten().square()).sum()) / 2
        assert abs(bill[f" {kind}, 2 bits per token"].diagonal.value / truth - 1) < 0.05


class RoundingCache(DynamicCache):
    """A cache that stores rounded keys and values: an independent witness of `check`."""

    def __init__(self, model: PreTrainedModel, new: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config=model.config)
        self._new = new

    def update(self, key_states: Tensor, value_states: Tensor, *rest: Any, **more: Any) -> Any:
        return super().update(self._new(key_states), self._new(value_states), *rest, **more)


@pytest.mark.parametrize("family", [*FAMILIES, *OURS])
def test_what_check_measures_is_what_a_cache_that_rounds_costs_token_by_token(family: str) -> None:
    model, data = built(family), text()
    changes = hb.cache_changes(model, keys=3, values=3)
    bill = hb.price(hb.Problem(model, data), changes)
    found = bill.check([tuple(changes)]).measured[0].value
    before = model(**data, use_cache=False).logits.log_softmax(-1)
    grid: Any = next(iter(changes.values()))
    cache, steps = RoundingCache(model, grid.grid.new), []
    with torch.no_grad():
        for token in range(7):
            ids = data["input_ids"][:, token : token + 1]
            steps.append(model(ids, past_key_values=cache, use_cache=True).logits)
    after = torch.cat(steps, 1).log_softmax(-1)
    kl = (before.exp() * (before - after)).sum(-1)[:, :-1].mean()
    assert found == pytest.approx(float(kl.detach()), rel=1e-6)


def test_what_check_measures_is_what_the_quantised_cache_of_transformers_costs() -> None:
    model, data = built(), text()
    cache = QuantizedCache("fp8", model.config)  # the backend without another package
    with torch.no_grad():
        model(**data, past_key_values=cache)  # a scale for each tensor
    layers: Any = cache.layers
    changes: dict[str, Any] = hb.cache_changes(model, keys=3, values=3)
    for name, change in changes.items():
        layer, kind = layers[int(change.tap.split(".")[2])], change.tap.rpartition(" ")[2]
        scale = getattr(layer, f"_quantized_{kind}")[1]

        def levels(x: Tensor, layer: Any = layer, scale: Tensor = scale) -> Tensor:
            found: Tensor = layer._dequantize(layer._quantize(x, scale))
            return found

        changes[name] = replace(change, grid=replace(change.grid, levels=levels))
    bill = hb.price(hb.Problem(model, data), changes)
    found = bill.check([tuple(changes)]).measured[0].value
    for layer in layers:  # empty again, with the scales
        for name in ("_quantized_keys", "_quantized_values"):
            whole, scale = getattr(layer, name)
            setattr(layer, name, (whole[..., :0, :], scale))
        layer.cumulative_length = 0
    with torch.no_grad():
        before = model(**data, use_cache=False).logits.log_softmax(-1)
        steps = [model(ids, past_key_values=cache).logits for ids in data["input_ids"].split(1, 1)]
    after = torch.cat(steps, 1).log_softmax(-1)
    kl = float((before.exp() * (before - after)).sum(-1)[:, :-1].mean())
    assert kl > 1e-6
    assert found == pytest.approx(kl, rel=1e-5)
    assert 0.3 < bill.sum(changes).forecast.value / found < 3


@pytest.mark.parametrize("family", [*FAMILIES, *OURS])
def test_fine_rounding_costs_what_is_forecast(family: str) -> None:
    words = 101 if family in OURS else 11  # equal tokens have equal errors in the first layer
    model, data = built(family), text(rows=16, tokens=40, words=words)
    changes = hb.cache_changes(model, keys=7, values=7)
    bill = hb.price(hb.Problem(model, data), changes, samples=256)
    check = bill.check([tuple(n for n in changes if kind in n) for kind in ("keys", "values")])
    assert all(0.7 < row["ratio"] < 1.4 for row in check.to_rows()), check.to_rows()


class Flip(nn.Module):
    """A sum that flips a tanh, which is flat but near 0, beside a smooth function of it."""

    def __init__(self, gain: float = 1000.0) -> None:
        super().__init__()
        self.gain = gain
        self.read, self.flip, self.smooth = nn.Linear(4, 1), nn.Linear(1, 3), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        total = self.read(x)
        flipped: Tensor = self.flip(torch.tanh(self.gain * total)) + self.smooth(total)
        return flipped


def pieces_measured(draws: Draws) -> list[int]:
    """List the pieces of text that count by their measured divergence."""
    assert draws.measured is not None
    return draws.measured.any(1).nonzero()[:, 0].tolist()


def test_where_a_tiny_step_flips_the_measured_divergence_of_that_piece_counts() -> None:
    torch.manual_seed(0)
    model, x = Flip().double(), torch.randn(16, 4).double() + 2
    model.read.weight.data.abs_()
    x[5, 0] -= model.read(x[5]).item() / model.read.weight[0, 0].item()  # there the sum is 0
    problem = hb.Problem(model, [(x, torch.zeros(16, dtype=torch.long))], loss="classification")
    changes = hb.activation_changes(model, "read", bits=4)
    draws = hb.price(problem, changes, samples=16).draws
    assert pieces_measured(draws) == [5]
    with torch.no_grad():
        step = x[5].abs().max() / 7
        before, after = (model(v).log_softmax(-1) for v in (x[5], (x[5] / step).round() * step))
    divergence = (before.exp() * (before - after)).sum() / 16
    torch.testing.assert_close(draws.by_piece(draws.squares)[5, 0] / 2, divergence)
    whole = hb.price(problem, changes, samples=16)
    told = "(1 of 16 pieces of text cost so much that they count by their measured KL)"
    assert told in str(whole)


def test_a_small_cost_that_a_tiny_step_flips_counts_by_its_divergence() -> None:
    torch.manual_seed(0)
    model, x = Flip().double(), torch.randn(16, 4).double() + 2
    model.read.weight.data.abs_()
    for layer in (model.flip, model.smooth):
        layer.weight.data *= 1e-3
    x[5, 0] -= model.read(x[5]).item() / model.read.weight[0, 0].item()
    problem = hb.Problem(model, [(x, torch.zeros(16, dtype=torch.long))], loss="classification")
    changes = hb.activation_changes(model, "read", bits=4)
    listed = [*changes.values()]
    first, _, rows, _ = draw_activations(problem, listed, samples=16, seed=0)
    further = further_squares(problem, activations_of(listed), rows[5], first, seed=0)
    assert further.item() / 2 * 16 < 0.3  # within trust
    assert pieces_measured(without_ruling_pieces(problem, listed, first, rows, 0)) == [5]


def of_scaled_rows(*scales: float) -> tuple[hb.Problem, Any, Any, Any]:
    """Draw prices of the inputs of linear logits, with some rows larger than others."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(6, 9)).double(), torch.randn(12, 6).double()
    x[: len(scales)] *= torch.tensor(scales, dtype=torch.float64)[:, None]
    problem = hb.Problem(model, [(x, torch.zeros(12, dtype=torch.long))], loss="classification")
    changes = [*hb.activation_changes(model, bits=2).values()]
    draws, _, rows, _ = draw_activations(problem, changes, samples=12, seed=0)
    return problem, changes, draws, rows


def test_a_piece_beyond_trust_that_costs_many_times_the_median_counts_by_its_divergence() -> None:
    problem, changes, draws, rows = of_scaled_rows(6.0)
    ruled = without_ruling_pieces(problem, changes, draws, rows, 0)
    assert pieces_measured(ruled) == [0]
    x, model = problem.batches[0].inputs[0], problem.model
    step = x.abs().max()
    with torch.no_grad():
        before, after = (model(v).log_softmax(-1) for v in (x, (x / step).round() * step))
    divergence = (before.exp() * (before - after)).sum() / 12
    torch.testing.assert_close(ruled.squares[0, 0] / 2, divergence)
    torch.testing.assert_close(ruled.squares[1:], draws.squares[1:])


def test_what_further_samples_do_not_find_large_stays_large() -> None:
    problem, changes, draws, rows = of_scaled_rows(*[8.0] * 12)  # all beyond trust
    squares = draws.squares.clone()
    squares[3] *= 30
    chance = replace(draws, squares=squares)
    ruled = without_ruling_pieces(problem, changes, chance, rows, 0)
    assert 3 not in pieces_measured(ruled)
    assert ruled.squares[3] == squares[3]


def test_further_samples_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, changes, draws, rows = of_scaled_rows()
    monkeypatch.setattr("hessblocks.bill.activations.FURTHER", 1)
    further = [further_squares(problem, changes, r, draws, seed=0) for r in rows]
    assert not (torch.stack(further) == draws.squares).any()


def linear_logits(seed: int) -> tuple[hb.Bill, Callable[[float], Tensor]]:
    """Price inputs of linear logits; return the divergences of a share of their change too."""
    torch.manual_seed(seed)
    model, x = nn.Sequential(nn.Linear(6, 9)).double(), torch.randn(12, 6).double()
    model[0].weight.data *= 20
    problem = hb.Problem(model, [(x, torch.zeros(12, dtype=torch.long))], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, bits=(2, 4)), samples=600)

    def divergences(share: float) -> Tensor:
        step = x.abs().amax(1, keepdim=True)
        with torch.no_grad():
            before, change = model(x), share * (model((x / step).round() * step) - model(x))
            p, after = before.softmax(-1), (before + change).log_softmax(-1)
            return (p * (p.log() - after)).sum(-1)

    return bill, divergences


def quadratic_of(bill: hb.Bill, name: str) -> Estimate:
    """The forecast of a change before it grows."""
    draws, column = bill.draws, [*bill].index(name)
    parts = draws.by_piece(draws.forecasts[:, column]) / 2
    return ratio_estimate(parts, draws.shares, len(draws.pieces))


@pytest.fixture
def nothing_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no piece of text count by its measured divergence."""
    monkeypatch.setattr("hessblocks.bill.secant.RULING", math.inf)


def test_what_is_measured_on_a_piece_does_not_grow_again() -> None:
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    draws = Draws(
        shares=torch.tensor([0.25, 0.75], dtype=torch.float64),
        pieces=torch.tensor([0, 1]),
        along=torch.zeros(2, 0),
        squares=torch.tensor([[10.0], [3.0]], dtype=torch.float64),
        pairs=torch.zeros(0, 1),
        slopes=torch.zeros(2, 0),
        measured=torch.tensor([[True], [False]]),
        growth=torch.stack([x, x**2, 0.1 * x])[None],
    )
    value, slope, error = draws.grown([0])
    assert value * 6.5 == pytest.approx(5 + 0.75 * 4)  # 1.5 on 3/4 of the text is 2 a token there
    assert slope * 6.5 == pytest.approx(5 + 0.75 * 2 * 4, rel=0.2)  # of an interpolated curve
    assert error == pytest.approx(0.75 * 0.2)
    assert type(value) is float  # not numpy's, whose comparisons JSON does not take


@pytest.mark.usefixtures("nothing_rules")
def test_a_forecast_grows_as_the_loss_does_along_the_change_of_the_logits() -> None:
    bill, divergences = linear_logits(seed=9)

    def divergence(share: float) -> float:
        return float(divergences(share).mean())

    quadratic = divergence(1e-3) * 1e6
    for price, most in zip(bill.values(), (1.01, 0.3), strict=True):
        small = quadratic_of(bill, price.name)
        share = (small.value / quadratic) ** 0.5
        assert share < most
        assert price.forecast.value == pytest.approx(divergence(share), rel=0.02)
        ends = divergence(share * 1.05**0.5) - divergence(share * 0.95**0.5)
        slope = ends / (0.1 * small.value)
        pairs = [divergences(share), divergences(1e-3) * (1e3 * share) ** 2]
        left_out = torch.stack([(a - a.sum()) / 11 for a in pairs])  # jackknife over the rows
        ratios = left_out[0] / left_out[1]
        missed = float(((ratios - ratios.mean()).square().sum() * 11 / 12).sqrt())
        errors = slope * small.standard_error, missed * small.value
        assert errors[1] > 0.05 * errors[0]
        assert price.forecast.standard_error == pytest.approx(math.hypot(*errors), rel=0.15)
    assert bill["0 inputs, 2 bits"].forecast.value > 1.5 * bill["0 inputs, 2 bits"].diagonal.value


def test_the_bar_of_the_dearest_edit_covers_what_it_was_measured_to_miss() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 9)).double()
    model[0].weight.data *= 3  # coarse rounding reaches the flat of the tanh
    x = torch.randn(15, 6).double()
    problem = hb.Problem(model, [(x, torch.zeros(15, dtype=torch.long))], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, "0", bits=(2, 8)), samples=300)
    coarse, fine = bill.values()
    missed = abs(coarse.forecast.value - bill.check([coarse.name]).measured[0].value)
    quadratics = (quadratic_of(bill, name) for name in bill)
    text, text_of_fine = (
        quadratic.standard_error / quadratic.value * price.forecast.value
        for quadratic, price in zip(quadratics, bill.values(), strict=True)
    )
    assert missed > 2 * text
    assert missed < coarse.forecast.standard_error < 1.2 * missed
    assert fine.forecast.standard_error == pytest.approx(text_of_fine, rel=0.01)


def test_beyond_trust_a_forecast_saturates_as_the_outputs_do() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 9)).double()
    model[0].weight.data *= 12
    model[2].weight.data *= 8
    data = torch.randn(1024, 6).double(), torch.zeros(1024, dtype=torch.long)
    problem = hb.Problem(model, [data], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, "0", bits=(2, 4)), samples=64)
    coarse, fine = bill.values()
    measured = [estimate.value for estimate in bill.check([(name,) for name in bill]).measured]
    assert coarse.diagonal.value > 1.8 * measured[0]
    assert coarse.forecast.value == pytest.approx(measured[0], rel=0.3)
    assert coarse.forecast.value != pytest.approx(measured[0], rel=1e-3)  # a forecast still
    assert fine.forecast.value == pytest.approx(fine.diagonal.value, rel=0.15)


def test_a_head_that_saturates_is_forecast_as_it_responds_and_not_twice() -> None:
    torch.manual_seed(3)
    model = OneAttention(PretrainedConfig(**ONE), tokens=200, width=4)
    model.key.data *= 8  # a head that attends to few tokens, and to others once rounded
    model.value.data *= 2
    target = torch.zeros(1, 32, dtype=torch.long)
    rows = [({"input_ids": torch.randperm(200)[None, :32]}, target) for _ in range(64)]
    bill = hb.price(hb.Problem(model, rows, "classification"), hb.cache_changes(model, keys=1))
    (price,) = bill.values()
    measured = bill.check([price.name]).measured[0].value
    assert price.diagonal.value > 2.5 * measured
    assert price.forecast.value == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("queries", [100, 1e4, 1e6])
def test_no_forecast_is_trusted_where_a_head_chooses_tokens(queries: float) -> None:
    torch.manual_seed(1)
    model = hb.build("pre-ln", depth=2, width=32, heads=4, vocab_size=64, context=32)
    model.model.layers[0].attention.query.weight.data[:8] *= queries  # one head of four
    text, other = ({"input_ids": torch.randint(0, 64, (16, 32))} for _ in range(2))
    made = hb.cache_changes(model, keys=(2, 4, 8), queries=4)
    changes = {name: change for name, change in made.items() if "layers.0" in name}
    bill = hb.price(hb.Problem(model, text), changes)
    rows = bill.check([[name] for name in changes], other).to_rows()
    assert all(row["outside"] for row in rows if not 0.4 < row["ratio"] < 2.5), rows
    assert all(row["outside"] for row in rows) == (queries > 100)


def test_inputs_of_a_token_are_halfway_between_independent_and_together() -> None:
    torch.manual_seed(2)
    model, x = nn.Sequential(nn.Linear(6, 9)).double(), torch.randn(12, 6).double()
    problem = hb.Problem(model, [(x, torch.zeros(12, dtype=torch.long))], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, bits=3), samples=30000)
    (change,) = activations_of(bill.changes.values())
    delta, p = change.grid.new(x) - x, model(x).detach().softmax(-1)
    moved = delta @ model[0].weight.detach().T
    together = (p * moved.square()).sum() - (p * moved).sum(-1).square().sum()
    weighed = torch.einsum("tc,ce,te->", p, model[0].weight.detach() ** 2, delta**2)
    alone = weighed - ((p @ model[0].weight.detach()) ** 2 * delta**2).sum()
    expected = float(together + alone) / 4 / len(x)
    assert abs(float(together / alone) - 1) > 0.2
    assert quadratic_of(bill, change.name).value == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_errors_of_tokens_that_are_alike_add_up(mean: float) -> None:
    torch.manual_seed(0)
    sizes = {**SMALL, "vocab_size": 101, "attention_bias": True}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    for layer in model.model.layers:
        layer.self_attn.v_proj.bias.data.normal_(std=mean)  # values with a mean over tokens
    data, other = (text(rows=32, tokens=40, words=101) for _ in range(2))
    changes = hb.cache_changes(model, values=(2, 3))
    bill = hb.price(hb.Problem(model, data), changes)
    rows = bill.check([[name] for name in changes], other).to_rows()
    assert all(0.5 < row["ratio"] < 2 for row in rows), rows
    plain = [
        bill[name].diagonal.value / row["measured"] for name, row in zip(bill, rows, strict=True)
    ]
    assert (min(plain) < 0.4) == (mean > 0)


def test_where_outputs_grow_faster_the_bar_tells_and_the_forecast_stays() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 9)
    model, x = nn.Sequential(*layers).double(), torch.randn(256, 6).double()
    model[0].weight.data *= 40
    model[2].weight.data *= 6
    problem = hb.Problem(model, [(x, torch.zeros(256, dtype=torch.long))], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, "0", bits=(2, 4)), samples=32)
    coarse, _ = bill.values()
    assert bill.draws.growth is not None
    drawn, _, errors = bill.draws.growth[0]
    steps = drawn / drawn[-1]
    torch.testing.assert_close(
        steps, steps.new_tensor(STEPS), rtol=1e-6, atol=0.0
    )  # straight: nothing saturates
    assert errors.isfinite().all()
    measured = bill.check([coarse.name]).measured[0].value
    assert abs(coarse.forecast.value - measured) < 3 * coarse.forecast.standard_error


def test_heads_and_the_whole_of_a_layer_have_one_growth() -> None:
    model, problem = built(), hb.Problem(built(), text(rows=16))
    whole = hb.cache_changes(model, keys=2)
    heads = hb.cache_changes(model, keys=2, heads=True)
    alone, both = (hb.price(problem, c, samples=16).sum(whole) for c in (whole, {**whole, **heads}))
    assert both.forecast == alone.forecast
    assert both.forecast.value > 1.001 * both.diagonal.value


def test_rows_without_a_token_that_counts_change_nothing() -> None:
    model, data = built(), text(rows=12)
    labels = data["input_ids"].clone()
    labels[:4] = -100
    changes = hb.cache_changes(model, keys=2, values=2)
    bill, few = (
        hb.price(hb.Problem(model, batch), changes, samples=600)
        for batch in ({**data, "labels": labels}, {"input_ids": data["input_ids"][4:]})
    )
    assert len(bill.draws.shares) == 8
    assert bill.sum().forecast.value == pytest.approx(few.sum().forecast.value, rel=0.2)


def test_two_grids_of_one_name_are_priced_apart() -> None:
    changes: Any = hb.cache_changes(built(), keys=2)
    name, change = next(iter(changes.items()))
    other = replace(change, name="all 0", grid=replace(change.grid, levels=torch.zeros_like))
    both, alone = (
        hb.price(hb.Problem(built(), text()), c) for c in ({name: change, "all 0": other}, [other])
    )
    assert both["all 0"].diagonal == alone["all 0"].diagonal
    assert both["all 0"].relative_size == pytest.approx(1)


@pytest.mark.usefixtures("nothing_rules")
def test_sums_grow_with_every_change_and_an_allocation_of_nats_is_within_them() -> None:
    torch.manual_seed(3)
    parts = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 9)) for _ in range(6)]
    model, x = Sum(*parts).double(), torch.randn(12, 6).double()
    for part in parts:
        part[2].weight.data *= 6
    problem = hb.Problem(model, [(x, torch.zeros(12, dtype=torch.long))], loss="classification")
    bill = hb.price(problem, hb.activation_changes(model, bits=(2, 3, 8)), samples=300)
    names = [name for name in bill if name.endswith("2 bits")]
    totals = [bill.sum(names[:count]).forecast.value for count in range(1, len(names) + 1)]
    assert totals == sorted(totals)
    assert totals[-1] > 1.05 * sum(bill[name].forecast.value for name in names)
    for nats in torch.linspace(0.2, 0.98, 27).mul(totals[-1]).tolist():
        assert 0 < bill.allocate(nats=nats).total.forecast.value <= nats


class Sum(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).sum(0)


def test_the_change_that_flips_is_charged_and_one_under_two_names_is_left_alone() -> None:
    torch.manual_seed(0)
    model, x = Sum(Flip(), Flip(gain=0.1)).double(), torch.randn(16, 4).double() + 2
    read: Any = model.get_submodule("parts.0.read")
    read.weight.data.abs_()
    x[5, 0] -= read(x[5]).item() / read.weight[0, 0].item()
    problem = hb.Problem(model, [(x, torch.zeros(16, dtype=torch.long))], loss="classification")
    changes = hb.activation_changes(model, "parts.*.read", bits=4)
    bill = hb.price(problem, changes, samples=64)
    check = bill.check([(name,) for name in bill])
    measured = [estimate.value for estimate in check.measured]
    assert measured[0] > 2 * measured[1]
    forecasts = [price.forecast.value for price in check.forecasts]
    assert forecasts[0] == pytest.approx(measured[0], rel=0.5)
    assert forecasts[0] > 2 * forecasts[1]
    (change, _) = changes.values()
    twice = hb.price(problem, {"a": change, "b": change}, samples=16)
    assert not pieces_measured(twice.draws)


def test_inputs_of_modules_are_rounded_alone() -> None:
    model, data = built(), text(rows=16)
    changes = hb.activation_changes(model, "*.down_proj", "*.q_proj", bits=(4, 8))
    assert [c.size for c in changes.values()] == [8, 8, 12, 12] * 2
    bill = hb.price(hb.Problem(model, data), changes, samples=64)
    name = "model.layers.1.self_attn.q_proj inputs, 4 bits"
    found = bill.check([name]).measured[0].value
    change: Any = changes[name]
    module = model.get_submodule(change.tap.split()[0])
    before = model(**data).logits.log_softmax(-1)
    handle = module.register_forward_pre_hook(lambda _, given: (change.grid.new(given[0]),))
    after = model(**data).logits.log_softmax(-1)
    handle.remove()
    kl = (before.exp() * (before - after)).sum(-1)[:, :-1].mean()
    assert found == pytest.approx(float(kl.detach()), rel=1e-6)


def test_grids_have_the_scales_they_say() -> None:
    model = built()
    x = torch.randn(2, 1, 70, 4, dtype=torch.float64)
    new = {}
    for per in ("token", "channel"):
        for exact in (0, 2):
            changes: Any = hb.cache_changes(model, keys=2, per=per, exact=exact)
            new[per, exact] = next(iter(changes.values())).grid.new(x)
    assert all(len(row.unique()) <= 4 for row in new["token", 0].flatten(0, 2))
    assert torch.equal(new["token", 2][..., :2, :], x[..., :2, :])
    assert torch.equal(new["token", 2][..., 2:, :], new["token", 0][..., 2:, :])
    assert torch.equal(new["channel", 0][..., 64:, :], x[..., 64:, :])
    for block in new["channel", 0][..., :64, :].unflatten(-2, (2, 32)).flatten(0, 2):
        assert all(len(channel.unique()) <= 4 for channel in block.T)


def test_a_format_rounds_along_a_head() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "head_dim": 64})
    model = AutoModelForCausalLM.from_config(config)
    changes: Any = hb.cache_changes(model, keys="mlx:4")
    assert {change.bits for change in changes.values()} == {4.5}  # scales counted
    x = torch.randn(1, 1, 3, 64)
    change = next(iter(changes.values()))
    assert torch.equal(change.grid.new(x), hb.formats()["mlx:4"].rounded(x))
    with pytest.raises(ArgumentError, match="cannot hold rows of 4 entries"):
        hb.cache_changes(built(), keys="mlx:4")


def test_a_head_that_hardly_matters_is_cheap_and_has_a_bar() -> None:
    model: Any = built("gpt2")
    model.transformer.h[1].attn.c_proj.weight.data[:4] *= 1e-6
    changes = hb.cache_changes(model, values=3, heads=True)
    bill = hb.price(hb.Problem(model, text()), changes)
    names = [f"transformer.h.1.attn values head {head}, 3 bits per token" for head in (0, 1)]
    cheap, other = (bill[name].forecast for name in names)
    assert 0 < cheap.value < 1e-9 * other.value
    assert 0.05 < cheap.standard_error / cheap.value < 2
    model.transformer.h[1].attn.c_proj.weight.data[:4] = 0  # never matters
    bill = hb.price(hb.Problem(model, text()), changes)
    whole, lost = bill.sum(changes).forecast, bill[names[0]]
    assert 0 < whole.standard_error < whole.value  # the other heads' price has its bar
    assert lost.forecast.value == 0
    assert not lost.trusted
    assert str(lost) == f"{names[0]}: not reached: no sampled gradient of the text reaches it"


def test_padding_costs_nothing_and_grids_that_go_by_place_are_refused() -> None:
    model, data = built(), text(rows=4)
    changes = hb.cache_changes(model, keys=2, values=2)
    padded = {name: torch.cat([ids, ids.new_zeros(4, 3)], 1) for name, ids in data.items()}
    padded["attention_mask"] = (torch.arange(10) < 7).long().expand(4, 10)
    padded["labels"] = padded["input_ids"].masked_fill(padded["attention_mask"] == 0, -100)
    bill = hb.price(hb.Problem(model, padded), changes)
    alone, both = (bill.check([tuple(changes)], given).measured[0] for given in (data, padded))
    assert alone.value == pytest.approx(both.value, rel=1e-6)
    data, padded = text(4, 33), {n: torch.cat([t] * 4, 1) for n, t in padded.items()}
    for more in ({"per": "channel"}, {"exact": 1}):
        with pytest.raises(ArgumentError, match="has padding or position_ids"):
            hb.price(hb.Problem(model, padded), hb.cache_changes(model, keys=2, **more))
        bill = hb.price(hb.Problem(model, data), hb.cache_changes(model, keys=2, **more))
        with pytest.raises(ArgumentError, match="has padding or position_ids"):
            bill.check(2, padded)


class Shared(PreTrainedModel):
    """Two attentions of one cache."""

    config_class = PretrainedConfig

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.embed, self.out = nn.Embedding(11, 4), nn.Linear(4, 11)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Tensor:
        x = self.embed(input_ids)[:, None]
        key, value = x * 2, x * 3
        for layer in (self.first, self.second):
            attend = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", scaled_dot_product_attention)
            x = x + attend(layer, layer(x), key, value, None)[0].transpose(1, 2)
        found: Tensor = self.out(x[:, 0])
        return found


def test_a_cache_of_transformers_that_layers_share_is_rounded_once() -> None:
    torch.manual_seed(0)
    more: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "laurel_rank": 2,
        "intermediate_size": [12] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "vocab_size_per_layer_input": 11,
        "hidden_size_per_layer_input": 4,
        "altup_num_inputs": 2,
    }
    model = AutoModelForCausalLM.from_config(Gemma3nTextConfig(**{**SMALL, **more})).double().eval()
    changes: Any = hb.cache_changes(model, keys=3, values=3)
    assert [change.tap.split(".")[2][0] for change in changes.values()] == ["0", "0", "1", "1"]
    found = hb.price(hb.Problem(model, text()), changes).check([tuple(changes)]).measured[0].value
    before = model(**text(), use_cache=False).logits.log_softmax(-1)
    new = next(iter(changes.values())).grid.new
    cache = RoundingCache(model, new)
    after = model(**text(), past_key_values=cache).logits.log_softmax(-1)
    kl = (before.exp() * (before - after)).sum(-1)[:, :-1].mean()
    assert found == pytest.approx(float(kl.detach()), rel=1e-6)


def test_a_cache_that_layers_share_is_one_place_and_rounded_for_both() -> None:
    torch.manual_seed(0)
    model = Shared(PretrainedConfig(**{**ONE, "num_hidden_layers": 2})).double()
    assert list(attention_tensors(model)) == [
        *("first queries", "first keys", "first values", "second queries")
    ]
    changes: Any = hb.cache_changes(model, keys=2, values=2)
    data = text(rows=8)
    bill = hb.price(hb.Problem(model, data), changes, samples=32)
    found = bill.check([tuple(changes)]).measured[0].value
    before = model(**data).log_softmax(-1)
    grid, eager = changes["first keys, 2 bits per token"].grid, ALL_ATTENTION_FUNCTIONS["sdpa"]

    def rounds(own: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        return eager(own, q, grid.new(k), grid.new(v), *rest, **more)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = rounds
    try:
        after = model(**data).log_softmax(-1)
    finally:
        ALL_ATTENTION_FUNCTIONS._local_mapping.pop("sdpa")  # the global one is left
    kl = (before.exp() * (before - after)).sum(-1)[:, :-1].mean()
    assert found == pytest.approx(float(kl.detach()), rel=1e-6)


def test_sums_and_allocations() -> None:
    model, data = built(), text(rows=8)
    changes = hb.cache_changes(model, keys=(2, 4), values=(2, 4), heads=True)
    bill = hb.price(hb.Problem(model, data), changes)
    four = [name for name in changes if "4 bits" in name]
    whole = bill.sum(four)
    assert whole.diagonal.value == pytest.approx(sum(bill[n].diagonal.value for n in four))
    assert (whole.bits, whole.size) == (4.0, 16)
    chosen = bill.allocate(bits=3.0)
    assert chosen.total.bits is not None
    assert chosen.bits == chosen.total.bits <= 3.0
    assert chosen.bytes == 6
    with pytest.raises(ArgumentError, match="no two that change the same entries"):
        bill.sum()
    all_heads = hb.cache_changes(model, keys=2)
    both = hb.price(hb.Problem(model, data), {**changes, **all_heads})
    with pytest.raises(ArgumentError, match="no two that change the same entries"):
        both.sum([next(iter(all_heads)), next(iter(changes))])
    with pytest.raises(ArgumentError, match="has no storage format"):
        chosen.save("cache.gguf")


def test_an_allocation_costs_at_most_what_one_grid_for_keys_and_values_costs() -> None:
    """A step of keys to 8 bits saves most a bit, and does not fit."""
    model, widths = built(), (2, 3, 8)
    changes = hb.cache_changes(model, keys=widths, values=widths)
    bill = hb.price(hb.Problem(model, text()), changes)
    at = {"keys": (0.4, 0.39, 0.0), "values": (0.8, 0.0, 0.0)}
    costs = {
        price.name: at[price.place.split()[1]][widths.index(int(price.bits or 0))]
        for price in bill.values()
    }
    chosen = bill.allocate(bits=3, costs=costs)
    assert sum(costs[name] for name in chosen.names) == pytest.approx(2 * 0.39)


def test_what_cannot_be_priced_is_refused() -> None:
    model, data = built(), text()
    weights = hb.change_each(model, hb.rounded(bits=3))
    cache = hb.cache_changes(model, keys=3)
    problem = hb.Problem(model, data)
    with pytest.raises(ArgumentError, match="activations alone or weights alone"):
        hb.price(problem, {**weights, **cache})
    with pytest.raises(ArgumentError, match="'diagonal' alone"):
        hb.price(problem, cache, form="mixture")
    torch.manual_seed(0)
    bloom = AutoModelForCausalLM.from_config(
        BloomConfig(vocab_size=11, hidden_size=8, n_layer=1, n_head=2)
    )
    with pytest.raises(ArgumentError, match="BloomForCausalLM does not go through"):
        hb.cache_changes(bloom, keys=3)
    seq2seq = T5ForConditionalGeneration(T5Config(vocab_size=11, d_model=8, num_layers=1))
    with pytest.raises(ArgumentError, match="expected a decoder"):
        hb.cache_changes(seq2seq, keys=3)
    with pytest.raises(ArgumentError, match="expected a decoder"):
        hb.cache_changes(nn.Linear(2, 2), keys=3)
    latent = {"q_lora_rank": 4, "kv_lora_rank": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
    sizes: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "v_head_dim": 4, **latent}
    minicpm = AutoModelForCausalLM.from_config(MiniCPM3Config(**sizes))
    with pytest.raises(ArgumentError, match="cache of MiniCPM3ForCausalLM holds other tensors"):
        hb.cache_changes(minicpm, keys=3)
    for given, match in (
        ({"keys": 0}, "from 1 to 16"),
        ({"keys": 3.5}, "3.5"),
        ({"values": "gguf:Q9"}, "gguf:Q9"),
        ({"keys": 3, "per": "layer"}, "Known: token, channel"),
        ({"keys": 3, "exact": -1}, "exact: expected a whole number of at least 0, got -1"),
        ({}, "expected keys="),
    ):
        with pytest.raises(ArgumentError, match=match):
            hb.cache_changes(model, **given)
    with pytest.raises(ArgumentError, match=r"down_prj"):
        hb.activation_changes(model, "*.down_prj")


def test_text_of_less_than_a_block_is_refused() -> None:
    model, changes = built(), hb.cache_changes(built(), keys=2, per="channel")
    with pytest.raises(
        ArgumentError, match="needs windows of at least 32 tokens, and a batch has 31"
    ):
        hb.price(hb.Problem(model, text(4, 31)), changes)
    bill = hb.price(hb.Problem(model, text(4, 32)), changes)
    with pytest.raises(
        ArgumentError, match="needs windows of at least 32 tokens, and a batch has 7"
    ):
        bill.check(2, text())


def test_a_head_of_zeros_costs_nothing() -> None:
    model = built("pre-ln")
    layer: Any = model.model.layers[0]
    with torch.no_grad():
        layer.attention.value.weight[:8] = 0  # head 0 of 2
    bill = hb.price(hb.Problem(model, text()), hb.cache_changes(model, values=3, heads=True))
    first, second, *_ = bill.values()
    assert (first.forecast.value, first.relative_size, first.trusted) == (0.0, 0.0, True)
    assert second.forecast.value > 0


def test_a_module_that_runs_twice_or_never_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.never = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.twice(self.twice(x))
            return found

    model = Odd()
    problem = hb.Problem(model, (torch.randn(8, 4), torch.randint(4, (8,))), "classification")
    with pytest.raises(ArgumentError, match="more than once in a pass"):
        hb.price(problem, hb.activation_changes(model, "twice"))
    with pytest.raises(ArgumentError, match="is unused in these batches"):
        hb.price(problem, hb.activation_changes(model, "never"))
    with pytest.raises(ArgumentError, match="expected names, got 4; bits are named"):
        hb.activation_changes(model, 4)  # type: ignore[arg-type]
