"""The closed form for the last attention of real models against the dense Hessian of autodiff."""

from collections.abc import Callable
from functools import cache
from itertools import combinations_with_replacement

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Branch, Shaping
from hessblocks.blocks.norms import DyT, LayerNorm, NoNorm
from hessblocks.blocks.positions import RotaryPosition
from hessblocks.blocks.weights import Dense as DenseWeight
from hessblocks.blocks.weights import Reparametrised
from hessblocks.conventions import PARTS
from hessblocks.curvature.exact.last_block import exact_attention_curvature
from hessblocks.curvature.last_layer import last_attention
from hessblocks.curvature.losses.batches import unpack
from hessblocks.curvature.model_state import evaluation_mode
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature.cases import CONTEXT, VOCABULARY, Case, gpt2_case, stir, tokens
from tests.curvature.oracle import Dense, dense

WEIGHTS = ("query", "key", "value", "projection")
SHAPED = ("skipless", "v-skipinit", "sas", "sas-p", "sas-p-no-norm")
PRESETS = ("pre-ln", "post-ln", "parallel", *SHAPED)
SIZES = {"width": 4, "heads": 2, "vocab_size": VOCABULARY, "context": CONTEXT, "mlp_width": 6}


def batch(labels: bool = False) -> dict[str, Tensor]:
    made = {
        "input_ids": tokens(3),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 0]]),
    }
    if labels:
        asked = (torch.rand(3, 4) < 0.5) & made["attention_mask"].bool()
        made["labels"] = torch.where(asked, made["input_ids"], -100)
    return made


def of_preset(name: str, depth: int = 2, task: str = "causal-lm", **fields: object) -> Case:
    model = hb.build(name, depth=depth, task=task, **{**SIZES, **fields})
    return Case(model=stir(model), batches=[batch(task == "masked-lm")], loss=task)


CASES: dict[str, Callable[[], Case]] = {
    **{name: lambda name=name: of_preset(name) for name in PRESETS},
    **{
        f"{name}, one layer": lambda name=name: of_preset(name, depth=1)
        for name in ("pre-ln", "sas-p")
    },
    **{
        f"{name}, bidirectional": lambda name=name: of_preset(name, task="masked-lm")
        for name in ("pre-ln", "sas-p")
    },
    "linear scores": lambda: of_preset("pre-ln", attention=Attention(scores="linear")),
    "one matrix": lambda: of_preset(
        "pre-ln", position="learned", attention=Attention(query_key="one-matrix")
    ),
    "grouped queries": lambda: of_preset("pre-ln", key_value_heads=1),
    "biases": lambda: of_preset(
        "pre-ln", attention=Attention(**dict.fromkeys(WEIGHTS, DenseWeight(bias=True)))
    ),
    "layer norm": lambda: of_preset("pre-ln", norm=LayerNorm(), final_norm=LayerNorm()),
    "no norm": lambda: of_preset("pre-ln", norm=NoNorm(), final_norm=NoNorm()),
    "branch gain": lambda: of_preset("pre-ln", attention_branch=Branch(gain=0.3, trainable=True)),
    "branch norm": lambda: of_preset(
        "pre-ln", norm=NoNorm(), attention_branch=Branch(norm=LayerNorm(), gain=0.3)
    ),
    "shaped, dense": lambda: of_preset("pre-ln", attention=Attention(shaping=Shaping(alpha=0.5))),
    "learned positions": lambda: of_preset("pre-ln", position="learned"),
    "rotary, shared heads": lambda: of_preset(
        "pre-ln", position=RotaryPosition(), key_value_heads=1, width=8, depth=1
    ),
    "rotary, shaped": lambda: of_preset("sas", position=RotaryPosition()),
    "op": lambda: of_preset("op"),
    "modern": lambda: of_preset("modern", width=8, key_value_heads=1),
    "queries alone normed": lambda: of_preset(
        "pre-ln", attention=Attention(query_norm=LayerNorm(), query_key_norm=NoNorm())
    ),
    "tanh for norms of queries and keys": lambda: of_preset(
        "pre-ln", attention=Attention(query_key_norm=DyT(), shaping=Shaping(alpha=0.5))
    ),
    "window": lambda: of_preset("pre-ln", attention=Attention(window=2)),
    "window, shaped": lambda: of_preset(
        "pre-ln", attention=Attention(window=2, shaping=Shaping(alpha=0.5))
    ),
    "embedding skip": lambda: of_preset("pre-ln", embedding_skip=Branch(skip=0.3)),
    "alibi": lambda: of_preset("pre-ln", position="alibi", width=8, key_value_heads=1),
    "alibi, shaped": lambda: of_preset(
        "pre-ln", position="alibi", attention=Attention(shaping=Shaping(alpha=0.5), window=3)
    ),
    "alibi, bidirectional": lambda: of_preset("sas", task="masked-lm", position="alibi"),
    "untied": lambda: of_preset("pre-ln", tie_word_embeddings=False),
    "gpt2": lambda: Case(model=gpt2_case().model, batches=[batch()]),
}
# each case takes two seconds; tests of the theory meet every kind of head every day
cases = pytest.mark.parametrize(
    "name",
    everyday(CASES, "pre-ln", "sas-p", "gpt2", "modern", "window", "alibi", "one matrix"),
)


@cache
def case_of(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


@cache
def solved(name: str) -> tuple[Case, Dense]:
    return case_of(name), dense(case_of(name))


def places(case: Case, truth: Dense, group: str) -> Tensor:
    """Rows of the dense Hessian in the order of the closed form: by head, (inputs, outputs), bias
    last."""
    model = case.model
    if hasattr(model, "transformer"):
        return _gpt2_places(model, truth, group)
    layer = len(model.model.layers) - 1
    stem = f"model.layers.{layer}.attention."
    attention = model.model.layers[layer].attention
    if group in ("alpha", "beta", "gamma"):
        return truth.starts[f"{stem}gains.{group}"] + torch.arange(attention.heads)
    if group in ("query_norm", "key_norm"):
        return norm_places(truth, f"{stem}{group}", getattr(attention, group))
    module = attention.query if group == "query_key" else getattr(attention, group)
    label = group.replace("query_key", "query")
    name = f"{stem}{label}.{'update' if hasattr(module, 'update') else 'weight'}"
    weight = module.update if hasattr(module, "update") else module.weight
    index = truth.starts[name] + torch.arange(weight.numel()).view(weight.shape).T
    if getattr(module, "bias", None) is not None:
        bias = truth.starts[f"{stem}{label}.bias"] + torch.arange(weight.shape[0])
        index = torch.cat([index, bias[None]])
    if group == "projection":
        return index.reshape(-1)
    heads = attention.key_value_heads if group in ("key", "value") else attention.heads
    return index.unflatten(1, (heads, -1)).transpose(0, 1).reshape(-1)


def norm_places(truth: Dense, name: str, norm: torch.nn.Module) -> Tensor:
    """Rows of all parameters of a norm, in its own order."""
    return torch.cat(
        [
            truth.starts[f"{name}.{own}"] + torch.arange(p.numel())
            for own, p in norm.named_parameters()
        ]
    )


def _gpt2_places(model: torch.nn.Module, truth: Dense, group: str) -> Tensor:
    stem = f"transformer.h.{len(model.transformer.h) - 1}.attn."
    attention = model.transformer.h[-1].attn
    conv = attention.c_proj if group == "projection" else attention.c_attn
    name = stem + ("c_proj" if group == "projection" else "c_attn")
    weight = truth.starts[f"{name}.weight"] + torch.arange(conv.weight.numel()).view(
        conv.weight.shape
    )
    bias = truth.starts[f"{name}.bias"] + torch.arange(conv.bias.numel())
    index = torch.cat([weight, bias[None]])
    if group == "projection":
        return index.reshape(-1)
    third = index.chunk(3, dim=1)[("query", "key", "value").index(group)]
    return third.unflatten(1, (attention.num_heads, -1)).transpose(0, 1).reshape(-1)


@cases
@pytest.mark.parametrize("part", PARTS)
def test_every_block_equals_dense_autodiff(name: str, part: str) -> None:
    case, truth = solved(name)
    exact = exact_attention_curvature(case.model, case.batches[0], case.loss)
    rows = {group: places(case, truth, group) for group in exact.groups}
    every = torch.cat(list(rows.values()))
    whole = truth.full[every][:, every].norm()
    for row, column in combinations_with_replacement(exact.groups, 2):
        expected = getattr(truth, part)[rows[row]][:, rows[column]]
        block = exact.block(row, column, part)
        scale = expected.norm() if expected.norm() > 1e-3 * whole else 1e-3 * whole
        assert (block.dense() - expected).norm() <= 1e-12 * scale, (row, column)
        assert block.frobenius_norm() == pytest.approx(
            expected.norm().item(), rel=1e-10, abs=1e-13 * float(whole)
        )


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "gpt2"])
def test_one_head_is_its_part_of_all_heads(name: str) -> None:
    case = case_of(name)
    exact = exact_attention_curvature(case.model, case.batches[0])
    together = exact.block("query", "query").dense()
    size = together.shape[0] // 2
    second = exact.block("query", "query", head=1).dense()
    assert torch.allclose(second, together[size:, size:], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "groups"), [("pre-ln", 4), ("sas", 5), ("sas-p, one layer", 6)])
def test_only_what_is_trained_has_a_block(name: str, groups: int) -> None:
    case = case_of(name)
    assert len(exact_attention_curvature(case.model, case.batches[0]).groups) == groups


@pytest.mark.parametrize("name", ["sas", "gpt2"])
def test_the_model_is_not_changed(name: str) -> None:
    case = case_of(name)
    case.model.train()
    for module in case.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    before = {name: p.clone() for name, p in case.model.named_parameters()}
    exact_attention_curvature(case.model, case.batches[0])
    assert case.model.training
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in case.model.modules()
    )
    assert all(
        torch.equal(before[name], p) and p.grad is None for name, p in case.model.named_parameters()
    )
    case.model.eval()


@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "gpt2"])
def test_a_memory_limit_changes_nothing(name: str) -> None:
    case = case_of(name)
    wide, tight = (
        exact_attention_curvature(case.model, case.batches[0], memory_limit=limit).dense()
        for limit in (1 << 29, 1)
    )
    assert torch.allclose(wide, tight, rtol=1e-12, atol=1e-15)
    with pytest.raises(ArgumentError, match=r"memory_limit: .*got 0"):
        exact_attention_curvature(case.model, case.batches[0], memory_limit=0)


@pytest.mark.parametrize("name", ["pre-ln", "gpt2"])
def test_the_output_layer_is_run_on_a_few_tokens_alone(name: str) -> None:
    case = case_of(name)
    with torch.no_grad(), evaluation_mode(case.model):
        seen: list[torch.Size] = []
        handle = case.model.lm_head.register_forward_hook(
            lambda module, inputs, output: seen.append(output.shape)
        )
        last_attention(case.model, unpack(case.batches[0], torch.device("cpu")))
        handle.remove()
    *padding, last = [shape[:2] for shape in seen]
    assert last == (1, 4)
    assert all(rows == 1 and tokens <= 4 for rows, tokens in padding)  # one padded row is tried


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (torch.nn.Linear(2, 2), tokens(1)), ["Linear", "gpt2"]),
        (lambda: (hb.build("sas", depth=1, **SIZES).bfloat16(), tokens(1)), ["bfloat16"]),
        (
            lambda: (
                hb.build(
                    "pre-ln",
                    depth=1,
                    **SIZES,
                    position="learned",
                    attention=Attention(query_key="one-matrix", query_key_norm=DyT()),
                ),
                tokens(1),
            ),
            ["norms of queries and keys only with a matrix each"],
        ),
        (
            lambda: (
                hb.build("sas", depth=1, **SIZES),
                {"input_ids": tokens(1), "labels": torch.full((1, 4), -100)},
            ),
            ["every label"],
        ),
        (
            lambda: (
                hb.build(
                    "pre-ln", depth=1, **SIZES, attention=Attention(key=DenseWeight(bias=True))
                ),
                tokens(1),
            ),
            ["biases", "query"],
        ),
        *(
            (
                lambda name=name: (
                    hb.build(
                        "pre-ln",
                        depth=1,
                        **SIZES,
                        attention=Attention(**{name: Reparametrised(update_gain=0.5)}),
                    ),
                    tokens(1),
                ),
                ["update gain"],
            )
            for name in WEIGHTS
        ),
        (
            lambda: (hb.build("sas", depth=1, task="classification", **SIZES), tokens(1)),
            ["HessblocksForSequenceClassification", "next token"],
        ),
        (lambda: (hb.build("sas", depth=1, **SIZES), tokens(1)[0]), ["input_ids", "sequences"]),
        (lambda: (hb.build("sas", depth=1, **SIZES), tokens(1).float()), ["input_ids", "float"]),
        (
            lambda: (
                hb.build("sas", depth=1, **SIZES),
                {"input_ids": tokens(1), "labels": tokens(1) + VOCABULARY},
            ),
            ["labels", "0 to 6"],
        ),
        (
            lambda: (
                hb.build("sas", depth=1, **SIZES),
                {"input_ids": tokens(1), "labels": tokens(2)},
            ),
            ["labels", "(1, 4)", "(2, 4)"],
        ),
        (
            lambda: (
                stir(hb.build("pre-ln", depth=1, **SIZES)),
                {"input_ids": tokens(2), "position_ids": torch.tensor([[0, 1, 0, 1]] * 2)},
            ),
            ["packed"],
        ),
        (
            lambda: (
                hb.build("sas", depth=1, **SIZES),
                {
                    "input_ids": tokens(1),
                    "labels": tokens(1),
                    "attention_mask": torch.tensor([[0, 1, 1, 1]]),
                },
            ),
            ["padding", "-100"],
        ),
    ],
)
def test_what_is_not_covered_is_refused_by_name(
    make: Callable[[], tuple[torch.nn.Module, object]], words: list[str]
) -> None:
    model, data = make()
    with pytest.raises(ArgumentError) as caught:
        exact_attention_curvature(model, data)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_without_a_trained_weight_there_is_no_block() -> None:
    case = of_preset("pre-ln", depth=1)
    case.model.model.layers[-1].attention.requires_grad_(False)
    hessian = exact_attention_curvature(case.model, case.batches[0])
    for asked in (lambda: hessian.block("value", "value"), hessian.whole):
        with pytest.raises(ArgumentError, match="none of these weights is trained"):
            asked()
