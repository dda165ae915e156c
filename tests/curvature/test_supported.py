"""Models whose outputs say nothing of what is trained, or that are more than their layers: refused
by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.norms import NoNorm, RMSNorm
from hessblocks.blocks.weights import Dense, Reparametrised
from hessblocks.errors import ArgumentError
from tests.curvature.cases import Case, stir, tokens
from tests.curvature.oracle import dense
from tests.curvature.test_families import lifted, made
from tests.curvature.test_last_block import SIZES
from tests.curvature.test_last_layer import behind

IDS = {"input_ids": tokens(2)}


class Adapted(nn.Linear):
    """A layer with an adapter that adds nothing yet."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, dtype=torch.float64)
        self.weight = layer.weight
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features, dtype=torch.float64))
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


def adapt(model: Any) -> None:
    attention = model.model.layers[-1].self_attn
    attention.q_proj = Adapted(attention.q_proj)


def adapt_behind(model: Any) -> None:
    mlp = model.model.layers[-1].mlp
    mlp.down_proj = Adapted(mlp.down_proj)


def prune_behind(model: Any) -> None:
    prune.l1_unstructured(model.model.layers[-1].mlp.down_proj, "weight", 0.5)


def prune_query(model: Any) -> None:
    prune.l1_unstructured(model.model.layers[-1].self_attn.q_proj, "weight", 0.5)


def normalise_head(model: Any) -> None:
    parametrizations.weight_norm(model.lm_head)


def tie_gate(model: Any) -> None:
    mlp = model.model.layers[-1].mlp
    mlp.up_proj.weight = mlp.gate_proj.weight


def tie_norms(model: Any) -> None:
    model.model.norm.weight = model.model.layers[-1].post_attention_layernorm.weight


def scale_logits(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda module, inputs, output: output / 2)


def cap_logits(model: Any) -> None:
    own = model.lm_head.forward
    model.lm_head.forward = lambda x: 5 * torch.tanh(own(x) / 5)


def freeze_query_weight(model: Any) -> None:
    model.model.layers[-1].self_attn.q_proj.weight.requires_grad_(False)


def steer(model: Any) -> None:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if output.shape[1] > 1:
            output = output.clone()
            output[:, 2] += 1.0
        return output

    model.model.layers[-1].register_forward_hook(hook)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("llama", adapt, "q_proj to be a plain linear layer, got Adapted"),
        ("llama", adapt_behind, "mlp.down_proj to be a plain linear layer"),
        ("llama", prune_query, "q_proj to be a plain linear layer"),
        ("llama", prune_behind, "down_proj"),
        ("llama", normalise_head, "output layer to be a plain linear layer"),
        ("llama", tie_gate, "are one weight"),
        ("llama", tie_norms, "are one weight"),
        ("llama", scale_logits, "logits are not what its output layer gives"),
        ("llama", cap_logits, "output layer"),
        ("qwen2", freeze_query_weight, "weight and bias of q_proj to be trained both or neither"),
        ("llama", steer, "act on each token by itself"),
        ("llama", lambda model: model.model.norm.float(), "one precision, got single and double"),
        ("llama", lambda model: model.to("meta"), "no values here"),
    ],
)
def test_what_outputs_do_not_show_is_refused(
    name: str, change: Callable[[Any], object], words: str
) -> None:
    model = lifted(made(name))
    change(model)
    for call in (hb.exact_last_block, hb.exact_attention_curvature):
        if call is hb.exact_attention_curvature and change in (adapt_behind, prune_behind):
            continue  # the attention's own blocks are right
        with pytest.raises(ArgumentError) as caught:
            call(model, IDS)
        assert words in str(caught.value)


def test_trained_gains_that_do_not_show_at_the_start_are_refused() -> None:
    attention = Attention(value=Reparametrised(trainable_gains=True))
    model = hb.build("pre-ln", depth=2, **SIZES, attention=attention).double()
    with pytest.raises(ArgumentError, match=r"the trained 'value\."):
        hb.exact_last_block(model, IDS)


def test_a_key_norm_behind_queries_of_zero_counts() -> None:
    """It changes no output there, and the curvature of the queries nevertheless."""
    attention = Attention(query=Dense(init="zeros"), query_norm=NoNorm(), query_key_norm=RMSNorm())
    model = hb.build("pre-ln", depth=1, **SIZES, attention=attention).double()
    truth = dense(Case(model=model, batches=[IDS]))
    found = hb.exact_attention_curvature(model, IDS)
    rows = truth.starts["model.layers.0.attention.query.weight"] + torch.arange(SIZES["width"] ** 2)
    expected = float(truth.full[rows][:, rows].norm())
    assert found.block("query", "query").frobenius_norm() == pytest.approx(expected, rel=1e-10)


def test_autocast_is_refused() -> None:
    model = stir(hb.build("pre-ln", depth=1, **SIZES)).float()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="autocast"):
        hb.exact_last_block(model, IDS)


def test_a_block_is_of_the_weights_of_its_call_or_refused() -> None:
    model = lifted(made("llama"))
    found, same = (hb.exact_last_block(model, IDS) for _ in range(2))
    head = same.block("unembedding", "unembedding").dense()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    assert torch.equal(found.block("unembedding", "unembedding").dense(), head)
    with pytest.raises(ArgumentError, match="weights or modules have changed"):
        found.block("unembedding", "model.norm.weight").dense()


def test_a_bias_alone_is_trained() -> None:
    """As where biases alone are fine-tuned."""
    model = made("gpt2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" in name and name.endswith("bias"))
    case = Case(model=model, batches=[IDS])
    found, truth = hb.exact_last_block(model, IDS), dense(case)
    assert found.groups == tuple(f"transformer.h.0.mlp.{name}.bias" for name in ("c_fc", "c_proj"))
    rows = torch.cat([behind(case, truth, group) for group in found.groups])
    expected = truth.full[rows][:, rows]
    assert (found.dense() - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("trained", ["self_attn", "lm_head", "embed_tokens", "nothing"])
def test_parts_may_be_frozen(trained: str) -> None:
    model = lifted(made("llama"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    groups = hb.exact_last_block(model, IDS).groups
    expected = {"self_attn": ("query", "key", "value", "projection"), "lm_head": ("unembedding",)}
    assert groups == expected.get(trained, ())


@pytest.mark.slow
def test_compiled_models_and_inference_mode_change_nothing() -> None:
    model = lifted(made("llama"))
    expected = hb.exact_last_block(model, IDS).dense()
    with torch.inference_mode():
        inside = hb.exact_last_block(model, IDS).dense()
    assert torch.equal(inside, expected)
    assert torch.equal(hb.exact_last_block(torch.compile(model), IDS).dense(), expected)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("states", ["config", "batch"])
def test_hooks_that_transformers_adds_are_taken_off_again(states: str) -> None:
    model = made("llama")
    batch = dict(IDS)
    if states == "config":
        model.config.output_hidden_states = True
    else:
        batch["output_hidden_states"] = True
    count = len(model(**IDS, output_hidden_states=True).hidden_states)
    before = [len(module._forward_hooks) for module in made("llama").modules()]
    fresh = made("llama")
    fresh.config.output_hidden_states = states == "config"
    for _ in range(2):
        hb.exact_last_block(fresh, batch)
        problem = hb.Problem(fresh, [batch])
        group = hb.parameter_groups(fresh)["final.norm"]
        hb.Hessian(problem, group) @ torch.ones(group.size, dtype=torch.float64)
    assert [len(module._forward_hooks) for module in fresh.modules()] == before
    assert len(fresh(**IDS, output_hidden_states=True).hidden_states) == count


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({**IDS, "labels": torch.ones(2, 4)}, "labels: expected whole numbers"),
        ("ids", "batches: expected"),
    ],
)
def test_batches_of_other_types_are_one_sentence(batch: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        hb.exact_last_block(made("llama"), batch)


@pytest.mark.slow
def test_a_cache_that_is_asked_for_is_not_used_and_labels_may_be_short() -> None:
    model = lifted(made("llama"))
    expected = hb.exact_last_block(model, {**IDS, "labels": IDS["input_ids"]}).dense()
    short = {**IDS, "labels": IDS["input_ids"].short(), "use_cache": True}
    assert torch.equal(hb.exact_last_block(model, short).dense(), expected)
