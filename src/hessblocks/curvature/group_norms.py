"""Frobenius norms of the diagonal blocks of many groups, from shared graphs and shared probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import Hessian, Problem, check_groups, total_products
from hessblocks.errors import ArgumentError
from hessblocks.linalg import FEWEST_PROBES, Estimate, Probes, norm_from_squares


def group_norms(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    *,
    probes: int = 16,
    seed: int = 0,
    parts: Sequence[Part] = PARTS,
) -> dict[str, dict[Part, Estimate]]:
    """Frobenius norms of H_o, H_f and H for each group's own block.

    The same numbers as `frobenius_norm` of each operator, but the parts share their probes and, where
    the memory allows it, all groups share one graph. A group with no more entries than probes is computed
    exactly, and its estimates say so.

    Args:
        problem: model, batches and loss.
        groups: by name, as `parameter_groups` gives them.
        probes: random vectors a group, at least 4.
        seed: of the probes; groups of equal size draw the same from it.
        parts: which parts.

    Returns:
        Estimates by group name and part.

    Raises:
        ArgumentError: too few probes, no groups, or groups of another model.

    Cost: about one gradient a probe for a group of the first layer, less further up.
    """
    check_groups(problem, groups)
    if probes < FEWEST_PROBES:
        raise ArgumentError(
            f"probes: expected at least {FEWEST_PROBES} for an error bar, got {probes}"
        )
    everything = _names(groups.values())
    found = {}
    for name, group in groups.items():
        vectors = _probe_vectors(problem, group, probes, seed)
        exact = group.size <= probes
        products = total_products(problem, vectors, group, group, parts, later=everything)
        found[name] = {part: _estimate(_squares(p), exact=exact) for part, p in products.items()}
    return found


def _names(groups: Iterable[ParameterGroup]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.parameters))


def _probe_vectors(problem: Problem, group: ParameterGroup, probes: int, seed: int) -> Tensor:
    """Random signs, (K, size); the unit vectors where there are no more of them."""
    operator = Hessian(problem, group)
    if group.size <= probes:
        return torch.eye(group.size, dtype=operator.dtype, device=operator.device)
    return Probes(operator, seed=seed).draw(probes).T


def _squares(products: Tensor) -> Tensor:
    """‖A z‖² of each vector."""
    return products.double().square().sum(dim=1)


def _estimate(squares: Tensor, *, exact: bool) -> Estimate:
    if exact:
        return Estimate(value=float(squares.sum().sqrt()), method="exact")
    return norm_from_squares(squares)
