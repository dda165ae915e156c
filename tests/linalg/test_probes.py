"""Probe vectors: one stream, whatever the blocks and the dtype."""

import pytest
import torch

from hessblocks.linalg.estimators.probes import Probes
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
