"""Operators, estimators, curvature and closed forms on the device; `test_accelerator.py` starts
this."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.conventions import PARTS
from hessblocks.curvature.groups import merge
from hessblocks.linalg import DenseOperator, Probes, diagonal
from hessblocks.linalg.estimators import assemble
from tests.accelerator.alike import NAME, assert_alike, case_on
from tests.curvature.cases import CASES
from tests.curvature.test_last_block import CASES as EXACT
from tests.linalg.matrices import MATRICES
from tests.theory.cases import CASES as CLOSED_FORMS
from tests.theory.cases import arguments

pytestmark = [
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # autograd's threads, harmless
]
OPERATORS = (hb.Hessian, hb.OuterProduct, hb.Functional)
ESTIMATORS: dict[str, Callable[[hb.LinearOperator], Any]] = {
    "norm": lambda op: hb.frobenius_norm(op, probes=16).value,
    "hutchinson": lambda op: hb.trace(op, 16).value,
    "xtrace": lambda op: hb.trace(op, 24, method="xtrace").value,
    "diagonal": lambda op: diagonal(op, 16).values,
    "eigenvalues": lambda op: hb.extreme_eigenvalues(op, 2).values,
    "density": lambda op: hb.spectral_density(op, steps=12, probes=4).density,
    "assembled": assemble,
}

BLOCKS_ALIKE = set(hb.PRESETS) - {"pre-ln", "sas-p"}
"""Presets whose H alone is multiplied."""
DAILY = {"sas-p", "modern", "classification"}
"""Models whose products are compared every day: each other takes a second more."""
SHORT = (
    "simplified block",
    "rotary, linear scores",
    "normed queries",
    "one matrix",
    "mask by sequence",
)
"""Closed forms that take little and differ much."""


def test_what_lies_on_the_cpu_is_refused() -> None:
    here, there = torch.ones(2), torch.ones(2, device=NAME)
    assert there.device.type == NAME
    assert (there * torch.tensor(2.0)).tolist() == [2.0, 2.0]  # a single number may lie anywhere
    with pytest.raises(RuntimeError, match=r"(?i)expected all tensors"):
        there + here


def test_memory_is_shared_as_elsewhere() -> None:
    whole = torch.zeros(2, 3, device=NAME)
    whole[1].add_(1)
    copied = copy.deepcopy(whole)
    copied.zero_()
    assert whole.tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_probes_of_one_seed_are_equal(distribution: Any, dtype: torch.dtype) -> None:
    def drawn(device: str) -> Tensor:
        operator = DenseOperator(torch.zeros(5, 5, dtype=dtype, device=device))
        probes = Probes(operator, seed=3, distribution=distribution).draw(4)
        assert probes.device == operator.device
        return probes

    assert_alike(drawn, 0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name: str) -> None:
    matrix = next(iter(MATRICES.values()))

    def measured(device: str) -> Any:
        return ESTIMATORS[name](DenseOperator(matrix.to(device), symmetric=True))

    assert_alike(measured, 1e-9)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in CASES],
)
def test_products(name: str) -> None:
    def measured(device: str) -> Any:
        case = case_on(name, device)
        problem = case.problem
        everything = merge("all", list(hb.parameter_groups(case.model, "tensor").values()))
        columns = torch.randn(everything.size, 2, dtype=torch.float64).to(device)
        kinds = (hb.Hessian,) if name in BLOCKS_ALIKE else OPERATORS
        products = [kind(problem, everything) @ columns for kind in kinds]
        assert all(product.device == problem.device for product in products)
        return problem.value(), products

    assert_alike(measured)


@pytest.mark.parametrize("name", ["sas-p", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_norms_and_maps(name: str) -> None:
    def measured(device: str) -> Any:
        case = case_on(name, device)
        known = hb.parameter_groups(case.model)
        groups = {n: group for n, group in known.items() if "attention.q" in n or "norm" in n}
        norms = hb.group_norms(case.problem, groups, probes=4)
        found = hb.curvature_map(case.problem, groups, probes=4)
        return [
            [estimate.value for parts in norms.values() for estimate in parts.values()],
            [row["value"] for row in found.to_rows()],
        ]

    assert_alike(measured, 1e-10)


@pytest.mark.parametrize("preset", [pytest.param("pre-ln", marks=pytest.mark.slow), "sas-p"])
def test_exact_curvature(preset: str) -> None:
    def measured(device: str) -> Any:
        case = case_on(preset, device)
        found = hb.exact_last_block(case.model, {"input_ids": torch.tensor([[1, 4, 2]])})
        whole = found.whole("full")
        vector = torch.ones(whole.shape[1], dtype=whole.dtype, device=device)
        return whole.dense(), whole.diagonal(), whole.adjoint() @ vector

    assert_alike(measured, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_exact_attention(name: str) -> None:
    def measured(device: str) -> Any:
        torch.manual_seed(0)
        case = EXACT[name]()
        found = hb.exact_attention_curvature(case.model.to(device), case.batches[0], case.loss)
        return [found.dense(part) for part in PARTS]

    assert_alike(measured, 1e-9)


def test_scipy_gets_products_of_the_device() -> None:
    matrix = torch.randn(5, 5, dtype=torch.float64)

    def measured(device: str) -> Any:
        operator = DenseOperator(matrix.to(device))
        product = operator.to_scipy() @ matrix[0].numpy()
        return torch.from_numpy(product), operator.dense(), hb.trace(operator).value

    assert_alike(measured)


@pytest.mark.parametrize("name", SHORT)
def test_closed_forms(name: str) -> None:
    (case,) = (case for case in CLOSED_FORMS if case.name == name)

    def measured(device: str) -> Any:
        found = hb.attention_hessian(**arguments(case, device=device))
        return [found.dense(part) for part in PARTS]

    assert_alike(measured, 1e-11)
