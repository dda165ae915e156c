"""Blockwise learning rates: each trainable tensor once, rates by the rule, refusals in a
sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

import hessblocks as hb
from hessblocks.errors import ArgumentError
from hessblocks_studies.shared import blockwise_learning_rates

SIZES = {"vocab_size": 7, "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
BATCH = {"input_ids": torch.arange(24).view(4, 6) % 7}


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 7, "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 6}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **ENDS))


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, **ENDS, intermediate_size=12))


def sas_p() -> nn.Module:
    return hb.build("sas-p", depth=2, width=8, heads=2, vocab_size=7, context=6)


MODELS = {"gpt2": gpt2, "llama": llama, "sas-p": sas_p}


def made_up(groups: Any) -> dict[str, float]:
    """A curvature for each group, each another."""
    return {name: 0.5 * 1.7**number for number, name in enumerate(groups)}


def rate_of(model: nn.Module, made: list[dict[str, Any]]) -> dict[str, float]:
    rates = {id(p): group["lr"] for group in made for p in group["params"]}
    return {name: rates[id(p)] for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("rule", ["measured", "published"])
@pytest.mark.parametrize("kind", MODELS)
def test_every_trainable_tensor_stands_in_one_group_and_tied_ones_once(
    kind: str, rule: str
) -> None:
    model = MODELS[kind]()
    next(model.parameters()).requires_grad_(False)
    groups = hb.parameter_groups(model)
    norms = made_up(groups) if rule == "measured" else None
    made = blockwise_learning_rates(model, groups, base=1e-3, rule=rule, norms=norms)
    found = [id(parameter) for group in made for parameter in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters() if p.requires_grad}
    assert {name for group in made for name in group["name"].split(" + ")} == set(groups)
    torch.optim.AdamW(made)


def test_measured_rates_fall_as_curvature_grows_around_the_base() -> None:
    model = llama()
    groups = hb.parameter_groups(model)
    norms = made_up(groups)
    made = blockwise_learning_rates(model, groups, base=3e-4, norms=norms)
    shares = {group["name"]: group["lr"] * norms[group["name"]] for group in made}
    assert list(shares.values()) == pytest.approx([next(iter(shares.values()))] * len(groups))
    rates = rate_of(model, made)
    entries = {name: p.numel() for name, p in model.named_parameters()}
    mean = sum(n * math.log(rates[name]) for name, n in entries.items()) / sum(entries.values())
    assert math.exp(mean) == pytest.approx(3e-4)
    twice = {name: 2 * norm for name, norm in norms.items()}
    again = blockwise_learning_rates(model, groups, base=3e-4, norms=twice)
    assert rate_of(model, again) == pytest.approx(rates)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_norms_may_be_measured_estimated_or_plain() -> None:
    model = llama()
    groups = hb.parameter_groups(model)
    measured = hb.group_norms(hb.Problem(model, BATCH), groups, probes=4, parts=["outer", "full"])
    estimates = {name: parts["full"] for name, parts in measured.items()}
    plain = {name: estimate.value for name, estimate in estimates.items()}
    made = [
        rate_of(model, blockwise_learning_rates(model, groups, base=1.0, norms=norms))
        for norms in (measured, estimates, plain)
    ]
    assert made[0] == made[1] == made[2]


def test_published_multipliers_stand_over_the_base() -> None:
    model = llama()
    made = blockwise_learning_rates(model, hb.parameter_groups(model), base=1e-4, rule="published")
    rates = {group["name"]: group["lr"] / 1e-4 for group in made}
    layer = {
        "attention.query": 8,
        "attention.key": 8,
        "attention.value": 4,
        "attention.projection": 4,
        "mlp.in": 6,
        "mlp.out": 6,
        "norm": 1,
    }
    assert rates == pytest.approx(
        {"embedding.token": 10, "final.norm": 1, "head": 1}
        | {f"layers.{at}.{name}": rate for at in (0, 1) for name, rate in layer.items()}
    )


def test_a_fused_tensor_takes_the_smallest_rate_and_is_named_after_all() -> None:
    model = gpt2()
    groups = hb.parameter_groups(model)
    published = blockwise_learning_rates(model, groups, base=1.0, rule="published")
    parts = " + ".join(f"layers.0.attention.{role}" for role in ("query", "key", "value"))
    assert {group["name"]: group["lr"] for group in published}[parts] == pytest.approx(4)
    norms = made_up(groups)
    made = blockwise_learning_rates(model, groups, base=1.0, norms=norms)
    rates = {group["name"]: group["lr"] for group in made}
    share = rates["final.norm"] * norms["final.norm"]
    assert rates[parts] * norms["layers.0.attention.value"] == pytest.approx(share)
    entries = {name: p.numel() for name, p in model.named_parameters()}
    found = rate_of(model, made)
    assert sum(n * math.log(found[name]) for name, n in entries.items()) == pytest.approx(0)


def refused(message: str, model: nn.Module, **changed: Any) -> None:
    groups = changed.pop("groups", None)
    asked: dict[str, Any] = {"base": 1e-3, "norms": made_up(hb.parameter_groups(model))}
    with pytest.raises(ArgumentError, match=message):
        blockwise_learning_rates(
            model, hb.parameter_groups(model) if groups is None else groups, **asked | changed
        )


def test_groups_that_do_not_partition_are_refused() -> None:
    model = llama()
    groups = hb.parameter_groups(model)
    without = {name: group for name, group in groups.items() if name != "final.norm"}
    refused("8 entries of 'model.norm.weight' belong to no group", model, groups=without)
    refused("shares entries of", model, groups={**groups, "again": groups["final.norm"]})
    half = hb.custom_groups(model, {"final.norm": "model.norm.weight[0:3]"})
    refused("5 entries of 'model.norm.weight'", model, groups=groups | half)
    refused(
        "does not fit the model, in 'transformer.wte", model, groups=hb.parameter_groups(gpt2())
    )
    refused("belong to no group", model, groups={})


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, None, "large", True])
def test_a_norm_that_gives_no_rate_is_refused(norm: Any) -> None:
    model = llama()
    norms = made_up(hb.parameter_groups(model)) | {"head": norm}
    refused(r"norms\['head'\]: expected a finite number above 0", model, norms=norms)


def test_missing_and_unwanted_norms_are_refused() -> None:
    model = llama()
    norms = made_up(hb.parameter_groups(model))
    del norms["head"], norms["final.norm"]
    refused(r"norms\['final.norm'\]: expected a finite number above 0", model, norms=norms)
    refused(r"norms\['embedding.token'\]: expected a finite number", model, norms=None)
    refused("norms: rule='published' takes none", model, rule="published")
    outer = {name: {"outer": hb.Estimate(value=1.0)} for name in hb.parameter_groups(model)}
    refused("measure its part 'full'", model, norms=outer)


@pytest.mark.parametrize("base", [0, -1e-3, math.nan, math.inf, True, "1e-3", None])
def test_a_base_that_is_no_rate_is_refused(base: Any) -> None:
    refused("base: expected a finite number above 0", llama(), base=base)


def test_an_unknown_rule_is_refused() -> None:
    refused("rule: 'measure' is unknown; did you mean 'measured'", llama(), rule="measure")
