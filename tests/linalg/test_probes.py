"""Probe vectors and when to stop drawing them."""

import warnings

import pytest
import torch

from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.hutchinson import frobenius_norm
from hessblocks.linalg.estimators.probes import Probes, Stopping
from hessblocks.linalg.estimators.trace import trace
from tests.linalg.matrices import operator


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_blocks_are_cuts_of_one_stream(distribution: str) -> None:
    op = operator("flat")
    whole = Probes(op, seed=7, distribution=distribution).draw(10)
    source = Probes(op, seed=7, distribution=distribution)
    pieces = torch.cat([source.draw(count) for count in (1, 4, 2, 3)], dim=1)
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_signs_are_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    signs = Probes(operator("flat", dtype), seed=0).draw(200)
    assert signs.dtype == dtype
    assert torch.equal(signs.abs(), torch.ones_like(signs))
    assert torch.equal(signs.double(), Probes(operator("flat"), seed=0).draw(200))
    assert abs(float(signs.double().mean())) < 3 / (60 * 200) ** 0.5


def test_gaussian_probes_have_unit_variance() -> None:
    probes = Probes(operator("flat"), seed=0, distribution="gaussian").draw(200)
    assert abs(float(probes.var()) - 1) < 3 * (2 / (60 * 200)) ** 0.5


def test_a_tolerance_is_met_at_two_looks_in_a_row() -> None:
    """The second look is the first good one; the fourth ends it, for the third was bad."""
    errors = iter([0.5, 0.05, 0.2, 0.05, 0.05, 0.01])
    drawn = []

    def add_block(count: int) -> Estimate:
        drawn.append(count)
        return Estimate(value=1.0, standard_error=next(errors), probes=sum(drawn))

    estimate = Stopping(block=8, tolerance=0.1).run("a test", add_block)
    assert (estimate.probes, estimate.stopped_by) == (40, "tolerance")


def test_the_first_look_counts_and_the_fewest_probes_are_two_blocks() -> None:
    estimate = Estimate(value=1.0, standard_error=0.1)
    stopping = Stopping(block=8, tolerance=0.1, max_probes=16)
    drawn = []
    assert stopping.run("a test", lambda count: drawn.append(count) or estimate).stopped_by == (
        "tolerance"
    )
    assert drawn == [8, 8]


def test_a_met_tolerance_is_reported() -> None:
    estimate = trace(operator("flat"), 16, tolerance=0.02)
    assert estimate.stopped_by == "tolerance"
    assert estimate.relative_error <= 0.02
    assert estimate.probes % 16 == 0


def test_the_limit_is_reported_and_warned_of() -> None:
    with pytest.warns(UserWarning, match="tolerance 0.0001 not met"):
        estimate = frobenius_norm(operator("flat"), 16, tolerance=1e-4, max_probes=64)
    assert (estimate.probes, estimate.stopped_by) == (64, "limit")


def test_a_fixed_count_stops_by_count_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert frobenius_norm(operator("flat")).stopped_by == "count"
