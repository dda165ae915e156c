"""Our operators in other libraries' routines, and other libraries' operators against ours."""

from __future__ import annotations

from statistics import fmean

import curvlinops
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature.groups.roles import merge, parameter_groups
from hessblocks.curvature.groups.views import ParameterGroup
from hessblocks.curvature.products.operators import Hessian, OuterProduct
from hessblocks.linalg import identity_like
from tests.breadth import everyday
from tests.curvature.cases import CASES, VOCABULARY, Case, tokens

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


def everything(model: nn.Module) -> ParameterGroup:
    return merge("all", list(parameter_groups(model, "tensor").values()))


def middle() -> Hessian:
    case = CASES["pre-ln"]()
    return Hessian(case.problem, parameter_groups(case.model)["layers.1.mlp.in"])


def test_scipy_finds_the_extreme_eigenvalues() -> None:
    operator = middle()
    truth = torch.linalg.eigvalsh(operator.dense())
    found = eigsh(operator.to_scipy(), k=1, which="LA", return_eigenvectors=False)
    assert found[0] == pytest.approx(float(truth[-1]), rel=1e-9)


def test_curvlinops_estimates_the_trace() -> None:
    operator = middle()
    rank = int(torch.linalg.matrix_rank(operator.dense()))
    assert rank < operator.shape[0]
    products = 2 * (operator.shape[0] // 2) - 2
    estimates = [float(curvlinops.xtrace(operator.to_curvlinops(), products)) for _ in range(8)]
    assert fmean(estimates) == pytest.approx(float(operator.dense().trace()), rel=1e-2)


def test_curvlinops_finds_the_spectrum() -> None:
    operator = middle()
    truth = torch.linalg.eigvalsh(operator.dense())
    ends = (float(truth[0]), float(truth[-1]))
    grid, density = curvlinops.lanczos_approximate_spectrum(
        operator.to_curvlinops(), ncv=12, num_points=200, num_repeats=4, boundaries=ends
    )
    step = float(grid[1] - grid[0])
    assert float(density.sum()) * step == pytest.approx(1.0, rel=0.05)
    mean = float((grid * density).sum() / density.sum())
    assert mean == pytest.approx(float(truth.mean()), abs=0.1 * (ends[1] - ends[0]))


def test_the_adjoint_of_a_rectangular_block_goes_along() -> None:
    case = CASES["classification"]()
    groups = parameter_groups(case.model)
    block = Hessian(case.problem, rows=groups["first.bias"], columns=groups["second.weight"])
    other = block.to_curvlinops()
    vector = torch.randn(block.shape[0], dtype=torch.float64)
    assert torch.allclose(other.adjoint() @ vector, block.dense().T @ vector, atol=1e-12)


def test_tensors_of_parameters_go_in_and_come_out() -> None:
    """Of all parameters, a number and an unused one among them; of a group that cuts a matrix; of a
    block and its adjoint."""
    case = CASES["classification"]()
    case.model.gain = nn.Parameter(torch.tensor(1.0).double())
    operator = Hessian(case.problem)
    vector = torch.randn(operator.shape[0], dtype=torch.float64)
    expected, theirs = operator @ vector, operator.to_curvlinops()
    named = operator.named_tensors(vector)
    assert () in [t.shape for t in named.values()]
    found = theirs @ list(named.values())
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    assert [t.shape for t in found] == [p.shape for p in parameters]
    assert torch.allclose(torch.cat([t.flatten() for t in found]), expected, atol=1e-12)
    assert torch.allclose(theirs @ vector, expected, atol=1e-12)
    columns = torch.randn(operator.shape[0], 3, dtype=torch.float64)
    assert torch.allclose(theirs @ columns, operator @ columns, atol=1e-12)
    groups = parameter_groups(case.model)
    block = Hessian(case.problem, rows=groups["first.bias"], columns=groups["second.weight"])
    (found,) = block.to_curvlinops().adjoint() @ [torch.ones(4, dtype=torch.float64)]
    assert torch.allclose(found.flatten(), block.dense().sum(0), atol=1e-12)
    case = CASES["gpt2"]()
    query = parameter_groups(case.model)["layers.0.attention.query"]
    cut = Hessian(case.problem, query).to_curvlinops()
    ones = [torch.ones(view.shape, dtype=torch.float64) for view in query.views]
    assert [tuple(t.shape) for t in cut @ ones] == [view.shape for view in query.views]


@pytest.mark.filterwarnings("ignore:CG terminated")
def test_curvlinops_solves_with_tensors_of_parameters() -> None:
    case = CASES["regression"]()
    outer = OuterProduct(case.problem)
    damped = outer + 0.1 * identity_like(outer)
    right = outer.named_tensors(torch.randn(outer.shape[0], dtype=torch.float64))
    solver = curvlinops.CGInverseLinearOperator(
        damped.to_curvlinops(), max_iter=200, tolerance=1e-10, max_tridiag_iter=0, eps=1e-30
    )
    found = solver @ list(right.values())
    assert [t.shape for t in found] == [t.shape for t in right.values()]
    flat = torch.cat([t.flatten() for t in right.values()])
    exact = torch.linalg.solve(damped.dense(), flat)
    assert torch.allclose(torch.cat([t.flatten() for t in found]), exact, rtol=1e-6, atol=1e-8)


class Logits(nn.Module):
    """curvlinops wants a module that maps one tensor to (rows, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, use_cache=False).logits[:, :-1].flatten(0, 1)


def _of_layer_norms(model: nn.Module) -> Tensor:
    """True at the entries of layer norms' weights, in the order of the parameters."""
    norms = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.LayerNorm)}
    return torch.cat([torch.full((p.numel(),), n in norms) for n, p in model.named_parameters()])


@pytest.mark.parametrize("name", everyday(["parallel", "sas-p", "gpt2"], "sas-p", "gpt2"))
def test_curvlinops_agrees_on_the_whole_hessian_and_gauss_newton(name: str) -> None:
    """Without padding and with batches of equal size, which is what it can weight.

    Not compared: the rows of layer norms' weights, where curvlinops 3.0.1 is wrong (see
    `test_operators.py` for ours against dense autodiff).
    """
    model = CASES[name]().model
    case = Case(model=model, batches=[{"input_ids": tokens(2, 4)} for _ in range(2)])
    data = [(b["input_ids"], b["input_ids"][:, 1:].flatten()) for b in case.batches]
    group, kept = everything(model), ~_of_layer_norms(model)
    vectors = torch.randn(group.size, 3, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        for kind, ours in (
            (curvlinops.HessianLinearOperator, Hessian),
            (curvlinops.GGNLinearOperator, OuterProduct),
        ):
            theirs = kind(
                Logits(model),
                nn.CrossEntropyLoss(),
                list(model.parameters()),
                data,
                check_deterministic=False,
            )
            difference = ours(case.problem, group) @ vectors - theirs @ vectors
            assert difference[kept].abs().max() < 1e-10


def test_curvlinops_hessian_is_asymmetric_where_torch_func_meets_layer_norm() -> None:
    """Why layer norms are left out above; should this fail, the fault is mended: compare them
    too."""
    model = CASES["gpt2"]().model
    data = [(tokens(2, 4), torch.randint(0, VOCABULARY, (6,)))]
    with sdpa_kernel(SDPBackend.MATH):
        theirs = curvlinops.HessianLinearOperator(
            Logits(model),
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            data,
            check_deterministic=False,
        )
        dense = theirs @ torch.eye(theirs.shape[1], dtype=torch.float64)
    assert (dense - dense.T).abs().max() > 1e-3
