"""The study of the bill: peers' scores by hand, and a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks_studies import run_study
from hessblocks_studies.bill import facts, points, scores

TOKENS = torch.randint(0, 32, (12, 8), generator=torch.Generator().manual_seed(0))


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "llama":
        llama = LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=3,
            num_attention_heads=2,
            initializer_range=0.2,
        )
        return LlamaForCausalLM(llama).eval()
    gpt2 = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    return GPT2LMHeadModel(gpt2).eval()


def bill_of(model: Any, tokens: torch.Tensor = TOKENS) -> tuple[list[str], hb.Bill]:
    changes = hb.change_each(model, hb.rounded(bits=2, block=8), hb.rounded(bits=4, block=8))
    problem = hb.Problem(model, {"input_ids": tokens}, loss="causal-lm")
    return list(changes), hb.price(problem, changes, samples=4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_peers_scores_are_those_of_their_formulas(kind: str) -> None:
    model = model_of(kind)
    place = next(iter(scores.linear_layers(model)))
    layer = model.get_submodule(place.removesuffix(".weight"))
    change = hb.change_each(model, hb.rounded(bits=3, block=8))[f"{place}, 3 bits"]
    found = scores.peers(model, TOKENS, [change], {place: 7.0})[change.name]
    old = layer.weight.detach().clone()
    new = dict(change.made({place: old}))[place]
    outputs: list[torch.Tensor] = []
    handle = layer.register_forward_hook(lambda _, __, output: outputs.append(output))

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    (g,) = torch.autograd.grad(loss(TOKENS), outputs)
    fisher = sum(torch.autograd.grad(loss(row[None]), layer.weight)[0] ** 2 for row in TOKENS)
    before = outputs[0].detach()
    with torch.no_grad():
        layer.weight.copy_(new)
        model(TOKENS)
    handle.remove()
    moved, delta = outputs[-1] - before, new - old
    expected = {
        "weight error": (delta**2).sum(),
        "magnitude": (old**2).sum() / 64,
        "activation error": (moved**2).sum(),
        "trace": 7 * (delta**2).mean(),
        "squared output gradients": (moved**2 * g**2).sum(),
        "empirical Fisher": (fisher * delta**2).sum(),
    }
    assert found.keys() == expected.keys() == scores.PEERS.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value.detach()), rel=1e-3)


@pytest.mark.slow
def test_the_trace_is_that_of_the_dense_curvature() -> None:
    model = model_of("gpt2")
    place = next(iter(scores.linear_layers(model)))
    problem = hb.Problem(model, {"input_ids": TOKENS}, loss="causal-lm")
    bill = hb.price(problem, scores.trace_changes([place]), samples=400)
    operator = hb.OuterProduct(problem, hb.custom_groups(model, {"one": place})["one"])
    exact = hb.trace(operator, probes=400)
    (price,) = bill.values()
    error = 2 * price.diagonal.standard_error + exact.standard_error
    assert 2 * price.diagonal.value == pytest.approx(exact.value, abs=4 * error)
    assert error < 0.12 * exact.value  # over rows, whose tokens are alike: 0.104


def test_a_round_has_one_matrix_of_every_role() -> None:
    places = [f"layers.{n}.{role}.weight" for n in range(5) for role in ("query", "mlp.in")]
    rounds = points.rounds_of(places)
    assert sorted(place for own in rounds for place in own) == sorted(places)
    assert all(len(own) == len({place.split(".", 2)[2] for place in own}) == 2 for own in rounds)
    assert rounds != points.rounds_of(places[::-1])  # layers are not in their order
    assert [own[0] for own in rounds] != [f"layers.{n}.query.weight" for n in range(5)]


ROWS = [
    {"forecast": ratio, "kl": 1.0, "forecast_error": 0.06, "kl_error": 0.08, "outside": ""}
    for ratio in (0.81, 1.0, 1.24, 1.26)
]


def test_forecasts_are_counted_by_the_rule() -> None:
    assert facts.near(ROWS) == 0.75
    assert [facts.covered(ROWS, errors) for errors in (1, 2, 3)] == [0.25, 0.5, 1.0]


def test_a_model_that_learnt_too_little_decides_nothing() -> None:
    about = {
        "study": "bill",
        "subject": "gpt2",
        "text": "other",
        "phase": "single",
        "how": "4 bits",
    }
    about |= {"diagonal": 1.0, "full": 1.0, **dict.fromkeys(scores.PEERS, 1.0)}
    for loss, holds in ((1.0, False), (3.0, None)):
        known = {"loss": loss, "bigram table": 3.0}
        checks = facts.summarise([{**row, **about, **known} for row in ROWS]).checks
        assert {check.holds for check in checks} == {holds}


def test_smollm2_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(points.FOLDER, raising=False)
    first = points.settings("laptop", None)[0]
    with pytest.raises(hb.RunError, match=f"set {points.FOLDER} to a folder"):
        points.measure(first)


def test_a_point_is_measured_at_smoke_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few changes and windows; all of them, and the whole losses, are a slow test."""
    (first, *_) = points.settings("smoke", None)
    monkeypatch.setattr("hessblocks_studies.shared.whole_loss", lambda *_: 3.0)
    monkeypatch.setattr(points, "PRUNED", (0.1,))
    monkeypatch.setattr(points, "MERGED", (0.1,))
    small = replace(first, sequences=2, held_out=2)
    monkeypatch.setattr(facts, "STUDY", replace(facts.STUDY, settings=lambda scale, seeds: [small]))
    result = run_study("bill", out=tmp_path, scale="smoke")
    assert result.measured == result.points == 1
    assert {column for row in result.rows for column in row} <= set(facts.STUDY.columns)
    assert result.checks


@pytest.mark.slow
def test_the_smallest_run_measures_and_goes_on(tmp_path: Path) -> None:
    result = run_study("bill", out=tmp_path, scale="smoke")
    assert result.measured == result.points == 2
    assert {column for row in result.rows for column in row} <= set(facts.STUDY.columns)
    assert result.checks
    together = {row["how"]: row for row in result.rows if row["phase"] == points.TOGETHER}
    assert together.keys() == {points.FORECAST, points.UNIFORM, *scores.PEERS}
    assert all(row["bits"] <= points.BITS for row in together.values())
    assert run_study("bill", out=tmp_path, scale="smoke").measured == 0


PAGE = (Path(__file__).parents[2] / "docs" / "price.md").read_text(encoding="utf-8")
TOLD = json.loads(
    (Path(__file__).parents[2] / "docs" / "results" / "bill.json").read_text(encoding="utf-8")
)["tables"]
MODELS = ("gpt2", "modern", "sas-p")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("uniform", "3 bits everywhere"),
        ("weight error", "weight error"),
        ("magnitude", "magnitude"),
        ("activation error", "activation error"),
        ("trace", "trace of H_o times error (HAWQ)"),
        ("squared output gradients", "squared output gradients (AutoQuantize)"),
        ("empirical Fisher", "empirical Fisher"),
        ("forecast", "`bill.allocate`"),
    ],
)
def test_the_page_has_the_measured_allocations(how: str, words: str) -> None:
    kl = {
        row["subject"]: f"{row['kl']:.3g} ± {row['kl_error']:.1g}"
        for row in TOLD["allocation"]
        if (row["how"], row["text"]) == (how, "other")
    }
    cells = [words, *(kl[name] for name in ("smollm2", *MODELS))]
    assert f"| {' | '.join(cells)} |" in PAGE.replace("**", "")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ending", ["bits", "pruned", "merged"])
def test_the_page_has_the_measured_forecasts(model: str, ending: str) -> None:
    outside = ("2 bits", "0.5 merged")
    kinds = [
        row
        for row in TOLD["near"]
        if (row["subject"], row["text"]) == (model, "other")
        and row["how"].endswith(ending)
        and row["how"] not in outside
    ]
    count = sum(row["changes"] for row in kinds)
    shares = (
        f"{sum(row[name] * row['changes'] for row in kinds) / count:.0%}".removesuffix("%")
        for name in ("near", "within_1", "within_2", "within_3")
    )
    near, one, two, three = shares
    medians = [row["median"] for row in kinds]
    line = (
        f"{model} | {count} | {min(medians):.2f} to {max(medians):.2f} | {near} % | "
        f"{one}, {two}, {three} % |"
    )
    assert line in PAGE
