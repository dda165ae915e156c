"""Models, losses and data as other tools take them, given as they are, against autodiff and against
curvlinops.

The cases are those that curvlinops 3 tests itself with, the losses those that hessian-eigenthings
offers.
"""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from typing import Any

import curvlinops
import hessian_eigenthings
import pytest
import torch
import transformers as hf
from hessian_eigenthings import loss_fns
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

import hessblocks as hb
from hessblocks.curvature import custom_groups
from tests.breadth import everyday

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
Made = tuple[nn.Module, Any, list[tuple[Any, Tensor]]]
"""Model, loss module, and pairs of input and target."""


class Shared(nn.Sequential):
    """One map for all places of a row; the classes then stand on axis 1, by a transposed view."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y.movedim(-1, 1)


class FromDict(nn.Module):
    """Takes its one input out of a mapping."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.net = mlp(outputs)

    def forward(self, data: Any) -> Tensor:
        y: Tensor = self.net(data["x"])
        return y


def mlp(outputs: int, inputs: int = 10, kind: type[nn.Sequential] = nn.Sequential) -> nn.Module:
    return kind(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))


def features(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape, dtype=torch.float64) for shape in shapes]


def classes(count: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randint(0, count, shape) for shape in shapes]


def bits(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [labels.double() for labels in classes(2, *shapes)]


def made(model: nn.Module, loss: Any, inputs: list[Any], targets: list[Tensor]) -> Made:
    return model.double(), loss, list(zip(inputs, targets, strict=True))


def mappings() -> list[Any]:
    first, second = features((3, 10), (4, 10))
    return [UserDict({"x": first}), {"x": second}]


def images() -> Made:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    inputs = features((3, 1, 12, 12), (2, 1, 12, 12))
    return made(model, nn.CrossEntropyLoss(), inputs, classes(4, (3,), (2,)))


FLAT, WIDE = ((3, 10), (4, 10)), ((3, 5, 10), (4, 5, 10))
CASES: dict[str, Callable[[], Made]] = {
    **{
        f"{name}, {reduction}": partial(build, reduction)
        for reduction in ("mean", "sum")
        for name, build in {
            "cross-entropy": lambda r: made(
                mlp(3), nn.CrossEntropyLoss(reduction=r), features(*FLAT), classes(3, (3,), (4,))
            ),
            "binary": lambda r: made(
                mlp(2), nn.BCEWithLogitsLoss(reduction=r), features(*FLAT), bits((3, 2), (4, 2))
            ),
            "squared error": lambda r: made(
                mlp(3, 8), nn.MSELoss(reduction=r), features((2, 8), (6, 8)), features((2, 3), (6,
                    3))
            ),
            "cross-entropy at many places": lambda r: made(
                mlp(3, kind=Shared),
                nn.CrossEntropyLoss(reduction=r),
                features(*WIDE),
                classes(3, (3, 5), (4, 5)),
            ),
            "binary at many places": lambda r: made(
                mlp(2), nn.BCEWithLogitsLoss(reduction=r), features(*WIDE), bits((3, 5, 2), (4, 5,
                    2))
            ),
            "squared error at many places": lambda r: made(
                mlp(3, 8),
                nn.MSELoss(reduction=r),
                features((2, 5, 8), (6, 5, 8)),
                features((2, 5, 3), (6, 5, 3)),
            ),
        }.items()
    },
    "binary, one output": lambda: made(
        mlp(1), nn.BCEWithLogitsLoss(), features(*FLAT), bits((3, 1), (4, 1))
    ),
    "mapping, cross-entropy": lambda: made(
        FromDict(2), nn.CrossEntropyLoss(), mappings(), classes(2, (3,), (4,))
    ),
    "mapping, binary": lambda: made(
        FromDict(1), nn.BCEWithLogitsLoss(), mappings(), bits((3, 1), (4, 1))
    ),
    "mapping, squared error": lambda: made(
        FromDict(2), nn.MSELoss(), mappings(), features((3, 2), (4, 2))
    ),
    "images": images,
}  # fmt: skip
"""The 17 of curvlinops: 7 of plain rows, 3 of mappings, 6 with a further axis, 1 of images."""
MEANS = [name for name in CASES if not name.endswith(", sum")]


def mean_loss(case: Made, values: dict[str, Tensor]) -> Tensor:
    """The loss of all batches as one, by torch's own reduction."""
    model, loss, data = case
    outputs = torch.cat([functional_call(model, values, (x,)) for x, _ in data])
    found: Tensor = loss(outputs, torch.cat([y for _, y in data]))
    return found


def dense(case: Made, *, outer: bool = False) -> Tensor:
    """H by torch alone; or H_o, by the same with the model made linear at the point."""
    model, loss, data = case
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [p.numel() for p in parameters.values()]

    def named(flat: Tensor) -> dict[str, Tensor]:
        pieces = zip(parameters.items(), flat.split(sizes), strict=True)
        return {name: piece.view_as(p) for (name, p), piece in pieces}

    point = torch.cat([p.flatten() for p in parameters.values()])
    if not outer:
        found: Tensor = torch.autograd.functional.hessian(
            lambda t: mean_loss(case, named(t)), point
        )
        return found

    def outputs(flat: Tensor) -> Tensor:
        return torch.cat([functional_call(model, named(flat), (x,)) for x, _ in data])

    at, targets = outputs(point), torch.cat([y for _, y in data])
    curvature = torch.autograd.functional.hessian(lambda f: loss(f, targets), at)
    jacobian = torch.autograd.functional.jacobian(outputs, point).flatten(0, -2)
    return jacobian.T @ curvature.reshape(at.numel(), at.numel()) @ jacobian


def problem_of(model: nn.Module, data: Any, loss: Any) -> tuple[hb.Problem, Any]:
    return hb.Problem(model, data, loss), custom_groups(model, {"all": ["*"]})["all"]


# a sum differs from a mean by one factor, which the first of them has every day
@pytest.mark.parametrize("name", everyday(CASES, *MEANS, "cross-entropy, sum"))
def test_a_case_of_curvlinops(name: str) -> None:
    case = CASES[name]()
    model, loss, data = case
    problem, group = problem_of(model, data, loss)
    expected, outer = dense(case), dense(case, outer=True)
    values = dict(model.named_parameters())
    assert problem.value() == pytest.approx(mean_loss(case, values).item(), rel=1e-12)
    full, first = hb.Hessian(problem, group).dense(), hb.OuterProduct(problem, group).dense()
    second = hb.Functional(problem, group).dense()
    assert (full - expected).norm() <= 1e-12 * expected.norm()
    assert (first - outer).norm() <= 1e-12 * expected.norm()
    assert (first + second - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("name", everyday(CASES, *MEANS, "cross-entropy, sum"))
def test_curvlinops_finds_the_same(name: str) -> None:
    model, loss, data = CASES[name]()
    problem, group = problem_of(model, data, loss)
    options: Any = {"check_deterministic": False}
    if name.startswith("mapping"):
        options["batch_size_fn"] = lambda x: x["x"].shape[0]
    parameters = list(model.parameters())
    for kind, ours in (
        (curvlinops.HessianLinearOperator, hb.Hessian),
        (curvlinops.GGNLinearOperator, hb.OuterProduct),
    ):
        theirs = kind(model, loss, parameters, data, **options)
        expected = theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
        assert (ours(problem, group).dense() - expected).norm() <= 1e-12 * expected.norm()


CRITERIA: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "cross-entropy": (F.cross_entropy, lambda x: x.argmax(1)),
    "cross-entropy, smoothed": (
        partial(F.cross_entropy, label_smoothing=0.1),
        lambda x: x.argmax(1),
    ),
    "cross-entropy, ignored class": (
        partial(F.cross_entropy, ignore_index=1),
        lambda x: x.argmax(1) % 3,
    ),
    "log-probabilities": (F.nll_loss, lambda x: x.argmax(1)),
    "log-probabilities, weighted": (
        nn.NLLLoss(weight=torch.tensor([0.5, 2.0, 1.0, 0.1]).double()),
        lambda x: x.argmax(1),
    ),
    "squares": (F.mse_loss, lambda x: x),
    "sum of squares": (partial(F.mse_loss, reduction="sum"), lambda x: x),
    "binary": (F.binary_cross_entropy_with_logits, lambda x: (x > 0).double()),
    "probabilities": (nn.BCELoss(), lambda x: (x > 0).double()),
    "absolute": (F.l1_loss, lambda x: x),
    "smooth absolute": (F.smooth_l1_loss, lambda x: x),
    "huber": (partial(F.huber_loss, delta=0.3), lambda x: x),
    "counts": (F.poisson_nll_loss, lambda x: x.abs().round()),
    "soft margin": (nn.SoftMarginLoss(), lambda x: x.sign()),
}
"""A criterion (output, target), and targets out of numbers; the model ends as its criterion needs
it."""
ENDS: dict[str, nn.Module] = {
    "log-probabilities": nn.LogSoftmax(1),
    "log-probabilities, weighted": nn.LogSoftmax(1),
    "probabilities": nn.Sigmoid(),
}


def equal_to_theirs(model: nn.Module, data: Any, theirs: Any, problem: hb.Problem) -> None:
    group = custom_groups(model, {"all": ["*"]})["all"]
    vector = torch.randn(group.size, dtype=torch.float64)
    expected = hessian_eigenthings.HessianOperator(model, data, theirs).matvec(vector)
    found = hb.Hessian(problem, group) @ vector
    assert (found - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_of_hessian_eigenthings(name: str) -> None:
    criterion, targets = CRITERIA[name]
    model = nn.Sequential(mlp(4), ENDS.get(name, nn.Identity())).double()
    (x,) = features((5, 10))
    data = [(x, targets(torch.randn(5, 4, dtype=torch.float64)))]
    theirs = loss_fns.supervised_loss(criterion)
    equal_to_theirs(model, data, theirs, hb.Problem(model, data, criterion))


class Hooked(nn.Module):
    """Called as TransformerLens calls its models: token ids in, logits out, or the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.unembed = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, input: Tensor, return_type: str = "logits") -> Tensor:
        logits: Tensor = self.unembed(torch.tanh(self.embed(input)).cumsum(1))
        if return_type == "logits":
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), input[:, 1:].flatten())


def test_the_language_models_of_hessian_eigenthings() -> None:
    model, tokens = Hooked().double(), torch.randint(0, 7, (3, 5))
    equal_to_theirs(model, [tokens], loss_fns.tlens_loss(), hb.Problem(model, [tokens]))
    config = hf.GPT2Config(
        vocab_size=7, n_embd=4, n_layer=1, n_head=2, n_positions=5, bos_token_id=0, eos_token_id=0
    )
    gpt2 = hf.GPT2LMHeadModel(config).double().eval()
    batch = {"input_ids": tokens, "labels": tokens.masked_fill(tokens == 3, -100)}
    logits, loss = loss_fns.hf_lm_forward(), loss_fns.hf_lm_loss_of_output()
    with sdpa_kernel(SDPBackend.MATH):
        equal_to_theirs(
            gpt2, [batch], lambda m, b: loss(logits(m, b), b), hb.Problem(gpt2, [batch])
        )


def loader(model: nn.Module, **options: Any) -> tuple[nn.Module, DataLoader[Any], Tensor, Tensor]:
    (x,), (y,) = features((12, 10)), classes(2, (12,))
    return model.double(), DataLoader(TensorDataset(x, y), **options), x, y


CHANCE: dict[str, tuple[nn.Module, dict[str, Any], str]] = {
    "dropout": (
        nn.Sequential(nn.Linear(10, 5), nn.Dropout(), nn.ReLU(), nn.Linear(5, 2)),
        {"batch_size": 3},
        "dropout is switched off",
    ),
    "batch norm": (
        nn.Sequential(nn.Linear(10, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
        {"batch_size": 3, "shuffle": True},
        "batch norm uses its running statistics",
    ),
    "a random last batch": (
        nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 2)),
        {"batch_size": 5, "shuffle": True, "drop_last": True},
        "drops a random last batch",
    ),
}
"""What curvlinops finds not to be deterministic: set aside here, and said."""


@pytest.mark.parametrize("name", CHANCE)
def test_chance_in_model_and_data_is_reported(name: str) -> None:
    model, options, sentence = CHANCE[name]
    model, data, *_ = loader(model, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        problem, group = problem_of(model, data, nn.CrossEntropyLoss())
    assert any(sentence in str(one.message) for one in said)
    assert torch.equal(hb.Hessian(problem, group).dense(), hb.Hessian(problem, group).dense())


def test_a_mapping_in_one_piece_may_be_cut() -> None:
    """Rows of a mapping are dealt out over passes as those of a tensor are."""
    case = CASES["mapping, cross-entropy"]()
    model, loss, data = case
    group = custom_groups(model, {"all": ["*"]})["all"]
    tight = hb.Problem(model, data, loss, memory_limit=3_500)
    assert len(tight.plan.passes) > len(data)
    expected = dense(case)
    assert (hb.Hessian(tight, group).dense() - expected).norm() <= 1e-12 * expected.norm()


def test_names_that_a_model_does_not_take_are_reported() -> None:
    model, x = Two().double(), torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(hb.RunError, match=r"batch 0 .*TypeError: .* argument 'z'"):
        hb.Problem(model, [{"x": x, "z": x, "labels": x}], "regression").value()


class Two(nn.Linear):
    """Two inputs, by name."""

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x * y)
