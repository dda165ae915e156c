"""Samples of Gauss-Newton and Fisher matrices, for the diagonals that linalg makes of them.

Letters: N size of the matrix.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.products import CurvatureOperator, OuterProduct
from hessblocks.curvature.sampled.fisher import EmpiricalFisher, MonteCarloFisher
from hessblocks.curvature.sampled.one_pass import SampledPass, plan_passes, sampled_passes
from hessblocks.errors import ArgumentError
from hessblocks.linalg import factor_samples


@factor_samples.register(OuterProduct)
@factor_samples.register(EmpiricalFisher)
@factor_samples.register(MonteCarloFisher)
def _samples(
    op: CurvatureOperator, count: int, seed: int
) -> Iterator[Iterator[Float[Tensor, " N"]]]:
    """Sample pass by pass; signs are independent, so the passes' matrices add up to the whole."""
    if op.rows != op.columns:
        raise ArgumentError(
            "diagonal: method='sampled' needs a group's own block, got rows "
            f"{op.rows.name!r} and columns {op.columns.name!r}"
        )
    names = op.rows.parameters
    for passed in sampled_passes(op.problem, plan_passes(op.problem, names), names):
        yield _vectors(op, passed, count, seed)


def _vectors(
    op: CurvatureOperator, passed: SampledPass, count: int, seed: int
) -> Iterator[Float[Tensor, " N"]]:
    for number in range(count):
        found = passed.sample(number, seed, keep=number + 1 < count)
        vector = torch.zeros(1, op.shape[0], dtype=op.dtype, device=op.device)
        tensors = {name: None if one is None else one[None] for name, one in found.items()}
        op.rows.collect(tensors, vector)
        yield vector[0]
