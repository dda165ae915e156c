"""Signal propagation: every quantity against its definition, and rank collapse where there is
one."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import hessblocks as hb
import hessblocks.signal
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Shaping
from hessblocks.blocks.weights import Dense
from hessblocks.errors import ArgumentError
from hessblocks.signal.derivatives import conditioning
from hessblocks.signal.layers import calls
from hessblocks.signal.propagation import (
    Signal,
    attention_entropy,
    propagate,
    token_signal,
)

SIZES = {"depth": 2, "width": 16, "heads": 4, "vocab_size": 29, "context": 16}
REAL = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]).bool()


def built(name: str, **fields: Any) -> PreTrainedModel:
    model = hb.build(name, **(SIZES | fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def batch(model: PreTrainedModel, *shape: int) -> dict[str, Tensor]:
    tokens = torch.randint(0, model.config.vocab_size, shape)
    return {"input_ids": tokens, "labels": tokens}


def test_token_quantities_are_what_they_are_called() -> None:
    x = torch.randn(3, 6, 5)
    found = token_signal(x, REAL)
    similarities, ranks = [], []
    for row, real in zip(x, REAL, strict=True):
        tokens = row[real]
        cosines = [
            torch.cosine_similarity(a, b, dim=0) for a, b in itertools.permutations(tokens, 2)
        ]
        similarities.append(torch.stack(cosines).mean())
        values = torch.linalg.svdvals(tokens)
        ranks.append(values.square().sum() / values[0].square())
    entries = x[REAL].square().mean(dim=0)
    assert found.token_similarity == pytest.approx(torch.stack(similarities).mean().item())
    assert found.stable_rank == pytest.approx(torch.stack(ranks).mean().item())
    assert found.norm == pytest.approx(x[REAL].square().mean().sqrt().item())
    assert found.kurtosis == pytest.approx(
        (entries.square().mean() / entries.mean().square()).item(), rel=1e-5
    )


def test_equal_tokens_are_a_collapse_and_one_outlier_entry_has_the_kurtosis_of_the_width() -> None:
    same = token_signal(torch.randn(1, 1, 5).expand(2, 6, 5), REAL[:2])
    assert same.token_similarity == pytest.approx(1)
    assert same.stable_rank == pytest.approx(1)
    outlier = torch.zeros(3, 6, 5)
    outlier[..., 2] = torch.randn(3, 6)
    assert token_signal(outlier, REAL).kurtosis == pytest.approx(5)
    assert token_signal(torch.ones(3, 6, 5), REAL).kurtosis == pytest.approx(1)


def test_entropy_of_known_matrices() -> None:
    everyone = torch.ones(2, 6, dtype=torch.bool)
    identity = torch.eye(6).expand(2, 3, 6, 6)
    uniform = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    logs = sum(math.log(i) for i in range(1, 7)) / 6
    assert attention_entropy(identity, everyone).item() == 0
    assert attention_entropy(uniform.expand(2, 3, 6, 6), everyone).item() == pytest.approx(logs)
    assert attention_entropy(-uniform.expand(2, 3, 6, 6), everyone).item() == pytest.approx(logs)


def test_padding_leaves_entropy_alone() -> None:
    real = torch.tensor([[False, False, True, True, True, True]])
    matrix = torch.randn(1, 3, 6, 6).tril()
    matrix[..., :2] = 0
    noisy = torch.where(real[:, None, :, None], matrix, torch.randn(1, 3, 6, 6))
    alone = matrix[:, :, 2:, 2:]
    every = real[:, 2:]
    assert attention_entropy(noisy, real).item() == pytest.approx(
        attention_entropy(alone, every).item(), rel=1e-5
    )


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "modern"])
def test_the_condition_number_is_that_of_the_whole_jacobian(name: str) -> None:
    model = built(name)
    inputs = batch(model, 2, 5)
    exact = propagate(model, inputs)
    double = built(name)
    double.load_state_dict(model.state_dict())
    double.double().set_attn_implementation("eager")
    called, _ = calls(double, list(double.model.layers), {"input_ids": inputs["input_ids"][:1]})
    seen = [called[layer] for layer in double.model.layers]
    for layer, call in zip(exact.layers, seen, strict=True):
        jacobian = torch.autograd.functional.jacobian(call.again, call.x.detach())
        values = torch.linalg.svdvals(jacobian.reshape(5 * 16, 5 * 16))
        assert layer.jacobian is not None
        assert layer.jacobian.exact
        assert layer.jacobian.condition == pytest.approx((values[0] / values[-1]).item(), rel=1e-5)


def test_a_krylov_subspace_bounds_the_condition_number_from_below_and_finds_it_in_the_end() -> None:
    linear = nn.Linear(12, 12, bias=False).double()
    x = torch.randn(5, 12, dtype=torch.float64)
    exact = conditioning(linear, x, dense_limit=60, steps=1).condition
    values = torch.linalg.svdvals(linear.weight)
    assert exact == pytest.approx((values[0] / values[-1]).item())
    bounds = [conditioning(linear, x, dense_limit=0, steps=k).condition for k in (2, 6, 12, 60)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.9 * exact
    assert bounds[2] == pytest.approx(exact, rel=1e-6)
    assert bounds[3] == pytest.approx(exact, rel=1e-6)


def test_a_singular_jacobian_has_an_infinite_condition_number() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    mean = conditioning(lambda z: z.mean(0, keepdim=True).expand(3, 4), x, dense_limit=99, steps=1)
    assert mean.condition == math.inf


def test_gradient_norms_are_those_of_backward_by_role() -> None:
    model = built("sas")
    inputs = batch(model, 3, 8)
    found = propagate(model, inputs, jacobian_steps=0)
    assert all(p.grad is None for p in model.parameters())
    model(**inputs).loss.backward()
    layer = model.model.layers[0]
    gains = [
        *layer.attention.gains.parameters(),
        layer.attention_branch.gain,
        layer.mlp_branch.gain,
    ]
    roles = {
        "query": [layer.attention.query.weight],
        "key": [layer.attention.key.weight],
        "value": list(layer.attention.value.parameters()),  # α_V and β_V too
        "gain": gains,
        "mlp_in": [layer.mlp.input.weight],
        "mlp_out": [layer.mlp.output.weight],
        "norm": [layer.attention_norm.weight, layer.mlp_norm.weight],
    }
    assert found.layers[0].gradient_norms == {
        role: pytest.approx(math.sqrt(sum(p.grad.square().sum().item() for p in ps)), rel=1e-5)
        for role, ps in roles.items()
    }


def test_the_entropy_is_of_the_shaped_matrix_not_of_the_softmax() -> None:
    """At initialisation shaped attention is the identity, and its softmax is uniform."""
    model = hb.build("sas", **SIZES)
    found = propagate(model, batch(model, 3, 8), jacobian_steps=0)
    assert found.layers[1].attention_entropy == pytest.approx(0, abs=1e-4)
    plain = model.model.layers[0].attention
    plain.gains = None
    uniform = sum(math.log(i) for i in range(1, 9)) / 8
    assert propagate(model, batch(model, 3, 8), jacobian_steps=0).layers[
        0
    ].attention_entropy == pytest.approx(uniform, rel=1e-4)


ORTHOGONAL = {"value": Dense(init="orthogonal"), "projection": Dense(init="orthogonal")}
SHAPED = Attention(shaping=Shaping(), query=Dense(init="zeros"), **ORTHOGONAL)


def deep(attention: Attention) -> Signal:
    """64 skipless layers at initialisation, one token sequence of random tokens in each of two
    rows."""
    model = hb.build(
        "skipless", depth=64, width=32, heads=4, vocab_size=64, context=16, attention=attention
    )
    return hessblocks.signal(model, batch(model, 2, 16), jacobian_steps=2, dense_limit=0)


@pytest.mark.slow
def test_plain_attention_without_skips_collapses_and_shaped_attention_does_not() -> None:
    plain, shaped = deep(Attention(**ORTHOGONAL)), deep(SHAPED)
    assert plain.inputs.token_similarity < 0.2
    assert plain.inputs.stable_rank > 3
    assert plain.layers[-1].tokens.token_similarity > 0.999
    assert plain.layers[-1].tokens.stable_rank == pytest.approx(1, abs=1e-3)
    assert all(abs(layer.tokens.token_similarity) < 0.2 for layer in shaped.layers)
    assert all(layer.tokens.stable_rank > 2.5 for layer in shaped.layers)
    queries = [signal.layers[0].gradient_norms["query"] for signal in (plain, shaped)]
    assert queries[0] < 1e-3 * queries[1]  # collapsed tokens leave nothing for queries to learn


def test_models_of_other_libraries_are_measured_where_they_can_be_looked_into() -> None:
    config = GPT2Config(
        n_embd=16,
        n_head=4,
        n_layer=3,
        vocab_size=29,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    found = propagate(model, batch(model, 2, 6))
    assert all(layer.attention_entropy is not None for layer in found.layers)
    assert all(layer.jacobian is not None for layer in found.layers)
    assert "query_key_value" in found.layers[0].gradient_norms


def test_the_jacobian_of_another_librarys_layer_is_that_of_the_whole_layer() -> None:
    """A layer that fills a cache must be seen without it: keys and values depend on its input
    too."""
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 29, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.mul_(30)
    tokens = batch(model, 1, 5)
    double = copy.deepcopy(model).double()
    double.set_attn_implementation("eager")
    embedded = double.transformer.wte(tokens["input_ids"]) + double.transformer.wpe.weight[:5]
    below = torch.ones(5, 5).tril().bool()
    mask = torch.zeros(5, 5).double().masked_fill(~below, -1e300)[None, None]

    def layer(x: torch.Tensor) -> torch.Tensor:
        output = double.transformer.h[0](x, attention_mask=mask)
        return output[0] if isinstance(output, tuple) else output

    jacobian = torch.autograd.functional.jacobian(layer, embedded.detach()).reshape(40, 40)
    (found,) = propagate(model, tokens).layers
    assert found.jacobian is not None
    assert found.jacobian.condition == pytest.approx(float(torch.linalg.cond(jacobian)), rel=1e-4)


def test_frozen_layers_have_no_gradients_and_modes_come_back() -> None:
    model = built("sas").train()
    model.model.eval()
    model.model.requires_grad_(requires_grad=False)
    found = propagate(model, batch(model, 2, 6))
    assert [layer.gradient_norms for layer in found.layers] == [{}] * len(found.layers)
    assert model.training
    assert not any(module.training for module in model.model.modules())


@pytest.mark.parametrize("name", hb.PRESETS)
@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_padding_changes_no_number(name: str, task: str) -> None:
    model = built(name, task=task)
    tokens = torch.randint(0, 29, (1, 6))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    alone = propagate(model, tokens).to_rows()
    together = propagate(model, {"input_ids": padded, "attention_mask": mask}).to_rows()
    for one, other in zip(alone, together, strict=True):
        assert one | {"value": 0} == other | {"value": 0}
        assert one["value"] == pytest.approx(other["value"], rel=1e-3, abs=1e-5)


def test_rows_are_tidy_and_the_model_stays_as_it_was() -> None:
    model = built("sas").train()
    rows = propagate(model, batch(model, 2, 6)).to_rows()
    assert {tuple(row) for row in rows} == {("layer", "quantity", "role", "value", "method")}
    assert {row["layer"] for row in rows} == {"", 0, 1}
    assert len({(row["layer"], row["quantity"], row["role"]) for row in rows}) == len(rows)
    assert model.training
    assert not model.model.layers[0]._forward_hooks


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"labels": torch.zeros(1, 3)}, "expected input_ids, got labels"),
        (torch.zeros(2, 1, dtype=torch.long), "two unpadded tokens"),
    ],
)
def test_bad_batches_are_refused(inputs: Any, words: str) -> None:
    with pytest.raises(hb.ArgumentError, match=words):
        propagate(built("sas"), inputs)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(hb.ArgumentError, match="no list of layers"):
        propagate(nn.Linear(2, 2), torch.zeros(1, 3, dtype=torch.long))


def test_layers_that_cannot_be_differentiated_forward_need_zero_steps() -> None:
    model = BloomForCausalLM(BloomConfig(vocab_size=29, hidden_size=16, n_layer=1, n_head=2))
    tokens = torch.arange(6)[None]
    assert propagate(model, tokens, jacobian_steps=0).layers[0].jacobian is None
    with pytest.raises(ArgumentError, match=r"jacobian_steps: expected 0, .*autograd\.Function"):
        propagate(model, tokens)
