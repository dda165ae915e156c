"""Check that a group belongs to the problem's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hessblocks.curvature.groups import ParameterGroup, misfit, overlap, parameter_groups
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError

_ONE_OF_SEVERAL = (
    'hessblocks.custom_groups(model, {"name": [patterns]})["name"] makes one group of several'
)


def check_problem(problem: Any) -> None:
    """Require a `Problem`.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"problem: expected hessblocks.Problem(model, batches), got {type(problem).__name__}"
        )


def check_group(problem: Any, group: Any, name: str = "group") -> None:
    """Require one group, of this problem's model.

    Args:
        problem: model, batches and loss.
        group: what was given.
        name: of the argument.

    Raises:
        ArgumentError: no problem, no group, a group of another model, or one that names an entry
            twice.
    """
    check_problem(problem)
    if isinstance(group, Mapping):
        some = f" such as groups[{next(iter(group))!r}]" if group else ""
        raise ArgumentError(
            f"{name}: expected one group{some}, got all {len(group)} of them; {_ONE_OF_SEVERAL}"
        )
    if not isinstance(group, ParameterGroup):
        several = f"; {_ONE_OF_SEVERAL}" if isinstance(group, list | tuple) else ""
        raise ArgumentError(
            f"{name}: expected a group of parameter_groups(model), got "
            f"{type(group).__name__}{several}"
        )
    if overlap([group]):
        raise ArgumentError(f"{name}: {group.name!r} names an entry twice; name each once")
    if (wrong := misfit(group, problem.entries)) is not None:
        raise ArgumentError(
            f"{name}: {group.name!r} does not fit the problem's model, in {wrong!r} (absent, "
            "frozen or smaller there); take the group from parameter_groups of the same model"
        )


def groups_of(problem: Any, groups: Any) -> Mapping[str, ParameterGroup]:
    """Return the groups that are asked for, by name, at least one, of this problem's model.

    Args:
        problem: model, batches and loss.
        groups: what was given; None for all trainable parameters, layer by layer and role by role.

    Returns:
        The groups.

    Raises:
        ArgumentError: they are of another kind or model, or none.
    """
    check_problem(problem)
    if groups is None:
        return parameter_groups(problem.model)
    if not isinstance(groups, Mapping):
        raise ArgumentError(
            "groups: expected groups by name, as parameter_groups(model) gives them, "
            f"got {type(groups).__name__}"
        )
    if not groups:
        raise ArgumentError("groups: expected at least one group, got none")
    for name, group in groups.items():
        check_group(problem, group, f"groups[{name!r}]")
    return groups
