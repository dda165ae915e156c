"""Norms of the groups' own blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature.columns import check_probes, measured_squares
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.pricing import Tell, Work, decide
from hessblocks.curvature.products import Problem, check_groups
from hessblocks.curvature.sampled import gram_matrices
from hessblocks.linalg import Estimate, norms_from_pairs


def group_norms(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    *,
    probes: int = 16,
    seed: int = 0,
    parts: Sequence[Part] = PARTS,
    method: str = "auto",
    budget: float | None = None,
    tell: Tell | None = None,
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
        method: as `curvature_map` takes it; `sampled` is for H_o alone.
        budget: minutes that take the place of `probes`.
        tell: told what it will cost before it starts, such as `print`.

    Returns:
        Estimates by group name and part.

    Raises:
        ArgumentError: too few probes, no groups, groups of another model, or what `curvature_map` refuses.

    Cost: about one gradient a probe for a group of the first layer, less further up; sampled, two thirds of a
        gradient for each of 4 · probes samples, whatever the number of groups.
    """
    check_groups(problem, groups)
    check_probes(probes)
    work = Work(problem=problem, groups=groups, parts=parts, blocks="diagonal")
    cost, sampling = decide(work, probes=probes, method=method, budget=budget, tell=tell)
    if sampling:
        pairs = norms_from_pairs(gram_matrices(problem, groups, sampling, seed=seed).products)
        return {name: {"outer": pairs.norm(at, at)} for at, name in enumerate(groups)}
    found = {}
    for name in groups:
        own = measured_squares(problem, groups, name, [name], parts, cost.count, seed)
        found[name] = {part: own.norm(part, name) for part in parts}
    return found


def norm_rows(
    groups: Mapping[str, ParameterGroup], norms: Mapping[str, Mapping[Part, Estimate]]
) -> list[dict[str, Any]]:
    """Tidy rows of what `group_norms` found.

    Returns:
        For each group and part quantity, layer, group, role, part, value, standard_error and method.
    """
    return [
        {
            "quantity": "frobenius_norm",
            "layer": groups[name].layer,
            "group": name,
            "role": groups[name].role,
            "part": part,
            **norm.to_row(),
        }
        for name, parts in norms.items()
        for part, norm in parts.items()
    ]
