"""Frobenius norms of the diagonal blocks of many groups, from shared graphs and shared probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.columns import norm_of, probe_squares
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import Problem
from hessblocks.linalg import Estimate


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
        ArgumentError: too few probes.

    Cost: about one gradient a probe for a group of the first layer, less further up.
    """
    found = {}
    for name, group in groups.items():
        squares = probe_squares(
            problem, group, [group], parts, probes=probes, seed=seed, later=groups.values()
        )
        exact = group.size <= probes
        found[name] = {part: norm_of(own[:, 0], exact=exact) for part, own in squares.items()}
    return found
