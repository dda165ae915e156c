"""The loss: weighted by valid tokens over the whole set, in the logits' dtype, whatever the
batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.losses.row_losses import CrossEntropy
from hessblocks.curvature.products.operators import Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError, HessblocksError, RunError
from tests.curvature.cases import CASES, VOCABULARY, Classifier, quartic_loss, stir, tokens

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


def small_model() -> nn.Module:
    return stir(hb.build("pre-ln", depth=1, width=4, heads=2, vocab_size=VOCABULARY, context=6))


def ragged(rows: int = 10) -> dict[str, torch.Tensor]:
    mask = (torch.arange(5)[None] < torch.randint(2, 6, (rows, 1))).long()
    return {"input_ids": tokens(rows, 5), "attention_mask": mask}


def cut(batch: dict[str, torch.Tensor], size: int) -> list[dict[str, torch.Tensor]]:
    rows = len(batch["input_ids"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, rows, size)]


@pytest.mark.parametrize("operator", [Hessian, OuterProduct])
def test_ten_rows_in_batches_of_four_are_one_batch(operator: Any) -> None:
    model, batch = small_model(), ragged()
    whole, pieces = Problem(model, [batch]), Problem(model, cut(batch, 4))
    group = parameter_groups(model)["layers.0.attention.value"]
    assert len(pieces.batches) == 3
    assert pieces.value() == pytest.approx(whole.value(), rel=1e-14)
    difference = operator(whole, group).dense() - operator(pieces, group).dense()
    assert difference.abs().max() < 1e-15


def test_a_memory_limit_cuts_the_work_and_not_the_answer() -> None:
    model, batch = small_model(), ragged()
    group = parameter_groups(model)["layers.0.mlp.in"]
    free = Problem(model, batch)
    with pytest.raises(
        ArgumentError, match=r"one row of a batch needs about .* kB.*raise the limit"
    ):
        Problem(model, batch, memory_limit=1000).value()
    tight = Problem(model, batch, memory_limit=60_000)
    assert (len(free.plan.passes), free.plan.hold) == (1, True)
    assert len(tight.plan.passes) > 3
    assert not tight.plan.hold
    assert tight.plan.together < free.plan.together
    difference = Hessian(free, group).dense() - Hessian(tight, group).dense()
    assert difference.abs().max() < 1e-15


@pytest.mark.parametrize("way", ["in place", "data", "entry of data", "negated data"])
def test_changed_weights_are_noticed(way: str) -> None:
    model, batch = small_model(), ragged()
    operator = Hessian(Problem(model, batch), parameter_groups(model)["layers.0.mlp.in"])
    before = operator.dense()
    weight = model.model.layers[0].mlp.input.weight
    with torch.no_grad():
        if way == "entry of data":
            weight.data[1, 2] += 1e-3
        elif way == "negated data":
            weight.data.neg_()
        else:
            (weight if way == "in place" else weight.data).mul_(1.5)
    fresh = Hessian(Problem(model, batch), parameter_groups(model)["layers.0.mlp.in"]).dense()
    assert torch.equal(operator.dense(), fresh)
    assert not torch.allclose(before, fresh)


def test_a_changed_buffer_is_noticed() -> None:
    model = stir(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))).eval()
    problem = Problem(model, (torch.randn(4, 3).double(), torch.randn(4, 2).double()), "regression")
    before = Hessian(problem).dense()
    model[1].running_var.mul_(2)
    after = Hessian(problem).dense()
    assert not torch.allclose(before, after)
    again = Hessian(Problem(model, next(iter(problem.batches)).raw, "regression"))
    assert torch.equal(after, again.dense())


@pytest.mark.parametrize("change", ["inputs", "labels", "fewer labels", "sampled"])
def test_changed_batches_are_noticed(change: str) -> None:
    model = stir(Classifier(outputs=3))
    x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    problem = Problem(model, [(x[:4], y[:4]), (x[4:], y[4:])], "classification")
    groups = parameter_groups(model, "tensor")

    def asked(of: Problem) -> torch.Tensor:
        if change != "sampled":
            return Hessian(of).dense()
        norms = group_norms(of, groups, parts=["outer"], method="sampled", probes=16)
        return torch.tensor([parts["outer"].value for parts in norms.values()])

    before = asked(problem)
    if change == "inputs":
        x.mul_(2)
    elif change == "labels":
        y.copy_(y.flip(0))
    else:
        y[1:5] = -100
    fresh = Problem(model, [(x[:4], y[:4]), (x[4:], y[4:])], "classification")
    assert torch.equal(asked(problem), asked(fresh))
    assert problem.value() == fresh.value()
    assert not torch.allclose(before, asked(fresh))


def test_the_value_is_the_mean_over_valid_tokens() -> None:
    model, batch = small_model(), ragged()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    logits = model(**batch).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    assert Problem(model, [batch]).value() == pytest.approx(expected, rel=1e-12)
    given = Problem(model, [batch | {"labels": labels}])
    assert given.value() == pytest.approx(expected, rel=1e-12)


def test_the_loss_stays_in_the_dtype_of_the_logits() -> None:
    """Hugging Face's own loss casts to float32: 1e-8 off where float64 is 1e-16."""
    model, batch = CASES["gpt2"]().model, ragged()
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    cast = model(**batch, labels=labels).loss.item()
    logits = model(**batch).logits.detach()
    exact = -logits[:, :-1].log_softmax(-1).flatten(0, 1)
    exact = exact[torch.arange(len(exact)), labels[:, 1:].flatten().clamp(min=0)]
    exact = exact[labels[:, 1:].flatten() >= 0].mean()
    value = Problem(model, [batch]).value()
    assert abs(value - float(exact)) < 1e-14
    assert abs(cast - float(exact)) > 1e-12


def test_a_single_dict_a_loader_and_a_list_are_the_same() -> None:
    model, batch = small_model(), ragged(4)
    rows = [{k: v[i] for k, v in batch.items()} for i in range(4)]
    loader = torch.utils.data.DataLoader(rows, batch_size=3)
    values = [Problem(model, batches).value() for batches in (batch, [batch], loader)]
    assert values == pytest.approx([values[0]] * 3, rel=1e-14)


def test_the_closed_form_of_cross_entropy_is_autodiffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hessblocks.curvature.losses.lazy_logits.CHUNK", 10
    )  # several chunks of two rows
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    targets = torch.randint(0, 5, (3, 4)).masked_fill_(torch.rand(3, 4) < 0.3, -100)

    def total(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / 2

    found = CrossEntropy(targets).derivatives(logits, 0.5)
    assert found.total == pytest.approx(float(total(logits)), rel=1e-14)
    assert torch.allclose(found.gradient, torch.func.grad(total)(logits), atol=1e-15)
    direction = torch.randn(3, 4, 5, dtype=torch.float64)
    expected = torch.func.jvp(torch.func.grad(total), (logits,), (direction,))[1]
    assert torch.allclose(found.curvature(direction), expected, atol=1e-15)
    together = torch.vmap(found.curvature)(torch.stack([direction, 2 * direction]))
    assert torch.allclose(together[1], 2 * expected, atol=1e-15)


@pytest.mark.parametrize(
    ("batches", "loss", "message"),
    [
        ([], "causal-lm", "at least one batch"),
        ([{"labels": torch.zeros(2)}], "causal-lm", "no inputs besides labels"),
        ([{"mode": "fast"}], "causal-lm", "no inputs besides labels"),
        ([3], "causal-lm", "got int"),
        (
            [(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.zeros(0, 3), torch.zeros(0))],
            "classification",
            r"batch 1 \(counted from 0\) has no rows",
        ),
        ([torch.zeros(2, 3), torch.tensor([0, 1])], "classification", "a pair as a tuple"),
        ([np.zeros((2, 3)), np.zeros(2)], "classification", "a pair as a tuple"),
        (
            (torch.zeros(2, 3),) * 3,
            "classification",
            "name them in a dict",
        ),
        ((np.zeros((2, 3)),) * 3, "classification", "3 tensors without names"),
        ([[torch.zeros(2, 3)] * 3], "classification", "3 tensors without names"),
        ([torch.zeros(2, 0)], "regression", "inputs of length 0"),
        ([(torch.zeros(2, 3).double(),)], "classification", "needs labels"),
        ([(torch.zeros(2, 3).double(), torch.tensor([0, 3]))], "classification", "0 to 2"),
        ([(torch.zeros(2, 3).double(), torch.tensor([0]))], "classification", "expected shape"),
        ([(torch.zeros(2, 3).double(), torch.tensor([-100, -100]))], "classification", "ignored"),
        ([(torch.zeros(2, 3).double(), torch.zeros(2, 4))], "regression", "shape of the logits"),
        ([(torch.zeros(2, 3).double(), torch.zeros(2))], "classificaton", "did you mean"),
        ([(torch.zeros(2, 3).double(), torch.zeros(2))], "classification", "whole numbers, got"),
    ],
)
def test_unusable_data_is_refused(batches: Any, loss: str, message: str) -> None:
    model = stir(Classifier())
    with pytest.raises(ArgumentError, match=message):
        Hessian(Problem(model, batches, loss), parameter_groups(model)["first.bias"]).dense()


def test_a_pair_of_arrays_or_lists_is_a_pair() -> None:
    model, x, labels = stir(Classifier()), torch.randn(4, 3).double(), torch.tensor([0, 2, 1, 1])
    expected = Problem(model, (x, labels), "classification").value()
    for pair in ((x.numpy(), labels.numpy()), (x, labels.tolist())):
        assert Problem(model, pair, "classification").value() == expected


class Masked(nn.Module):
    """A language model whose mask comes first, and whose tokens have a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(
        self,
        my_mask: torch.Tensor,
        tokens: torch.Tensor,
        others: torch.Tensor | None = None,
        mode: str = "",
    ) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.embedding(tokens)))
        return logits


def test_tokens_of_any_name_are_found_behind_masks_and_what_is_not_a_tensor() -> None:
    model, ids = stir(Masked()), torch.randint(7, (6, 5))
    beside = {"mode": "fast", "my_mask": torch.ones(6, 5, dtype=torch.long)}
    expected = Problem(model, {"my_mask": ids, "tokens": ids, "labels": ids}).value()
    assert Problem(model, {**beside, "tokens": ids}).value() == expected
    two = {**beside, "others": ids + 1, "tokens": ids}
    with pytest.raises(ArgumentError, match=r"'others' and 'tokens' may all be .* input_ids"):
        Problem(model, two).value()
    assert Problem(model, {**two, "labels": ids}).value() == expected
    assert Problem(model, {**two, "labels": ids}, memory_limit=20_000).value() == pytest.approx(
        expected
    )


def test_complex_and_absent_parameters_are_refused() -> None:
    batch = (torch.zeros(2, 3), torch.tensor([0, 1]))
    model = nn.Linear(3, 2)
    model.turn = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ArgumentError, match=r"'turn' is complex; .*view_as_real"):
        Problem(model, batch, "classification")
    half = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ArgumentError, match=r"'1\.weight' is on the meta device"):
        Problem(half, batch, "classification")


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_a_weight_with_rows_goes_with_a_whole_batch(name: str) -> None:
    model, x = stir(Classifier(outputs=3)), torch.randn(4, 3).double()
    y, weight = torch.ones(4, 3).double(), torch.tensor([[1.0], [2], [3], [4]]).double()
    loss = nn.BCEWithLogitsLoss(**{name: weight})
    assert Problem(model, (x, y), loss).value() == pytest.approx(loss(model(x), y).item())
    for rows in (1, 2):
        batches = list(zip(x.split(rows), y.split(rows), strict=True))
        with pytest.raises(ArgumentError, match=rf"{name}=.* each of 4 examples.* such as {rows};"):
            Hessian(Problem(model, batches, loss)).dense()


def test_a_choice_between_one_class_is_refused() -> None:
    """Its cross-entropy is 0 whatever the label, and so would be every curvature."""
    model, batch = stir(Classifier(outputs=1)), (torch.zeros(2, 3).double(), torch.tensor([0, 0]))
    for kind in (Hessian, OuterProduct):
        with pytest.raises(ArgumentError, match=r"one output, .* give loss='regression'"):
            kind(Problem(model, [batch], "classification")).dense()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_tokens_and_labels_of_any_whole_number_are_the_same(dtype: torch.dtype) -> None:
    model, ids = small_model(), torch.randint(0, VOCABULARY, (2, 5))
    expected = Problem(model, {"input_ids": ids}).value()
    for found in (ids.to(dtype), ids.to(dtype).numpy()):
        assert Problem(model, {"input_ids": ids, "labels": found}).value() == expected
    if dtype == torch.int32:
        assert Problem(model, {"input_ids": ids.int().numpy()}).value() == expected


@pytest.mark.parametrize(
    ("kind", "settings", "loss"),
    [
        ("BertForMaskedLM", {"num_attention_heads": 2, "hidden_size": 8}, "masked-lm"),
        ("BertForTokenClassification", {"num_attention_heads": 2, "hidden_size": 8},
            "classification"),
        ("T5ForConditionalGeneration", {"num_layers": 1, "d_model": 8, "num_heads": 2}, "seq2seq"),
    ],
)  # fmt: skip
def test_the_next_token_is_not_asked_of_a_model_of_another_task(
    kind: str, settings: dict[str, Any], loss: str
) -> None:
    """Its labels would be moved by one place, and the loss be another one."""
    made = getattr(transformers, kind)
    model = made(made.config_class(vocab_size=11, **settings)).eval()
    ids = torch.randint(0, 11, (2, 5))
    asking = [Problem, hb.exact_last_block] if loss != "seq2seq" else [Problem]
    for asked in asking:  # closed forms know no encoder-decoders
        with pytest.raises(ArgumentError, match=f"not the task of {kind}; give loss='{loss}'"):
            asked(model, {"input_ids": ids, "labels": ids % 2})
    assert "Problem(" in repr(Problem(model, {"input_ids": ids, "labels": ids % 2}, loss))


class Wrapped(nn.Module):
    """A model of the user's own around one of transformers, with a number of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(()))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.scale * self.inner(input_ids=input_ids).logits
        return logits


@pytest.mark.parametrize("wrap", [nn.DataParallel, Wrapped, lambda m: Wrapped(nn.DataParallel(m))])
def test_a_wrapper_has_the_task_of_the_model_that_does_its_work(wrap: Any) -> None:
    sizes = {"num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 11}
    ids = torch.randint(0, 11, (2, 5))
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
    with pytest.raises(ArgumentError, match="not the task of BertForMaskedLM"):
        Problem(wrap(bert), {"input_ids": ids})
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=1, n_head=2, n_embd=8, vocab_size=11, bos_token_id=0, eos_token_id=0
        )
    ).eval()
    wrapped = Problem(wrap(gpt), {"input_ids": ids}).value()
    assert wrapped == pytest.approx(Problem(gpt, {"input_ids": ids}).value())


def test_labels_that_are_moved_already_are_not_moved_again() -> None:
    model, ids = small_model(), torch.randint(0, VOCABULARY, (4, 6))
    expected = Problem(model, {"input_ids": ids}).value()
    inputs, labels = ids[:, :-1], ids[:, 1:]
    padded = labels.masked_fill(torch.arange(5) == torch.tensor([[4], [3], [4], [2]]), -100)
    for moved in (labels, padded):
        for asked in (
            Problem(model, (inputs, moved)).value,
            lambda m=moved: exact(model, inputs, m),
        ):
            with pytest.raises(ArgumentError, match="next input token already"):
                asked()
    found = Problem(model, (inputs, labels), "classification").value()
    assert found == pytest.approx(expected, rel=1e-13)
    same = torch.full((4, 6), 3)
    for own in (ids, ids.masked_fill(torch.arange(6) < 3, -100), labels.flip(1)):
        Problem(model, (own.clamp(min=0), own)).value()
    Problem(model, (same, same)).value()


def exact(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> object:
    return hb.exact_attention_curvature(model, {"input_ids": inputs, "labels": labels})


@pytest.mark.parametrize("method", ["probes", "sampled"])
def test_where_autograd_is_off_for_good_nothing_is_called_zero(method: str) -> None:
    case = CASES["gpt2"]()
    groups = parameter_groups(case.model)
    with torch.no_grad():
        group_norms(case.problem, groups, parts=["outer"], probes=4, method=method)
    problem = Problem(case.model, case.batches)
    with torch.inference_mode(), pytest.raises(RunError, match=r"inference_mode\(\) allows no"):
        group_norms(problem, groups, parts=["outer"], probes=4, method=method)


def test_a_sequence_longer_than_the_positions_is_reported() -> None:
    case = CASES["gpt2"]()
    ids = torch.zeros(1, 99, dtype=torch.long)
    with pytest.raises(RunError, match=r"below its vocabulary, and sequences as short as its"):
        Problem(case.model, {"input_ids": ids}).value()


def test_a_model_without_logits_is_refused() -> None:
    model = small_model()
    with pytest.raises(RunError, match="without logits"):
        Problem(model.model, [ragged()]).value()


def test_a_compiled_model_is_taken_out_of_its_wrapper() -> None:
    model, batch = small_model(), ragged(3)
    compiled = torch.compile(model)
    groups = parameter_groups(compiled)
    assert groups == parameter_groups(model)
    group = groups["layers.0.mlp.in"]
    found = Hessian(Problem(compiled, batch), group).dense()
    assert torch.equal(found, Hessian(Problem(model, batch), group).dense())


def test_a_frozen_model_is_refused() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(ArgumentError, match="trainable"):
        Problem(model, [ragged()])


def test_a_loss_that_is_not_finite_names_its_batch() -> None:
    model = stir(Classifier(outputs=2))
    good = (torch.zeros(1, 3).double(), torch.zeros(1, 2).double())
    bad = (torch.full((1, 3), float("nan")).double(), torch.zeros(1, 2).double())
    problem = Problem(model, [good, bad], quartic_loss)
    with pytest.raises(RunError, match="batch 1"):
        problem.value()
    with pytest.raises(RunError, match="batch 1"):
        Hessian(problem, parameter_groups(model)["first.bias"]).dense()


def test_a_callable_that_returns_a_mean_is_refused() -> None:
    model, batch = (
        stir(Classifier(outputs=2)),
        (torch.ones(3, 3).double(), torch.ones(3, 2).double()),
    )
    with pytest.raises(ArgumentError, match=r"loss: expected one loss .*reduction='none'"):
        Problem(model, [batch], loss=lambda outputs, given: F.mse_loss(outputs, given[1])).value()


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda outputs: None, "returned NoneType"),
        (lambda outputs: 1.0, "returned float"),
        (lambda outputs: outputs.argmax(-1), "returned torch.int64"),
        (lambda outputs: outputs + 1j, "returned torch.complex128"),
        (lambda outputs: outputs.detach(), "autograd follows"),
        (lambda outputs: outputs.pow_(4), "does not write into the logits"),
        (lambda outputs: outputs.logits, "the callable failed: AttributeError: .*'logits'"),
    ],
)
def test_a_callable_that_returns_no_losses_is_refused(losses: Any, message: str) -> None:
    batch = torch.ones(3, 3).double(), torch.ones(3).long()
    problem = Problem(stir(Classifier()), batch, lambda outputs, given: losses(outputs))
    with pytest.raises(HessblocksError, match=message):
        _ = Hessian(problem) @ torch.ones(sum(problem.entries.values())).double()


@pytest.mark.parametrize("moved", [False, True])
def test_a_callable_that_counts_ignored_labels_is_refused(moved: bool) -> None:
    case = CASES["gpt2"]()
    ids = case.batches[0]["input_ids"]
    labels = ids.masked_fill(torch.arange(ids.shape[1]) > 1, -100)
    first = int(moved)

    def losses(outputs: Any, batch: Any) -> torch.Tensor:
        logits = outputs.logits[:, : ids.shape[1] - first].flatten(0, 1)
        return F.cross_entropy(logits, batch["labels"][:, first:].flatten(), reduction="none")

    def valid_losses(outputs: Any, batch: Any) -> torch.Tensor:
        return losses(outputs, batch)[batch["labels"][:, first:].flatten() != -100]

    batch = {"input_ids": ids, "labels": labels}
    with pytest.raises(ArgumentError, match=r"return losses\[labels != -100\]"):
        Problem(case.model, batch, losses).value()
    named = "causal-lm" if moved else "classification"
    expected = Problem(case.model, batch, named).value()
    assert Problem(case.model, batch, valid_losses).value() == pytest.approx(expected, rel=1e-13)
    whole = {"input_ids": ids, "labels": ids}
    assert Problem(case.model, whole, losses).value() > 0
    last = ids.masked_fill(torch.arange(ids.shape[1]) == ids.shape[1] - 1, -100)
    Problem(case.model, {"input_ids": ids, "labels": last}, valid_losses).value()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
def test_small_shares_of_many_passes_are_not_lost_in_bfloat16() -> None:
    model = stir(Classifier(outputs=2)).bfloat16()
    rows = [(torch.ones(1, 3).bfloat16(), torch.ones(1, 2).bfloat16()) for _ in range(600)]
    group = max(parameter_groups(model).values(), key=lambda each: each.size)
    vector = torch.randn(group.size).bfloat16()
    many, one = (
        Hessian(Problem(model, batches, loss="regression"), group) @ vector
        for batches in (rows, rows[:1])
    )
    assert one.float().norm() > 0
    assert torch.allclose(many.float(), one.float(), rtol=0.03, atol=1e-3)


def test_a_callable_sees_the_outputs_and_the_batch() -> None:
    case = CASES["gpt2"]()

    def token_losses(outputs: Any, batch: Any) -> torch.Tensor:
        valid = batch["attention_mask"][:, 1:] == 1
        losses = F.cross_entropy(
            outputs.logits[:, :-1].transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
        )
        return losses[valid]

    ours = Problem(case.model, case.batches, token_losses)
    group = parameter_groups(case.model)["layers.1.mlp.out"]
    assert ours.value() == pytest.approx(case.problem.value(), rel=1e-13)
    for operator in (Hessian, OuterProduct):
        difference = operator(ours, group).dense() - operator(case.problem, group).dense()
        assert difference.abs().max() < 1e-14


class WithPenalty(Classifier):
    """A model that returns a penalty beside its logits."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        return logits, logits.square().sum(-1)


@pytest.mark.parametrize("operator", [Hessian, OuterProduct])
def test_a_callable_whose_derivative_would_be_lost_in_part_is_refused(operator: Any) -> None:
    model = stir(WithPenalty(outputs=2))
    batch = (torch.ones(3, 3).double(), torch.ones(3, 2).double())
    group = parameter_groups(model)["first.bias"]

    def of(penalty: Any) -> torch.Tensor:
        def loss(outputs: Any, given: Any) -> torch.Tensor:
            return (outputs[0] - given[1]).pow(2).sum(-1) + penalty(outputs)

        return operator(Problem(model, [batch], loss), group).dense()

    for penalty in (lambda outputs: outputs[1], lambda outputs: model.first.weight.sum()):
        with pytest.raises(ArgumentError, match=r"loss: .* also depends on another"):
            of(penalty)
    assert torch.equal(of(lambda outputs: outputs[1].detach()), of(lambda outputs: 0.0))


def test_a_callable_whose_function_of_torch_has_no_second_derivative() -> None:
    """Cross-entropy in chunks: torch's second derivative of it is wrong."""
    model, weight = stir(Classifier(outputs=2)), torch.randn(5, 2).double()
    batch = (torch.randn(3, 3).double(), torch.tensor([0, 3, 1]))
    group = parameter_groups(model)["first.bias"]
    found = [
        Hessian(
            Problem(
                model,
                [batch],
                lambda outputs, given, options=options: F.linear_cross_entropy(
                    outputs, weight, given[1], reduction="none", options=options
                ),
            ),
            group,
        ).dense()
        for options in (None, nn.LinearCrossEntropyOptions(batch_chunk_size=2))
    ]
    assert torch.equal(found[0], found[1])


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["gpt2", Path("models", "mine")])
def test_a_name_in_place_of_a_model_says_what_loads_it(name: str | Path) -> None:
    with pytest.raises(ArgumentError, match=rf"`model, tokenizer = hb\.load\('{name}'\)` loads it"):
        Problem(name, [torch.zeros(1, 2).long()])  # type: ignore[arg-type]
