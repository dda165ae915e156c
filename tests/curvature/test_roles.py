"""Roles of parameters: families of every kind, and the names that tell them where the family is
unknown."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.pytorch_utils import Conv1D

from hessblocks.architectures import ARCHITECTURES
from hessblocks.curvature.groups import UnknownRoleWarning, parameter_groups
from hessblocks.curvature.products.operators import Hessian
from hessblocks.errors import ArgumentError
from tests.curvature import architectures
from tests.curvature.architectures import GEMMA, GROUPED, SIZES, SPECIAL
from tests.curvature.cases import VOCABULARY, Case, preset_case
from tests.curvature.oracle import check_partition, dense

_BOTH_SIDES = {"d_model": 8, "vocab_size": VOCABULARY, "decoder_start_token_id": 0, **SPECIAL}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4}
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "mixtral": lambda: hf.MixtralConfig(**GROUPED, num_local_experts=2),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **GROUPED, **_EXPERTS, shared_expert_intermediate_size=4
    ),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**GEMMA, **_EXPERTS),
    "gpt_oss": lambda: hf.GptOssConfig(**GEMMA, num_local_experts=2),
    "phi": lambda: hf.PhiConfig(**SIZES, qk_layernorm=True),
    "gptj": lambda: hf.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, rotary_dim=2, **SPECIAL
    ),
    "olmo2": lambda: hf.Olmo2Config(**SIZES),
    "t5": lambda: hf.T5Config(
        **_BOTH_SIDES, d_kv=2, d_ff=6, num_layers=1, num_heads=4, feed_forward_proj="gated-gelu"
    ),
    "bart": lambda: hf.BartConfig(
        **_BOTH_SIDES,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=6,
        decoder_ffn_dim=6,
        max_position_embeddings=8,
        forced_eos_token_id=0,
    ),
    "distilbert": lambda: hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=8, n_layers=1, n_heads=4, hidden_dim=6, pad_token_id=0
    ),
    "deberta-v2": lambda: hf.DebertaV2Config(
        **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4
    ),
    "albert": lambda: hf.AlbertConfig(**SIZES, embedding_size=8),
}
ATTENTION = {"query", "key", "value", "projection"}


def model_of(kind: str) -> nn.Module:
    config = CONFIGURATIONS[kind]()
    head: Any = hf.AutoModelForCausalLM
    if kind in ("t5", "bart"):
        head = hf.AutoModelForSeq2SeqLM
    elif kind in ("distilbert", "deberta-v2", "albert"):
        head = hf.AutoModelForMaskedLM
    model: nn.Module = head.from_config(config)
    return model


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_every_parameter_of_a_known_family_has_a_role(kind: str) -> None:
    model = model_of(kind)
    parameters = dict(model.named_parameters())
    for level in ("role", "head"):
        groups = parameter_groups(model, level)
        check_partition(groups.values(), parameters)
        assert not [group.name for group in groups.values() if group.role == "other"]
    inside = {group.role for group in groups.values() if group.layer == 0}
    assert inside >= ATTENTION | {"mlp_in", "mlp_out", "norm"}
    assert ("router" in inside) == ("moe" in kind or kind in ("mixtral", "gpt_oss"))


def test_the_sides_of_an_encoder_decoder_and_its_cross_attention_are_told_apart() -> None:
    for kind in ("t5", "bart"):
        groups = parameter_groups(model_of(kind))
        for stem in ("encoder.layers.0.", "decoder.layers.0.", "decoder.layers.0.cross_"):
            assert {f"{stem}attention.{role}" for role in ATTENTION} <= set(groups)
        assert groups["encoder.layers.0.attention.query"].size == (72 if kind == "bart" else 64)


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "phi", "gptj", "olmo2", "gpt_oss"])
def test_an_unknown_family_with_usual_names_is_cut_as_a_known_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(kind)
    known = parameter_groups(model)
    monkeypatch.delitem(ARCHITECTURES, kind)
    assert parameter_groups(model) == known


class _Translator(nn.Module):
    """Torch's own layers on both sides, and one parameter whose name tells nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1
        )
        self.temperature = nn.Parameter(torch.ones(()))


def test_torchs_own_layers_are_cut_where_torch_cuts_them() -> None:
    model = _Translator()
    with pytest.warns(UnknownRoleWarning, match="temperature"):
        groups = parameter_groups(model)
    check_partition(groups.values(), dict(model.named_parameters()))
    assert [name for name, group in groups.items() if group.role == "other"] == ["temperature"]
    assert groups["embedding.words"].role == "embedding"
    for number, role in enumerate(("query", "key", "value")):
        weight = model.encoder.layers[0].self_attn.in_proj_weight  # type: ignore[union-attr]
        numbers = {name: torch.zeros(1, *p.shape) for name, p in model.named_parameters()}
        numbers["encoder.layers.0.self_attn.in_proj_weight"] = weight.detach()[None]  # type: ignore[operator]
        group = groups[f"encoder.layers.0.attention.{role}"]
        found = torch.empty(1, group.size)
        group.collect(numbers, found)
        expected = weight.chunk(3)[number].flatten()  # type: ignore[operator]
        torch.testing.assert_close(found[0, : len(expected)], expected)
    assert "decoder.layers.0.cross_attention.query" in groups
    with pytest.raises(ArgumentError, match="told apart"):
        parameter_groups(model, "head")


def test_weights_of_keys_that_have_another_width_are_apart() -> None:
    attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=6)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"self_attn": attention})])})
    sizes = {name: group.size for name, group in parameter_groups(model).items()}
    assert sizes == {
        "layers.0.attention.query": 72,
        "layers.0.attention.key": 40,
        "layers.0.attention.value": 56,
        "layers.0.attention.projection": 72,
    }


def test_two_towers_stay_two() -> None:
    towers = nn.ModuleDict(
        {
            name: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
            for name in ("text", "vision")
        }
    )
    groups = parameter_groups(towers)
    assert {f"{name}.layers.0.attention.query" for name in towers} <= set(groups)
    assert all(group.role != "other" for group in groups.values())


class _Hooked(nn.Module):
    """The names of TransformerLens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ParameterDict({"W_E": torch.zeros(5, 8)})
        attention = {f"W_{x}": torch.zeros(2, 8, 4) for x in "QKV"} | {
            f"b_{x}": torch.zeros(2, 4) for x in "QKV"
        }
        block = {
            "attn": nn.ParameterDict({**attention, "W_O": torch.zeros(2, 4, 8)}),
            "mlp": nn.ParameterDict({"W_in": torch.zeros(8, 16), "W_out": torch.zeros(16, 8)}),
            "ln1": nn.ParameterDict({"w": torch.zeros(8)}),
        }
        self.blocks = nn.ModuleList([nn.ModuleDict(block)])
        self.unembed = nn.ParameterDict({"W_U": torch.zeros(8, 5)})


def test_the_names_of_transformer_lens_tell_roles() -> None:
    groups = parameter_groups(_Hooked())
    assert {name: group.size for name, group in groups.items()} == {
        "embedding.token": 40,
        **{f"layers.0.attention.{role}": 72 for role in ("key", "query", "value")},
        "layers.0.attention.projection": 64,
        "layers.0.mlp.in": 128,
        "layers.0.mlp.out": 128,
        "layers.0.norm": 8,
        "head": 40,
    }


def _fused(attention: dict[str, nn.Module], mlp: dict[str, nn.Module]) -> nn.Module:
    """One layer of width 4 with a fused weight, by the names that a user gave."""
    block = nn.ModuleDict({"attn": nn.ModuleDict(attention), "mlp": nn.ModuleDict(mlp)})
    return nn.ModuleDict({"layers": nn.ModuleList([block])})


@pytest.mark.parametrize(
    ("fused", "projection", "inner", "outer", "conv1d"),
    [
        ("c_attn", "c_proj", "c_fc", "c_proj", False),
        ("c_attn", "c_proj", "c_fc", "c_proj", True),
        ("qkv", "proj", "fc1", "fc2", False),
    ],
    ids=["nanoGPT", "OpenAI GPT", "timm"],
)
def test_a_fused_weight_has_queries_keys_values(
    fused: str, projection: str, inner: str, outer: str, conv1d: bool
) -> None:
    def plain(inputs: int, outputs: int) -> nn.Module:
        return Conv1D(outputs, inputs) if conv1d else nn.Linear(inputs, outputs)

    model = _fused(
        {fused: plain(6, 18), projection: plain(6, 6)}, {inner: plain(6, 24), outer: plain(24, 6)}
    )
    groups = parameter_groups(model)
    check_partition(groups.values(), dict(model.named_parameters()))
    assert {group.role for group in groups.values()} == {
        "query", "key", "value", "projection", "mlp_in", "mlp_out"
    }  # fmt: skip
    name = f"layers.0.attn.{fused}"
    shape = model.get_parameter(f"{name}.weight").shape
    numbers = {own: torch.zeros(1, *p.shape) for own, p in model.named_parameters()}
    numbers |= {f"{name}.weight": torch.randn(1, *shape), f"{name}.bias": torch.randn(1, 18)}
    weights = numbers[f"{name}.weight"][0].chunk(3, int(conv1d))
    for part, shift, role in zip(
        weights, numbers[f"{name}.bias"][0].chunk(3), ("query", "key", "value"), strict=True
    ):
        found = torch.empty(1, 42)
        groups[f"layers.0.attention.{role}"].collect(numbers, found)
        torch.testing.assert_close(found[0], torch.cat([part.flatten(), shift]))
    model.config = SimpleNamespace(num_attention_heads=2)  # type: ignore[assignment]
    (view,) = parameter_groups(model, "head")["layers.0.attention.projection.head.1"].views
    assert view.offset == 3 * (6 if conv1d else 1), "heads lie along the inputs of the projection"


@pytest.mark.parametrize("multi_query", [False, True])
def test_a_fused_weight_of_an_architecture_without_a_table_is_left_whole(multi_query: bool) -> None:
    """GPT-BigCode's have queries, keys and values head by head, or one key for all."""
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    config = hf.GPTBigCodeConfig(multi_query=multi_query, bos_token_id=0, eos_token_id=0, **sizes)
    model = hf.GPTBigCodeForCausalLM(config)
    with pytest.warns(UnknownRoleWarning, match="c_attn"):
        groups = parameter_groups(model)
    assert {group.role for group in groups.values()} >= {"other", "projection", "mlp_in"}
    assert not {"query", "key", "value"} & {group.role for group in groups.values()}


@pytest.mark.parametrize("outputs", [12, 24, 10])
def test_a_fused_weight_with_fewer_keys_is_left_whole_and_so_is_its_shift(outputs: int) -> None:
    """Whose thirds would be no roles, though its length divides by 3."""
    model = _fused({"c_attn": nn.Linear(6, outputs)}, {"c_fc": nn.Linear(6, 24)})
    with pytest.warns(UnknownRoleWarning, match=r"c_attn\.weight, layers\.0\.attn\.c_attn\.bias"):
        groups = parameter_groups(model)
    assert {group.role for group in groups.values()} == {"other", "mlp_in"}
    check_partition(groups.values(), dict(model.named_parameters()))


def test_a_gate_without_experts_is_not_a_router() -> None:
    block = nn.ModuleDict(
        {"self_attn": nn.MultiheadAttention(8, 2), "mlp": nn.ModuleDict({"gate": nn.Linear(8, 2)})}
    )
    model = nn.ModuleDict({"layers": nn.ModuleList([block])})
    with pytest.warns(UnknownRoleWarning, match=r"layers\.0\.mlp\.gate\.weight"):
        groups = parameter_groups(model)
    assert groups["layers.0.mlp.gate.weight"].role == "other"


class Adapted(nn.Module):
    """A module with a low-rank addition, as adapters name it."""

    def __init__(self, inner: nn.Module, inputs: int, outputs: int, *, conv1d: bool) -> None:
        super().__init__()
        shapes = [(inputs, 2), (2, outputs)] if conv1d else [(2, inputs), (outputs, 2)]
        self.base_layer = inner
        self.lora_A, self.lora_B = (nn.Parameter(torch.randn(shape)) for shape in shapes)
        self.weight, self.bias = inner.weight, inner.bias


@pytest.mark.parametrize("level", ["role", "head", "tensor"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "phi3", "llama", "bert", "gpt_neox", "falcon, grouped"])
def test_an_adapter_in_a_known_architecture_keeps_all_its_entries(
    name: str, frozen: bool, level: str
) -> None:
    model = architectures.model_of(name).requires_grad_(not frozen)
    added = []
    for path, module in list(model.named_modules()):
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear | Conv1D) and "head" not in path and "cls" not in path:
            conv1d = isinstance(module, Conv1D)
            inputs, outputs = weight.shape if conv1d else reversed(weight.shape)
            parent, _, own = path.rpartition(".")
            setattr(
                model.get_submodule(parent), own, Adapted(module, inputs, outputs, conv1d=conv1d)
            )
            added += [f"{path}.lora_A", f"{path}.lora_B"]
    with nullcontext() if level == "tensor" else pytest.warns(UnknownRoleWarning, match="lora_A"):
        groups = parameter_groups(model, level)
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    check_partition(groups.values(), trainable)
    assert len(added) >= 8
    assert all(groups[name].role == "other" for name in added)


def test_a_fused_weight_that_does_not_divide_is_left_whole() -> None:
    model = architectures.model_of("gpt2")
    attention = model.transformer.h[0].attn  # type: ignore[union-attr,index]
    attention.c_attn.weight = nn.Parameter(torch.randn(8, 23))  # type: ignore[union-attr]
    with pytest.warns(UnknownRoleWarning, match=r"c_attn\.weight: groups of their own"):
        groups = parameter_groups(model)
    check_partition(groups.values(), dict(model.named_parameters()))


def test_a_model_that_is_not_a_transformer_is_cut_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        groups = parameter_groups(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    assert {group.role for group in groups.values()} == {"other"}


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_without_a_group_the_hessian_is_of_all_trainable_parameters() -> None:
    case = preset_case("pre-ln")
    oracle = dense(case)
    whole = Hessian(case.problem)
    order = torch.cat(
        [oracle.places(group) for group in parameter_groups(case.model, "tensor").values()]
    )
    expected = oracle.full[order][:, order]
    assert whole.shape == (sum(p.numel() for p in case.model.parameters()),) * 2
    torch.testing.assert_close(
        whole.dense(), expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max())
    )


MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")


@pytest.mark.parametrize("kind", MIXTURES)
def test_an_expert_is_a_group_of_its_slices(kind: str) -> None:
    model = model_of(kind)
    parameters = dict(model.named_parameters())
    groups = parameter_groups(model, "expert")
    check_partition(groups.values(), parameters)
    for role, stem in (("in", "gate_up_proj"), ("out", "down_proj")):
        for number in (0, 1):
            group = groups[f"layers.0.mlp.{role}.expert.{number}"]
            assert (group.role, group.layer) == (f"mlp_{role}", 0)
            own = {n: p for n, p in parameters.items() if f"layers.0.mlp.experts.{stem}" in n}
            found = torch.empty(1, group.size)
            group.collect({name: p.detach()[None] for name, p in parameters.items()}, found)
            expected = torch.cat([p[number].flatten() for p in own.values()])
            torch.testing.assert_close(found[0], expected.detach())
    assert ("layers.0.mlp.in" in groups) == (kind == "qwen2_moe"), "its shared expert"
    assert "layers.0.attention.query" in groups


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")  # the router rounds
def test_the_block_of_an_expert_is_that_of_the_dense_hessian() -> None:
    torch.manual_seed(0)
    model = model_of("mixtral").double().eval()
    model.set_experts_implementation("eager")  # type: ignore[operator]
    case = Case(model=model, batches=[{"input_ids": torch.randint(0, VOCABULARY, (2, 4))}])
    group = parameter_groups(model, "expert")["layers.0.mlp.out.expert.1"]
    block = Hessian(case.problem, group).dense()
    assert block.abs().max() > 0
    torch.testing.assert_close(block, dense(case).block("full", group, group), atol=1e-8, rtol=1e-5)


def test_experts_in_a_list_of_modules_are_told_by_their_number() -> None:
    expert = nn.ModuleDict({"up_proj": nn.Linear(4, 6), "down_proj": nn.Linear(6, 4)})
    mixture = nn.ModuleDict({"gate": nn.Linear(4, 3), "experts": nn.ModuleList([expert] * 1)})
    mixture["experts"].append(copy.deepcopy(expert))  # type: ignore[operator]
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": mixture})])})
    sizes = {name: group.size for name, group in parameter_groups(model, "expert").items()}
    assert sizes == {
        "layers.0.mlp.router": 15,
        "layers.0.mlp.in.expert.0": 30,
        "layers.0.mlp.out.expert.0": 28,
        "layers.0.mlp.in.expert.1": 30,
        "layers.0.mlp.out.expert.1": 28,
    }
    assert set(parameter_groups(model)) == {f"layers.0.mlp.{x}" for x in ("router", "in", "out")}


def test_experts_that_are_not_there_are_refused() -> None:
    with pytest.raises(ArgumentError, match="phi has no experts"):
        parameter_groups(model_of("phi"), "expert")
    model = model_of("mixtral")
    model.config.num_local_experts = 3
    with pytest.raises(ArgumentError, match="mixtral has no experts"):
        parameter_groups(model, "expert")
