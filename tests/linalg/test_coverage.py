"""Over 200 seeds the truth lies within ±1, ±2, ±3 standard errors in 60, 90 and 98 % of runs."""

import functools
from collections.abc import Callable

import pytest
import torch

from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.hutchinson import diagonal, frobenius_norm
from hessblocks.linalg.estimators.trace import trace
from hessblocks.linalg.operators.operator import DenseOperator, LinearOperator
from hessblocks.linalg.spectra.spectrum import Spectrum, spectral_density
from tests.linalg.coverage import LEVELS, ROUNDING, assert_covers
from tests.linalg.matrices import MATRICES, operator

SEEDS = 200
SPECTRUM_PROBES = 10

ESTIMATORS: dict[str, Callable[[LinearOperator, int], Estimate]] = {
    "norm": lambda op, seed: frobenius_norm(op, probes=16, seed=seed),
    "hutchinson": lambda op, seed: trace(op, 16, seed),
    "xtrace": lambda op, seed: trace(op, 32, seed, method="xtrace"),
}


DAILY = ("decaying", "one_by_one", "block_hollow")
"""Falling, tiny and indefinite: 200 seeds of the others take as long, by the same estimators."""
NUMBERS = [
    pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in MATRICES
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_error_bar_of_a_number_holds(estimator: str, name: str) -> None:
    truth = float(
        torch.linalg.matrix_norm(MATRICES[name])
        if estimator.startswith("norm")
        else MATRICES[name].trace()
    )
    runs = [ESTIMATORS[estimator](operator(name), seed) for seed in range(SEEDS)]
    assert_covers(
        torch.tensor([run.value for run in runs], dtype=torch.float64),
        torch.tensor([run.standard_error for run in runs], dtype=torch.float64),
        truth,
    )


@pytest.mark.parametrize("method", ["hutchinson", pytest.param("xtrace", marks=pytest.mark.slow)])
def test_the_error_bar_of_a_trace_holds_without_symmetry(method: str) -> None:
    matrix = torch.randn(60, 60, dtype=torch.float64)
    runs = [trace(DenseOperator(matrix), 48, seed, method=method) for seed in range(SEEDS)]
    assert_covers(
        torch.tensor([run.value for run in runs]),
        torch.tensor([run.standard_error for run in runs]),
        float(matrix.trace()),
    )


@pytest.mark.parametrize("name", NUMBERS)
def test_the_error_bars_of_the_diagonal_hold_over_its_entries(name: str) -> None:
    """The shares are over seeds and entries together: 60 entries cannot each be lucky."""
    runs = [diagonal(operator(name), 16, seed) for seed in range(SEEDS)]
    assert_covers(
        torch.stack([run.values for run in runs]).flatten(),
        torch.stack([run.standard_errors for run in runs]).flatten(),
        MATRICES[name].diagonal().repeat(SEEDS),
    )


@functools.cache
def spectra(name: str) -> list[Spectrum]:
    """200 spectra of ten probes each, cut from one run of 2000."""
    whole = spectral_density(operator(name), steps=30, probes=SEEDS * SPECTRUM_PROBES, points=2)
    if whole.method == "exact":
        return [whole]
    return [
        Spectrum.from_nodes(nodes, weights, size=whole.size, points=2)
        for nodes, weights in zip(
            whole.nodes.split(SPECTRUM_PROBES), whole.weights.split(SPECTRUM_PROBES), strict=True
        )
    ]


@pytest.mark.parametrize("name", MATRICES)
def test_the_error_bars_of_a_spectrum_hold(name: str) -> None:
    eigenvalues = torch.linalg.eigvalsh(MATRICES[name])
    runs = spectra(name)
    for power in (1, 2, 3, 4):
        moments = [run.average(lambda values, power=power: values**power) for run in runs]
        assert_covers(
            torch.tensor([moment.value for moment in moments], dtype=torch.float64),
            torch.tensor([moment.standard_error for moment in moments], dtype=torch.float64),
            float((eigenvalues**power).mean()),
        )


@pytest.mark.parametrize("name", MATRICES)
def test_the_error_band_of_a_density_holds_over_its_points(name: str) -> None:
    eigenvalues = torch.linalg.eigvalsh(MATRICES[name])
    reach = float(eigenvalues[-1] - eigenvalues[0]) or 1.0
    width = 0.05 * reach
    grid = torch.linspace(
        float(eigenvalues[0]) - width, float(eigenvalues[-1]) + width, 30, dtype=torch.float64
    )
    truth = Spectrum.from_nodes(
        eigenvalues[None],
        torch.full_like(eigenvalues, 1 / len(eigenvalues))[None],
        size=len(eigenvalues),
        method="exact",
    ).density_on(grid, width)[0]
    bands = [run.density_on(grid, width) for run in spectra(name)]
    values = torch.stack([density for density, _ in bands])
    errors = torch.stack([error for _, error in bands])
    assert_covers(values.flatten(), errors.flatten(), truth.repeat(len(bands)))


def test_the_levels_can_fail() -> None:
    """The plain standard error of 16 squares under-covers on a matrix of rank one."""
    matrix = MATRICES["rank_one"]
    generator = torch.Generator().manual_seed(0)
    probes = torch.randint(0, 2, (SEEDS, 60, 16), generator=generator).double() * 2 - 1
    quadratic = (probes * (matrix @ probes)).sum(1)
    errors = (quadratic.var(1) / 16).sqrt()
    inside = (quadratic.mean(1) - 1).abs() <= 3 * errors + ROUNDING
    assert float(inside.double().mean()) < LEVELS[3]
