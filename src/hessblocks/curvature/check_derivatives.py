"""Check first and second derivatives against central differences, group by group."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature import products, witness
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.errors import ArgumentError
from hessblocks.linalg import keeping
from hessblocks.storage import Tabular


@dataclass(frozen=True, kw_only=True)
class GroupDerivatives:
    """First and second derivatives by one group, with central differences."""

    group: str
    """Name of the group."""
    first: witness.Agreement
    """⟨g, z⟩ against differences of the loss, where z is zero outside of this group."""
    second: witness.Agreement
    """This group's rows of H z against differences of the gradient, where z covers all groups."""

    @property
    def verdict(self) -> witness.Verdict:
        """Verdict: `wrong` if either is, `right` if both are, else `unclear`."""
        verdicts = self.first.verdict, self.second.verdict
        return next((verdict for verdict in ("wrong", "unclear") if verdict in verdicts), "right")


@dataclass(frozen=True, kw_only=True, repr=False)
class DerivativeCheck(Tabular):
    """First and second derivatives of a loss against central differences."""

    groups: tuple[GroupDerivatives, ...]
    """Comparisons per group, in the order of `groups`."""
    dtype: torch.dtype
    """Dtype of the comparison: the model's, or float64 if that was not accurate enough."""

    @property
    def verdict(self) -> witness.Verdict:
        """`wrong` if any group is wrong; else `right` if any group is right; else `unclear`."""
        verdicts = [group.verdict for group in self.groups]
        return next((verdict for verdict in ("wrong", "right") if verdict in verdicts), "unclear")

    def to_rows(self) -> list[dict[str, Any]]:
        """Return tidy rows: group, derivative, found, difference, gap, error and verdict."""
        return [
            {
                "group": group.group,
                "derivative": name,
                "found": comparison.found,
                "difference": comparison.expected,
                "gap": comparison.gap,
                "error": comparison.error,
                "verdict": comparison.verdict,
            }
            for group in self.groups
            for name, comparison in (("<g, z>", group.first), ("H z", group.second))
        ]

    def __str__(self) -> str:
        """Show the verdict, and a table with derivatives, differences and verdict per group."""
        width = max(len(group.group) for group in self.groups)
        lines = [
            f"{group.group:{width}}  "
            f"<g, z> {group.first.found:10.4g} ({group.first.expected:10.4g})  "
            f"|H z| {group.second.found:10.4g} ({group.second.expected:10.4g})  {group.verdict}"
            for group in self.groups
        ]
        count = f"{len(self.groups)} groups (by differences, {self.dtype})"
        return "\n".join([f"derivatives of {count}: {self.verdict}", *lines])


@keeping
def check_derivatives(
    problem: products.Problem, groups: Mapping[str, ParameterGroup] | None = None, *, seed: int = 0
) -> DerivativeCheck:
    """Compare gradient and Hessian-vector product with central differences, for each group.

    ⟨g, z⟩ is compared with (L(θ + h z) − L(θ − h z)) / 2h, with z in one group at a time. H z is
    compared with (g(θ + h z) − g(θ − h z)) / 2h, with z in all groups. z is normal, times the root
    mean square of each tensor. The step h is ε^⅓ with ε the machine epsilon, then 8 and 64 times
    shorter and longer until all agree. The error of a difference is |D(h) − D(2h)| plus rounding,
    8 ε. A derivative is `wrong` if the gap exceeds two errors plus the tolerance (relative
    1e-6 in float64, 1e-2 in float32, 1/3 in half precision). It is `unclear` if the error exceeds a
    tenth of its size. Below float64, a comparison that is not `right` is repeated with a float64
    copy of model and batches, since long steps cross kinks (ReLU), which do not contribute to H.

    Args:
        problem: model, batches and any loss; neither model nor rows are divided among processes.
        groups: groups by name; None: all trainable parameters, by layer and role.
        seed: seed of z.

    Returns:
        The comparisons and their verdict; `.to_rows()`; printed as a table.

    Raises:
        ArgumentError: groups of another model, or several processes.
        RunError: a loss or product is not finite, or a part cannot be differentiated at all.

    Cost: about seven gradients and one product, and four forward passes per group, over all
        batches; a few times as much if several steps are tried.

    Source: Nocedal and Wright, Numerical Optimization, section 8.1, on the step.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> problem = hb.Problem(model, {"input_ids": torch.randint(20, (4, 8))})
        >>> hb.check_derivatives(problem).verdict  # the check itself prints as a table
        'right'
    """
    groups = products.groups_of(problem, groups)
    problem.check_whole()
    if problem.processes.shard:
        raise ArgumentError("problem: derivatives are checked in one process; leave shard out")
    with products.readable_errors():
        along = witness.direction(problem.parameters, problem.parameters, seed)
        compared = products.compare_derivatives(
            problem,
            list(problem.plan.passes),
            along,
            {name: _within(group, along) for name, group in groups.items()},
            {name: partial(_entries, group) for name, group in groups.items()},
        )
    derivatives = [
        GroupDerivatives(group=name, first=compared.first[name], second=compared.second[name])
        for name in groups
    ]
    return DerivativeCheck(groups=tuple(derivatives), dtype=compared.dtype)


def _entries(group: ParameterGroup, tensors: witness.ByName) -> Float[Tensor, " size"]:
    """Flatten the group's entries to one vector."""
    like = tensors[group.parameters[0]]
    into = like.new_empty(1, group.size)
    group.collect({name: tensors[name][None] for name in group.parameters}, into)
    return into[0]


def _within(group: ParameterGroup, tensors: witness.ByName) -> dict[str, Tensor]:
    """Return the tensors of the group's parameters, with zeros outside of the group."""
    vectors = _entries(group, tensors)[None]
    return {name: rows[0] for name, rows in group.scatter(vectors, tensors).items()}
