"""Logits are made some rows at a time: the same H, H_o and H_f as dense autodiff's, and never a
whole batch of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp
from torch.nn import functional as F  # noqa: N812
from transformers import GPT2Config, GPT2LMHeadModel

from hessblocks.curvature.groups import merge
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.losses import lazy_logits, loss_node
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from tests.breadth import everyday
from tests.curvature.cases import CONTEXT, VOCABULARY, Case, padded_batches, stir, tokens
from tests.curvature.live_bytes import LiveBytes
from tests.curvature.oracle import Dense, dense

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
OPERATORS = {"full": Hessian, "outer": OuterProduct, "functional": Functional}


def gpt2(width: int = 3, words: int = VOCABULARY, **options: Any) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=1,
        n_embd=width,
        n_head=1,
        n_inner=3,
        vocab_size=words,
        n_positions=512 if words > VOCABULARY else CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
        **options,
    )
    return GPT2LMHeadModel(config).eval()


def untied() -> nn.Module:
    return gpt2(tie_word_embeddings=False)


def frozen_head() -> nn.Module:
    model = untied()
    model.lm_head.weight.requires_grad_(False)
    return model


def frozen_and_tied() -> nn.Module:
    model = gpt2()
    model.lm_head.weight.requires_grad_(False)
    return model


def head_alone() -> nn.Module:
    model = untied()
    model.requires_grad_(False).lm_head.weight.requires_grad_(True)
    return model


def with_bias() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=3,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=3,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        type_vocab_size=1,
    )
    return transformers.BertForMaskedLM(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": gpt2,
    "untied": untied,
    "frozen head": frozen_head,
    "frozen and tied": frozen_and_tied,
    "head alone": head_alone,
    "with bias": with_bias,
}


@cache
def prepared(name: str) -> tuple[Case, Dense]:
    torch.manual_seed(0)
    model = stir(MODELS[name]())
    labels = torch.tensor([[1, -100, 5, 2], [-100, 0, -100, 4]])
    masked = [{"input_ids": tokens(2), "labels": labels}]
    case = (
        Case(model=model, batches=masked, loss="masked-lm")
        if name == "with bias"
        else Case(model=model, batches=padded_batches())
    )
    return case, dense(case)


def is_late(problem: Problem) -> bool:
    readout, _ = problem.forward(problem.batches[0], problem.parameters)
    return readout.weight is not None


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows, three words and two directions at a time."""
    monkeypatch.setattr(lazy_logits, "CHUNK", 2 * VOCABULARY)
    monkeypatch.setattr(loss_node, "WORDS", 3)


@pytest.mark.parametrize("part", OPERATORS)
@pytest.mark.parametrize("name", everyday(MODELS, "tied"))
@pytest.mark.usefixtures("_small_pieces")
def test_all_blocks_are_those_of_dense_autodiff(name: str, part: str) -> None:
    """All parameters, then groups with and without the head: between them, one vector and many."""
    case, oracle = prepared(name)
    problem, groups = case.problem, parameter_groups(case.model, "tensor")
    assert is_late(problem)
    everything = merge("everything", list(groups.values()))
    some = [everything, list(groups.values())[-1], next(iter(groups.values()))]
    scale = oracle.full.abs().max()
    for rows in some:
        for columns in some:
            operator = OPERATORS[part](problem, rows=rows, columns=columns)
            expected = oracle.block(part, rows, columns)
            assert (operator.dense() - expected).abs().max() < 1e-12 * scale
            one = operator @ torch.ones(columns.size, dtype=torch.float64)
            assert (one - expected.sum(1)).abs().max() < 1e-12 * scale * columns.size


def value_of(case: Case) -> float:
    with torch.no_grad():
        logits = case.model(**case.batches[0]).logits[:, :-1].flatten(0, 1)
    return float(F.cross_entropy(logits, case.batches[0]["input_ids"][:, 1:].flatten()))


@pytest.mark.usefixtures("_small_pieces")
def test_the_value_is_the_mean_over_all_rows() -> None:
    torch.manual_seed(0)
    case = Case(model=stir(gpt2()), batches=[{"input_ids": tokens(3)}])
    assert abs(case.problem.value() - value_of(case)) < 1e-14


class Squeeze(torch.autograd.Function):
    """A function of a user's own, which torch calls past its subclasses of tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 0.5 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 0.5 * grads[0]


def scaled(model: nn.Module) -> None:
    model.lm_head.register_forward_hook(lambda module, args, out: 0.5 * out)


def in_place(model: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        out.logits.mul_(0.5)

    model.register_forward_hook(hook)


def by_index(model: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        out.logits[..., 3] = 0.1

    model.register_forward_hook(hook)


def other_output(model: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> Any:
        out.logits = torch.tanh(out.logits)
        return out

    model.register_forward_hook(hook)


def own_function(model: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> Any:
        out.logits = Squeeze.apply(out.logits)
        return out

    model.register_forward_hook(hook)


def looked_at(model: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        with torch.no_grad():
            assert torch.isfinite(out.logits).all()

    model.register_forward_hook(hook)


def another_head(model: nn.Module) -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    head = Twice(3, VOCABULARY, bias=False, dtype=torch.float64)
    head.weight = model.lm_head.weight
    model.lm_head = head


USES: dict[str, Callable[[nn.Module], None]] = {
    use.__name__: use
    for use in (scaled, in_place, by_index, other_output, own_function, looked_at, another_head)
}


@pytest.mark.parametrize("use", USES)
def test_whatever_is_done_to_the_logits_is_part_of_the_loss(use: str) -> None:
    torch.manual_seed(0)
    model = stir(gpt2())
    USES[use](model)
    case = Case(model=model, batches=[{"input_ids": tokens(2)}])
    assert not is_late(case.problem)
    assert abs(case.problem.value() - value_of(case)) < 1e-14
    group = merge("everything", list(parameter_groups(model, "tensor").values()))
    vector = torch.randn(group.size, dtype=torch.float64)
    found = [kind(case.problem, group) @ vector for kind in OPERATORS.values()]
    if use == "own_function":  # the same in a form that torch.func takes
        model._forward_hooks.clear()
        scaled(model)
    for ours, expected in zip(found, witnesses(model, case.batches[0], vector), strict=True):
        assert (ours - expected).abs().max() < 1e-12 * expected.abs().max()


def witnesses(
    model: nn.Module, batch: dict[str, Tensor], vector: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """H z, H_o z and H_f z by torch.func, with all logits at once."""
    names = {n: p.detach() for n, p in model.named_parameters()}
    z = {
        n: part.view_as(names[n])
        for n, part in zip(names, vector.split([p.numel() for p in names.values()]), strict=True)
    }
    targets = batch["input_ids"][:, 1:].flatten()

    def logits(values: dict[str, Tensor]) -> Tensor:
        out = functional_call(model, values, (), {**batch, "use_cache": False}).logits
        found: Tensor = out[:, :-1].flatten(0, 1)
        return found

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets)

    def flat(values: dict[str, Tensor]) -> Tensor:
        return torch.cat([value.flatten() for value in values.values()])

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        full = jvp(grad(lambda v: loss(logits(v))), (names,), (z,))[1]
        at, pushed = jvp(logits, (names,), (z,))
        residual = grad(loss)(at)
        curved = jvp(grad(loss), (at,), (pushed,))[1]
        outer = vjp(logits, names)[1](curved)[0]
        functional = jvp(grad(lambda v: (residual * logits(v)).sum()), (names,), (z,))[1]
    return flat(full), flat(outer), flat(functional)


@pytest.mark.parametrize("words", everyday([50_257, 151_936], 50_257))
def test_a_real_vocabulary_is_exact_in_float64(words: int) -> None:
    torch.manual_seed(0)
    model = gpt2(4, words).double()
    batch = {"input_ids": torch.randint(0, words, (1, 9))}
    problem = Problem(model, batch)
    group = merge("everything", list(parameter_groups(model, "tensor").values()))
    vector = torch.randn(group.size, dtype=torch.float64)
    for kind, expected in zip(OPERATORS.values(), witnesses(model, batch, vector), strict=True):
        found = kind(problem, group) @ vector
        assert (found - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.parametrize("part", everyday([*OPERATORS, "value"], "full", "outer", "value"))
def test_no_tensor_of_tokens_by_words_is_held_where_memory_is_scarce(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_logits, "CHUNK", 1 << 18)
    torch.manual_seed(0)
    words, length = 50_257, 128
    model = gpt2(4, words)
    batch = {"input_ids": torch.randint(0, words, (1, length))}
    problem = Problem(model, batch, memory_limit=100_000_000)
    group = merge("everything", list(parameter_groups(model, "tensor").values()))
    vector = torch.randn(group.size)
    with LiveBytes() as live:
        found = problem.value() if part == "value" else OPERATORS[part](problem, group) @ vector
    del found
    assert live.peak < 0.4 * words * length * 4


def test_a_row_without_any_label_adds_nothing() -> None:
    torch.manual_seed(0)
    model, ids = stir(gpt2()), tokens(2)
    labels = ids.clone()
    labels[1] = -100
    both = Problem(
        model,
        [
            {"input_ids": row[None], "labels": lab[None]}
            for row, lab in zip(ids, labels, strict=True)
        ],
    )
    one = Problem(model, [{"input_ids": ids[:1]}])
    group = merge("everything", list(parameter_groups(model, "tensor").values()))
    vector = torch.randn(group.size, dtype=torch.float64)
    for kind in OPERATORS.values():
        assert torch.equal(kind(both, group) @ vector, kind(one, group) @ vector)
