"""Every group of every case: H, H_o and H_f against dense autodiff, and the laws between them."""

import warnings
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.curvature.groups.roles import custom_groups, parameter_groups
from hessblocks.curvature.products.forward import AttentionBackendWarning
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError
from hessblocks.linalg import solve
from tests.breadth import everyday
from tests.curvature.cases import CASES, Case
from tests.curvature.oracle import Dense, dense

OPERATORS = {"full": Hessian, "outer": OuterProduct, "functional": Functional}
TOLERANCE = 1e-10

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@cache
def prepared(name: str) -> tuple[Case, Dense]:
    torch.manual_seed(0)
    case = CASES[name]()
    return case, dense(case)


@cache
def problem_of(name: str) -> Problem:
    """One for all groups, so that what it checks is checked once."""
    return prepared(name)[0].problem


# five seconds for each other preset
cases = pytest.mark.parametrize(
    "name", everyday(CASES, "sas", "gpt2", "classification", "callable")
)


@pytest.mark.parametrize("part", OPERATORS)
@cases
def test_a_groups_block_equals_dense_autodiff(name: str, part: str) -> None:
    case, oracle = prepared(name)
    scale = oracle.full.abs().max()
    for group in parameter_groups(case.model).values():
        block = OPERATORS[part](problem_of(name), group).dense()
        error = (block - oracle.block(part, group, group)).abs().max() / scale
        assert error < TOLERANCE, group.name


@pytest.mark.parametrize("part", OPERATORS)
@pytest.mark.parametrize("name", everyday(["sas-p", "gpt2", "classification"], "classification"))
def test_a_block_between_two_groups_equals_dense_autodiff(name: str, part: str) -> None:
    case, oracle = prepared(name)
    groups = list(parameter_groups(case.model).values())
    for rows, columns in pairwise(groups):
        operator = OPERATORS[part](problem_of(name), rows=rows, columns=columns)
        expected = oracle.block(part, rows, columns)
        assert torch.allclose(operator.dense(), expected, atol=TOLERANCE)
        assert torch.allclose(operator.adjoint().dense(), expected.T, atol=TOLERANCE)


@cases
def test_the_oracle_splits_the_hessian(name: str) -> None:
    _, oracle = prepared(name)
    assert torch.allclose(oracle.full, oracle.outer + oracle.functional, atol=1e-12)
    assert oracle.functional.norm() > 1e-4 * oracle.outer.norm()


@pytest.mark.parametrize("name", everyday(["sas", "gpt2"], "sas"))
def test_the_outer_part_has_no_negative_eigenvalue(name: str) -> None:
    case, _ = prepared(name)
    for group in parameter_groups(case.model).values():
        block = OuterProduct(problem_of(name), group).dense()
        assert torch.allclose(block, block.T, atol=1e-12)
        assert torch.linalg.eigvalsh(block).min() > -1e-12


def test_vectors_and_blocks_of_vectors_agree() -> None:
    case = CASES["sas-p"]()
    group = parameter_groups(case.model)["layers.0.attention.query"]
    operator = Hessian(case.problem, group)
    columns = torch.randn(group.size, 5, dtype=torch.float64)
    together = operator @ columns
    for index in range(5):
        assert torch.allclose(operator @ columns[:, index], together[:, index], atol=1e-13)


def test_a_zero_vector_gives_zero() -> None:
    case = CASES["pre-ln"]()
    group = parameter_groups(case.model)["layers.1.mlp.in"]
    assert not (Hessian(case.problem, group) @ torch.zeros(group.size).double()).any()


class Biased(nn.Module):
    """Attention over some tokens with a bias that is trained, or without one."""

    def __init__(self, tokens: int, *, biased: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.bias = nn.Parameter(torch.zeros(tokens), requires_grad=biased)

    def forward(self, x: Tensor) -> Tensor:
        q = (self.scale * x)[:, None]
        bias = self.bias.expand(x.shape[1], -1) if self.bias.requires_grad else None
        found = nn.functional.scaled_dot_product_attention(q, q, q, bias)
        return found[:, 0, 0]


@pytest.mark.parametrize(("tokens", "biased"), [(511, True), (512, False), (512, True)])
def test_plain_attention_is_reported_where_its_memory_can_be_helped(
    tokens: int, biased: bool
) -> None:
    model = Biased(tokens, biased=biased)
    batch = (torch.randn(1, tokens, 2), torch.zeros(1, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        operator = Hessian(Problem(model, [batch], "regression"))
        _ = operator @ torch.ones(operator.shape[1])
    said = [w for w in caught if w.category is AttentionBackendWarning]
    assert len(said) == (tokens == 512 and biased)
    assert all("take shorter sequences" in str(one.message) for one in said)


def test_short_attention_is_not_reported_and_modes_are_restored() -> None:
    case, _ = prepared("gpt2")
    case.model.train()
    case.model.transformer.h[0].eval()
    group = parameter_groups(case.model)["final.norm"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        operator = Hessian(case.problem, group)
        first = operator.dense()
        assert torch.equal(operator.dense(), first)
    assert not [w for w in caught if w.category is AttentionBackendWarning]
    assert case.model.training
    assert not case.model.transformer.h[0].training
    assert torch.backends.cuda.flash_sdp_enabled()
    assert all(p.grad is None for p in case.model.parameters())
    case.model.eval()


def test_a_group_and_rows_together_are_refused() -> None:
    case, _ = prepared("classification")
    group = parameter_groups(case.model)["first.weight"]
    with pytest.raises(ArgumentError, match="either group, or both rows and columns"):
        Hessian(case.problem, group, rows=group)
    with pytest.raises(ArgumentError, match="either group, or both rows and columns"):
        Hessian(case.problem, rows=group)


def test_only_convex_losses_make_the_outer_part_semidefinite() -> None:
    """The Brier score bends down far from its minimum, which its condition number must not meet
    with a claim."""
    model, classes = nn.Linear(3, 4).double(), torch.randint(4, (30,))
    batch = (torch.randn(30, 3).double(), classes)
    with torch.no_grad():
        model.weight.mul_(4)

    def brier(outputs: Tensor, given: tuple[Tensor, Tensor]) -> Tensor:
        return (outputs.softmax(-1) - nn.functional.one_hot(given[1], 4)).square().sum(-1)

    group = custom_groups(model, {"three": "weight[0:3]"})["three"]
    outer = OuterProduct(Problem(model, [batch], brier), group)
    values = torch.linalg.eigvalsh(outer.dense())
    assert float(values[0]) < -1e-3
    assert outer.symmetric
    assert not outer.positive_semidefinite
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0])
    losses = ("classification", nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=weights))
    for loss in losses:
        assert OuterProduct(Problem(model, [batch], loss)).positive_semidefinite
    weights = torch.tensor([1.0, -1.0, 1.0, 1.0])
    weighted = Problem(model, [batch], nn.CrossEntropyLoss(weight=weights))
    assert not OuterProduct(weighted).positive_semidefinite


ON_A_PROBLEM = {
    "trace": lambda given: hb.trace(given, probes=3000).value,
    "frobenius_norm": lambda given: hb.frobenius_norm(given, probes=3000).value,
    "diagonal": lambda given: hb.diagonal(given, probes=3000).values,
    "extreme_eigenvalues": lambda given: hb.extreme_eigenvalues(given, 2).values,
    "spectral_density": lambda given: hb.spectral_density(given, steps=3, probes=2).density,
    "inverse": lambda given: hb.inverse(given, damping=100.0) @ torch.ones(given_size(),
        dtype=torch.float64),
    "solve": lambda given: solve(given, torch.ones(given_size(), dtype=torch.float64),
        damping=100.0).values,
}  # fmt: skip


def given_size() -> int:
    """Of the whole Hessian of the case."""
    return len(prepared("classification")[1].full)


@pytest.mark.parametrize("name", ON_A_PROBLEM)
def test_an_estimator_of_a_problem_is_that_of_its_whole_hessian(name: str) -> None:
    case, _ = prepared("classification")
    of = ON_A_PROBLEM[name]
    found, expected = of(case.problem), of(Hessian(case.problem))
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected))


def test_the_trace_of_a_problem_is_that_of_dense_autodiff() -> None:
    case, oracle = prepared("classification")
    found = hb.trace(case.problem, probes=len(oracle.full))
    assert found.method == "exact"
    assert found.value == pytest.approx(float(oracle.full.trace()))


@pytest.mark.parametrize("given", [torch.eye(3), nn.Linear(2, 2), None], ids=type)
@pytest.mark.parametrize("name", ON_A_PROBLEM)
def test_what_is_not_an_operator_is_refused_in_a_sentence(name: str, given: object) -> None:
    with pytest.raises(
        ArgumentError, match=r"expected an operator, such as hb\.Hessian\(problem\)"
    ):
        ON_A_PROBLEM[name](given)


def test_groups_are_those_of_the_model_where_none_are_given() -> None:
    case, _ = prepared("classification")
    groups = parameter_groups(case.model)
    norms = hb.group_norms(case.problem, probes=4)
    assert norms == hb.group_norms(case.problem, groups, probes=4)
    curvature = hb.curvature_map(case.problem, probes=4)
    assert curvature.names == tuple(groups)


def test_a_name_of_other_entries_at_another_level_is_refused() -> None:
    """At level `head`, a projection's own name is that of its bias alone."""
    problem, name = problem_of("gpt2"), "layers.0.attention.projection"
    by_level = {level: parameter_groups(problem.model, level) for level in ("role", "head")}
    assert by_level["role"][name].size > by_level["head"][name].size
    for given in (name, name.replace("0", "0-1")):
        with pytest.raises(ArgumentError, match="at level 'head' than at 'role'; give parameter_g"):
            Hessian(problem, given)
    sizes = {name: group.size for name, group in by_level["role"].items()}
    split = {n: group.size for n, group in by_level["head"].items()}
    alike = {n: size for n, size in sizes.items() if split.get(n, size) == size}
    assert len(alike) > 5
    for other, size in alike.items():
        assert Hessian(problem, other).shape == (size, size)
    both = sum(size for other, size in sizes.items() if other.endswith("projection"))
    for chosen in ("projection", "*.projection"):  # a role or pattern is not printed
        assert Hessian(problem, chosen).shape == (both, both)
