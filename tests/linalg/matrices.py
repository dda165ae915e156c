"""Test matrices by the shape of their spectrum, float64, with exact answers by dense algebra."""

import torch
from torch import Tensor

from hessblocks.linalg.operators.operator import DenseOperator

SIZE = 60


def with_eigenvalues(eigenvalues: Tensor) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    generator = torch.Generator().manual_seed(1)
    square = torch.randn(2 * (len(eigenvalues),), dtype=torch.float64, generator=generator)
    basis = torch.linalg.qr(square)[0]
    return (basis * eigenvalues.double()) @ basis.T


def block_hollow() -> Tensor:
    """Zero diagonal blocks, as the functional Hessian between query and key has them."""
    corner = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    zero = torch.zeros_like(corner)
    return torch.cat([torch.cat([zero, corner], 1), torch.cat([corner.T, zero], 1)])


FALLING = torch.logspace(0, -6, SIZE, dtype=torch.float64)
MATRICES = {
    "flat": with_eigenvalues(torch.linspace(0.5, 1.5, SIZE)),
    "decaying": with_eigenvalues(FALLING),
    "dominant": with_eigenvalues(torch.cat([torch.ones(1), torch.full((SIZE - 1,), 0.01)])),
    "pairs": with_eigenvalues(torch.cat([FALLING[::2], -FALLING[::2]])),
    "rank_one": with_eigenvalues(torch.eye(SIZE)[0]),
    "diagonal": torch.diag(FALLING),
    "zero": torch.zeros(SIZE, SIZE, dtype=torch.float64),
    "one_by_one": torch.full((1, 1), -3.0, dtype=torch.float64),
    "block_hollow": block_hollow(),
}


def operator(name: str, dtype: torch.dtype = torch.float64) -> DenseOperator:
    """A matrix of the registry as a symmetric operator."""
    return DenseOperator(MATRICES[name].to(dtype), symmetric=True)


def small_and_special() -> dict[str, Tensor]:
    """Further shapes on which algorithms, rather than error bars, can break."""
    return {
        "two_by_two": torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64),
        "identity": torch.eye(SIZE, dtype=torch.float64),
        "plus_minus": with_eigenvalues(torch.tensor([1.0, -1.0]).repeat(SIZE // 2)),
        "double": with_eigenvalues(
            torch.cat([torch.tensor([2.0, 2.0, -2.0, -2.0]), torch.linspace(-1, 1, SIZE - 4)])
        ),
    }
