"""Fisher matrices: against gradients of single labels, against curvlinops, and the labels that are
drawn."""

import copy
from functools import cache
from typing import Any

import curvlinops
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.losses.row_losses import CrossEntropy
from hessblocks.curvature.sampled.fisher import _Classes
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature import test_peer_cases
from tests.curvature.cases import CASES, Case
from tests.curvature.oracle import _targets, _valid_logits, dense

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
NAMED = ["sas-p", "gpt2", "classification", "masked-lm", "regression"]


@cache
def solved(name: str) -> tuple[Case, Tensor, Tensor]:
    """A case, its H_o, and Σ g gᵀ / N from the gradient of one label after the other."""
    torch.manual_seed(0)
    case = CASES[name]()
    parameters = {n: p.detach() for n, p in case.model.named_parameters() if p.requires_grad}
    point = torch.cat([p.flatten() for p in parameters.values()]).requires_grad_()
    logits, targets = _valid_logits(case, parameters, point), _targets(case)
    loss = squares if case.loss == "regression" else F.cross_entropy
    count = targets.numel() if case.loss == "regression" else len(targets)
    losses = [loss(row, target) for row, target in zip(logits, targets, strict=True)]
    return case, dense(case).outer, outer_products(losses, point) / count


def squares(row: Tensor, target: Tensor) -> Tensor:
    return (row - target).square().sum()


def outer_products(losses: list[Tensor], point: Tensor) -> Tensor:
    found = [torch.autograd.grad(loss, point, retain_graph=True)[0] for loss in losses]
    gradients = torch.stack(found)
    flat = gradients.flatten(1)
    return flat.T @ flat


def near(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((found - expected).norm() <= tolerance * expected.norm())


@pytest.mark.parametrize(
    "name", everyday(NAMED, "gpt2", "classification", "masked-lm", "regression")
)
def test_the_empirical_fisher_is_made_of_the_gradients_of_single_labels(name: str) -> None:
    case, _, expected = solved(name)
    operator = hb.EmpiricalFisher(case.problem)
    assert near(operator.dense(), expected)
    assert operator.positive_semidefinite
    first, second = list(parameter_groups(case.model, "tensor").values())[:2]
    block = hb.EmpiricalFisher(case.problem, rows=first, columns=second).dense()
    assert near(block, expected[: first.size, first.size : first.size + second.size])


class Table(nn.Module):
    """Logits that are the parameters, so that gradients are seen label by label."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self, row: Tensor) -> Tensor:
        return self.logits[row]


LABELLED: dict[str, tuple[nn.Module, tuple[int, ...], Tensor]] = {
    "ignored, a sum": (nn.CrossEntropyLoss(reduction="sum"), (4, 3), torch.tensor([0, -100, 1, 2])),
    "class weights, ignored": (
        nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]).double(), ignore_index=1),
        (4, 3),
        torch.tensor([0, 1, 2, 2]),
    ),
    "smoothing, classes on axis 1": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        (2, 3, 4),
        torch.tensor([[0, 1, 2, 2], [1, 1, 0, -100]]),
    ),
    "one number a row": (nn.MSELoss(), (4,), torch.tensor([0.1, 2.0, -1.0, 0.3])),
    "rows of several places": (nn.HuberLoss(), (2, 2, 3), torch.linspace(-2, 2, 12).view(2, 2, 3)),
}


@pytest.mark.parametrize("name", LABELLED)
def test_a_label_has_the_loss_that_its_module_gives_it(name: str) -> None:
    module, shape, labels = LABELLED[name]
    model = Table(shape)
    every = copy.deepcopy(module)
    every.reduction = "none"
    classes = isinstance(module, nn.CrossEntropyLoss)
    losses = every(model.logits, labels if classes else labels.double())
    if not classes and losses.ndim > 1:
        losses = losses.sum(-1)
    problem = hb.Problem(model, [(torch.arange(shape[0]), labels)], module)
    expected = outer_products(list(losses.flatten()), model.logits) / problem.valid
    assert near(hb.EmpiricalFisher(problem).dense(), expected)


def theirs(kind: Any, name: str, **options: Any) -> tuple[hb.Problem, Any]:
    """One of curvlinops' own cases as a problem and as its operator."""
    torch.manual_seed(0)
    model, loss, data = test_peer_cases.CASES[name]()
    if name.startswith("mapping"):
        options["batch_size_fn"] = lambda x: x["x"].shape[0]
    parameters = list(model.parameters())
    operator = kind(model, loss, parameters, data, check_deterministic=False, **options)
    return hb.Problem(model, data, loss), operator


@pytest.mark.parametrize("name", test_peer_cases.CASES)
def test_curvlinops_finds_the_same_empirical_fisher(name: str) -> None:
    problem, operator = theirs(curvlinops.EFLinearOperator, name)
    expected = operator @ torch.eye(operator.shape[1], dtype=torch.float64)
    assert near(hb.EmpiricalFisher(problem).dense(), expected)


SEEDS = 64


def directions(problem: hb.Problem) -> Tensor:
    size = sum(problem.entries.values())
    return torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def forms(problem: hb.Problem, samples: int = 1) -> Tensor:
    """vᵀ F v of four vectors, (seeds, 4)."""
    vectors = directions(problem)
    assert problem.plan  # made once for all seeds
    return torch.stack(
        [
            (vectors * (hb.MonteCarloFisher(problem, samples=samples, seed=seed) @ vectors)).sum(0)
            for seed in range(SEEDS)
        ]
    )


def within(found: Tensor, expected: Tensor, error: Tensor | float = 0.0) -> None:
    """The mean over seeds lies within its standard error of what is expected, which has an error of
    its own."""
    own = found.std(0) / SEEDS**0.5
    assert ((found.mean(0) - expected).abs() <= 4 * (own.square() + error**2).sqrt()).all()


def binary(labels: Tensor) -> hb.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return hb.Problem(model, [(torch.randn(5, 3).double(), labels)], nn.BCEWithLogitsLoss())


# ten seconds for each model of language
@pytest.mark.parametrize("name", everyday(NAMED, "classification", "regression"))
def test_the_expectation_of_the_monte_carlo_fisher_is_the_outer_product(name: str) -> None:
    case, outer, _ = solved(name)
    vectors, found = directions(case.problem), forms(case.problem)
    assert float(found.std(0).min()) > 0
    within(found, (vectors * (outer @ vectors)).sum(0))


@pytest.mark.parametrize(
    "name",
    everyday(["cross-entropy, sum", "binary, mean", "squared error, mean"], "binary, mean"),
)
def test_curvlinops_draws_from_the_same_distribution(name: str) -> None:
    problem, _ = theirs(curvlinops.FisherMCLinearOperator, name)
    found, vectors, values = forms(problem, samples=2), directions(problem), []
    torch.manual_seed(0)
    model, loss, data = test_peer_cases.CASES[name]()  # that of the problem, once for all seeds
    for seed in range(SEEDS):
        other = curvlinops.FisherMCLinearOperator(
            model,
            loss,
            list(model.parameters()),
            data,
            check_deterministic=False,
            mc_samples=2,
            seed=seed,
        )
        values.append((vectors * (other @ vectors)).sum(0))
    expected = torch.stack(values)
    within(found, expected.mean(0), expected.std(0) / SEEDS**0.5)
    ratio = found.var(0) / expected.var(0)
    assert ((ratio > 0.3) & (ratio < 3)).all()


@pytest.mark.slow
def test_one_draw_of_one_row_is_the_empirical_fisher_of_a_class_as_often_as_it_is_likely() -> None:
    model = nn.Linear(2, 3).double()
    x = torch.randn(1, 2).double()
    likely = model(x).softmax(-1)[0].tolist()
    by_class = [
        hb.EmpiricalFisher(
            hb.Problem(model, [(x, torch.tensor([label]))], "classification")
        ).dense()
        for label in range(3)
    ]
    problem = hb.Problem(model, [(x, torch.tensor([0]))], "classification")
    counts, seeds = [0, 0, 0], 150
    for seed in range(seeds):
        found = hb.MonteCarloFisher(problem, seed=seed).dense()
        (drawn,) = [label for label in range(3) if near(found, by_class[label])]
        counts[drawn] += 1
    for count, share in zip(counts, likely, strict=True):
        assert abs(count - seeds * share) <= 4 * (seeds * share * (1 - share)) ** 0.5


@pytest.mark.slow
def test_more_samples_are_a_mean_of_fewer() -> None:
    problem = solved("classification")[0].problem
    ratio = forms(problem).var(0) / forms(problem, samples=16).var(0)
    assert ((ratio > 6) & (ratio < 40)).all()


@pytest.mark.parametrize("name", ["gpt2", "regression"])
def test_neither_passes_nor_loaders_change_a_draw_and_seeds_do(name: str) -> None:
    case, *_ = solved(name)
    vectors = directions(case.problem)
    whole = hb.MonteCarloFisher(case.problem, samples=3) @ vectors
    limit = case.problem.plan.peak
    least = hb.Problem(case.model, case.batches, case.loss, memory_limit=limit // 2)
    assert len(least.plan.passes) > len(case.batches)
    assert near(hb.MonteCarloFisher(least, samples=3) @ vectors, whole)
    assert near(hb.EmpiricalFisher(least) @ vectors, solved(name)[2] @ vectors)
    loader = DataLoader(case.batches, batch_size=None)  # type: ignore[arg-type]
    read = hb.Problem(case.model, loader, case.loss)
    assert near(hb.MonteCarloFisher(read, samples=3) @ vectors, whole)
    assert not near(hb.MonteCarloFisher(read, samples=3, seed=1) @ vectors, whole, 1e-3)


def test_soft_binary_labels_change_no_draw() -> None:
    hard, soft = binary(torch.ones(5, 2)), binary(torch.full((5, 2), 0.3))
    assert near(hb.MonteCarloFisher(hard).dense(), hb.MonteCarloFisher(soft).dense())


def test_ignored_labels_are_not_drawn() -> None:
    model, x = nn.Linear(2, 3).double(), torch.randn(4, 2).double()
    some = hb.Problem(model, [(x, torch.tensor([0, -100, 1, -100]))], "classification")
    moved = x.clone()
    moved[[1, 3]] += 5
    other = hb.Problem(model, [(moved, torch.tensor([0, -100, 1, -100]))], "classification")
    assert near(hb.MonteCarloFisher(some).dense(), hb.MonteCarloFisher(other).dense())


def test_every_class_is_drawn_as_often_as_it_is_likely_in_half_precision() -> None:
    """300 classes of one row, drawn 30,000 times; bfloat16 probabilities do not add up to 1."""
    loss = CrossEntropy(torch.tensor([0]))
    uniform = torch.rand(1, 30_000, dtype=torch.float64)
    logits = torch.zeros(1, 300, dtype=torch.bfloat16)
    drawn = _Classes(loss, uniform)._labels(logits.softmax(-1))[0].bincount(minlength=300)
    assert ((drawn - 100).abs() < 5 * 10).all()


REFUSED: dict[str, tuple[Any, Tensor]] = {
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), torch.tensor([0, 1])),
    "class weights": (nn.CrossEntropyLoss(torch.ones(2)), torch.tensor([0, 1])),
    "soft labels": (nn.CrossEntropyLoss(), torch.full((2, 2), 0.5)),
    "weights of entries": (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), torch.ones(2, 2)),
    "no distribution": (nn.HuberLoss(), torch.ones(2, 2)),
    "log-probabilities": (nn.NLLLoss(), torch.tensor([0, 1])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_without_a_distribution_is_refused(name: str) -> None:
    loss, labels = REFUSED[name]
    problem = hb.Problem(nn.Linear(3, 2), [(torch.randn(2, 3), labels)], loss)
    with pytest.raises(ArgumentError, match="MonteCarloFisher draws labels for cross-entropy"):
        hb.MonteCarloFisher(problem)
    assert torch.isfinite(hb.EmpiricalFisher(problem).dense()).all()


@pytest.mark.parametrize("kind", [hb.EmpiricalFisher, hb.MonteCarloFisher])
def test_a_callable_and_what_is_not_a_problem_are_refused(kind: Any) -> None:
    with pytest.raises(ArgumentError, match="a callable does not tell which outputs belong"):
        kind(CASES["callable"]().problem)
    with pytest.raises(ArgumentError, match=r"expected hessblocks\.Problem"):
        kind(nn.Linear(2, 2))


@pytest.mark.parametrize("samples", [0, -1, 1.5, True])
def test_samples_are_a_whole_number(samples: Any) -> None:
    with pytest.raises(ArgumentError, match="samples: expected a whole number of at least 1"):
        hb.MonteCarloFisher(solved("gpt2")[0].problem, samples=samples)
