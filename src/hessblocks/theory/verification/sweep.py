"""Sweep of closed form against dense autodiff: every case, block and part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.linalg import slices
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.verification.cases import CASES, Case, arguments
from hessblocks.theory.verification.reference import reference_hessian

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest accepted relative error in each dtype; autodiff always runs in float64."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of one block of one case, by both ways."""

    case: str
    """Name of the case."""
    block: str
    """`row, column`."""
    part: Part
    """outer, functional or full."""
    error: float
    """Frobenius norm of the difference over that of autodiff's block. Where the block is below
    rounding of the whole matrix (it is exactly zero), over the norm of that matrix."""
    bound: float
    """Largest accepted error."""

    @property
    def passed(self) -> bool:
        """True where the error keeps the bound; an error that is not a number does not."""
        return self.error <= self.bound


def verify_closed_forms(
    *,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    cases: Sequence[Case] = CASES,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """Compare closed form and autodiff on this machine.

    Args:
        dtype: of the closed form, float64 or float32.
        device: where the closed form runs; autodiff runs there too.
        cases: which layers.
        seed: of the random inputs.
        progress: called with the name of each case before it runs.

    Returns:
        One row for each case, block on or above the diagonal, and part.
    """
    rows: list[Check] = []
    for case in cases:
        if progress is not None:
            progress(case.name)
        made = arguments(case, dtype=dtype, device=device, seed=seed)
        rows += compare(
            case.name, attention_hessian(**made), reference_hessian(made), BOUNDS[dtype]
        )
    return rows


def compare(
    name: str,
    hessian: AttentionHessian,
    reference: dict[str, Float[Tensor, "size size"]],
    bound: float,
) -> list[Check]:
    """Compare every block of one layer.

    Args:
        name: of the case.
        hessian: the closed form.
        reference: {part: dense matrix} with the groups in the same order.
        bound: largest accepted error.

    Returns:
        One row for each block on or above the diagonal, and part.
    """
    lengths = [sum(p.length for p in hessian.layer.pieces(group)) for group in hessian.groups]
    places = dict(zip(hessian.groups, slices(lengths), strict=True))
    rows = []
    for row, column in combinations_with_replacement(hessian.groups, 2):
        for part in PARTS:
            expected = reference[part][places[row], places[column]]
            found = hessian.block(row, column, part).dense().to(expected.dtype)
            error = _error(found, expected, float(reference["full"].norm()))
            rows.append(
                Check(case=name, block=f"{row}, {column}", part=part, error=error, bound=bound)
            )
    return rows


def _error(found: Tensor, expected: Tensor, whole: float) -> float:
    size = float(expected.norm())
    scale = size if size > 1e-13 * whole else whole
    difference = float((found - expected).norm())
    return difference / scale if scale > 0 else difference
