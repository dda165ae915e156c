"""A finite step over an edge or a flat: experts that are chosen, or that no token reaches."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

import hessblocks as hb
from hessblocks.bill import secant
from hessblocks.bill.measured import measure
from hessblocks.bill.secant import chooses
from hessblocks.linalg import Estimate

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def mixtral(top, scale=5.0):
    torch.manual_seed(0)
    config = MixtralConfig(**SIZES, num_local_experts=8, num_experts_per_tok=top)
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return model


def text(seed, words=61, rows=32):
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randint(3, 3 + words, (rows, 16), generator=generator)}


def bill_of(model, bits, data=None, layer="layers.0"):
    problem = hb.Problem(model, data or text(0), loss="causal-lm")
    changes = hb.change_each(model, *(hb.rounded(bits=one) for one in bits))
    return hb.price(problem, {n: c for n, c in changes.items() if layer in n})


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_no_forecast_that_is_wrong_by_two_is_trusted_where_experts_are_chosen(scale):
    bill = bill_of(mixtral(2, scale), (3, 4, 6, 8))
    assert len(bill) == 28
    rows = bill.check(list(bill), text(1)).to_rows()
    assert sum(not 0.5 <= row["ratio"] <= 2 for row in rows) > 3
    assert all(row["outside"] for row in rows if not 0.5 <= row["ratio"] <= 2)


def test_a_router_that_takes_the_largest_by_max_chooses():
    torch.manual_seed(0)
    sizes = {**SIZES, "intermediate_size": 24}
    model = PhimoeForCausalLM(PhimoeConfig(**sizes, num_local_experts=8, num_experts_per_tok=2))
    assert chooses(hb.Problem(model.eval(), text(0), loss="causal-lm"))


class Widest(torch.nn.Module):
    """Weigh numbers by a softmax written out, or send them by what is largest."""

    def __init__(self, way):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64)
        self.way = way

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        largest, indices = x.max(-1, keepdim=True)
        if self.way == "softmax":
            weights = (x - largest).exp()
            x = x * weights / weights.sum(-1, keepdim=True)
        elif self.way == "gather":
            x = x * x.gather(-1, indices)
        elif self.way == "index":
            x = x * self.head.weight[indices[..., 0]]
        else:
            x = x * (x == largest.squeeze(-1)[..., None])
        return self.head(x)


@pytest.mark.parametrize("way", ["softmax", "gather", "index", "equal"])
def test_the_largest_is_a_choice_where_its_place_is_used(way):
    torch.manual_seed(0)
    problem = hb.Problem(Widest(way), text(0), loss="causal-lm")
    assert chooses(problem) == (way != "softmax")


def test_what_one_flip_costs_on_other_text_is_not_trusted():
    torch.manual_seed(0)
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    config = Qwen2MoeConfig(**SIZES, **experts, shared_expert_intermediate_size=24)
    model = Qwen2MoeForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)
    changes = hb.change_each(model, hb.rounded(bits=4))
    some = {n: c for n, c in changes.items() if "layers.0" in n and "shared_expert" in n}
    bill = hb.price(hb.Problem(model, text(0), loss="causal-lm"), some, 16)
    rows = bill.check(list(bill), text(1)).to_rows()
    assert all(row["outside"] for row in rows if not 0.5 <= row["ratio"] <= 2)
    assert all(price.outside for price in bill.values() if price.forecast.value < 4e-5)


def test_all_experts_chosen_of_all_are_not_a_choice():
    model = mixtral(8)
    bill = bill_of(model, (4, 8))
    assert not chooses(bill.problem)
    assert all(price.trusted for price in bill.values())
    assert chooses(hb.Problem(mixtral(2), text(0), loss="causal-lm"))


def test_a_model_without_choices_is_trusted_as_before():
    torch.manual_seed(0)
    bill = bill_of(LlamaForCausalLM(LlamaConfig(**SIZES)).eval(), (3, 4, 8), layer="layers")
    assert not bill.secants
    assert all(price.trusted for price in bill.values())


def test_of_formats_the_coarsest_is_looked_at_and_finer_ones_where_it_fails(monkeypatch):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.1)).eval()
    names = ["mxfp4", "fp8-e4m3", "bf16"]
    changes = hb.change_each(model, *map(hb.in_format, names))
    some = {name: change for name, change in changes.items() if "layers" in name}
    some = {name: change for name, change in some.items() if "q_proj" in name}
    seen = []
    monkeypatch.setattr(
        secant, "measure", lambda *a, **k: seen.append([p.how for p in a[1]]) or measure(*a, **k)
    )
    bill = hb.price(hb.Problem(model, text(0), loss="causal-lm"), some)
    assert seen == [["mxfp4", "mxfp4"]]  # at two shares
    assert not bill.secants
    low = {  # errors that pull together cost more than their diagonal
        name: replace(price, forecast=Estimate(value=price.forecast.value / 50))
        for name, price in bill.items()
        if price.how == "mxfp4"
    }
    seen.clear()
    outside = secant.secants(bill.problem, bill.changes, {**bill, **low})
    assert seen == [["mxfp4", "mxfp4"], ["fp8-e4m3", "fp8-e4m3"]]  # and not bf16
    assert set(outside) == set(low)
    assert all("times the forecast on the same text" in reason for reason in outside.values())


def test_an_edge_on_the_way_is_outside():
    class Jump(torch.nn.Module):
        """Adds 1 once the weight has gone a twentieth of the way."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 1))

        def forward(self, x):
            return x * self.weight[:, 0] + (self.weight[0, 0] > 1.005).float()

    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    problem = hb.Problem(Jump(), [(x, x)], loss=torch.nn.MSELoss())
    bill = hb.price(problem, {"step": {"weight": lambda old: 1.1 * old}})
    assert "KL of 0.25 of the change" in bill["step"].outside


class Experts(torch.nn.Module):
    """Eight experts of which a token's number chooses one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(8, 16)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(8))
        self.head = torch.nn.Linear(16, 8, bias=False)

    def forward(self, input_ids):
        x = self.table(input_ids)
        parts = [(input_ids == n)[..., None] * one(x) for n, one in enumerate(self.experts)]
        return self.head(sum(parts))


def test_experts_that_no_token_reaches_are_reported_and_get_their_most_bits():
    model = Experts()
    ids = torch.randint(3, (8, 12), generator=torch.Generator().manual_seed(0))
    changes = hb.change_each(model, *(hb.rounded(bits=bits) for bits in (2, 3, 4)))
    bill = hb.price(hb.Problem(model, {"input_ids": ids}, loss="causal-lm"), changes)
    lost = [price for price in bill.values() if not price.reached]
    assert {price.place for price in lost} == {f"experts.{n}.weight" for n in range(3, 8)}
    assert not any(price.trusted for price in lost)
    assert all(math.isnan(price.forecast.standard_error) for price in lost)
    assert "not reached" in str(lost[0])
    chosen = bill.allocate(bits=3.8)
    assert {p.bits for p in chosen.choices if p.place in {price.place for price in lost}} == {4}
    assert "not reached" in chosen.total.outside
    tight = bill.allocate(bits=2.8)  # four bits for five of eight do not fit
    assert {p.bits for p in tight.choices if p.place in {price.place for price in lost}} == {3}


def test_a_change_that_changes_nothing_is_free_and_trusted():
    model = Experts()
    ids = torch.randint(3, (8, 12), generator=torch.Generator().manual_seed(0))
    problem = hb.Problem(model, {"input_ids": ids}, loss="causal-lm")
    price = hb.price(problem, {"same": {"experts.7.weight": lambda old: old}})["same"]
    assert price.trusted
    assert price.forecast.value == 0


def test_no_rounded_activation_is_trusted_where_experts_are_chosen():
    for model, trusted in ((mixtral(2), False), (mixtral(8), True)):
        changes = hb.activation_changes(model, "*.o_proj", bits=8)
        bill = hb.price(hb.Problem(model, text(0)), changes)
        assert {price.trusted for price in bill.values()} == {trusted}
        assert bill.sum().trusted is trusted


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
def test_a_share_that_half_precision_cannot_hold_tells_nothing():
    for dtype in (torch.bfloat16, torch.float32):
        model = mixtral(8).to(torch.bfloat16).to(dtype)
        changes = hb.change_each(model, hb.in_format("fp8-e4m3"))
        some = {name: change for name, change in changes.items() if "layers.0" in name}
        bill = hb.price(hb.Problem(model, text(0)), some)
        assert all(price.trusted for price in bill.values())


def test_a_check_of_what_moves_nothing_has_no_ratio():
    rows = torch.zeros(64, 1)
    rows[40:] = 1
    model = mixtral(8)
    some = {"input_ids": torch.randint(40, 64, (8, 12))}
    new = {"model.embed_tokens.weight": lambda old: old + 0.02 * rows}
    bill = hb.price(hb.Problem(model, some), {"rows": new}, 8)
    other = {"input_ids": torch.randint(3, 40, (8, 12))}
    said = str(bill.check("rows", other))
    assert "median ratio forecast/measured inf" in said
    assert "0 % from 0.8 to 1.25, the worst among the trusted inf" in said
    nothing = hb.price(hb.Problem(model, some), {"same": {"lm_head.weight": lambda old: old}}, 8)
    assert "none moved a logit" in str(nothing.check("same"))


def test_a_check_tells_how_many_are_near_and_the_worst_that_is_trusted():
    check = bill_of(mixtral(8), (3, 4)).check(10, text(1))
    rows = check.to_rows()
    near = sum(0.8 <= row["ratio"] <= 1.25 for row in rows) / len(rows)
    worst = max((row["ratio"] for row in rows), key=lambda ratio: abs(math.log(ratio)))
    assert f"{100 * near:.0f} % from 0.8 to 1.25, the worst among the trusted {worst:.3g}" in str(
        check
    )
