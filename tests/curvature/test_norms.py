"""Norms of many groups at once: the same as one operator at a time, and near the truth."""

import pytest
import torch

from hessblocks.conventions import PARTS
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products.operators import Functional, Hessian, OuterProduct
from hessblocks.errors import ArgumentError
from hessblocks.linalg.estimators.hutchinson import frobenius_norm
from tests.breadth import everyday
from tests.curvature.cases import CASES, Case
from tests.curvature.oracle import dense

OPERATORS = {"full": Hessian, "outer": OuterProduct, "functional": Functional}

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@pytest.mark.parametrize("batches", everyday([1, 2], 2))
def test_the_norms_are_those_of_the_operators(batches: int) -> None:
    case = CASES["sas-p"]()
    problem = Case(model=case.model, batches=case.batches[:batches]).problem
    groups = dict(list(parameter_groups(case.model).items())[::3])
    norms = group_norms(problem, groups, probes=6, seed=3)
    for name, group in groups.items():
        for part in PARTS:
            alone = frobenius_norm(OPERATORS[part](problem, group), probes=6, seed=3)
            assert norms[name][part].value == pytest.approx(alone.value, rel=1e-10, abs=1e-14)
            assert norms[name][part].method == alone.method


@pytest.mark.parametrize("name", everyday(["parallel", "gpt2", "regression"], "gpt2", "regression"))
def test_the_truth_lies_within_three_standard_errors(name: str) -> None:
    case = CASES[name]()
    oracle = dense(case)
    groups = parameter_groups(case.model)
    for key, estimates in group_norms(case.problem, groups, probes=24, seed=1).items():
        for part, estimate in estimates.items():
            truth = float(oracle.block(part, groups[key], groups[key]).norm())
            off = abs(estimate.value - truth)
            assert off <= 3 * estimate.standard_error + 1e-10, (key, part)


def test_a_small_group_is_exact() -> None:
    case = CASES["sas"]()
    groups = parameter_groups(case.model)
    found = group_norms(case.problem, {"gains": groups["layers.0.gains"]}, probes=16)
    truth = dense(case).block("full", groups["layers.0.gains"], groups["layers.0.gains"]).norm()
    assert found["gains"]["full"].method == "exact"
    assert found["gains"]["full"].value == pytest.approx(float(truth), rel=1e-10)


def test_a_parameter_without_influence_has_norm_zero() -> None:
    case = CASES["classification"]()
    groups = parameter_groups(case.model)
    found = group_norms(case.problem, {"unused": groups["unused"]}, probes=4)
    assert all(estimate.value == 0 for estimate in found["unused"].values())


def test_too_few_probes_are_refused() -> None:
    case = CASES["classification"]()
    with pytest.raises(ArgumentError, match="at least 4"):
        group_norms(case.problem, parameter_groups(case.model), probes=3)


def test_the_seed_decides() -> None:
    case = CASES["classification"]()
    groups = parameter_groups(case.model)
    torch.manual_seed(5)
    first = group_norms(case.problem, groups, probes=4, seed=1)
    assert first == group_norms(case.problem, groups, probes=4, seed=1)
    assert first != group_norms(case.problem, groups, probes=4, seed=2)
