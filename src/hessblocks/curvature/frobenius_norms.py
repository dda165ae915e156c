"""Estimate Frobenius norms of the Hessian's diagonal blocks, one per group, and of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hessblocks.conventions import PARTS, SYMBOLS, Part
from hessblocks.curvature.columns import check_probes, column_squares
from hessblocks.curvature.cost import Tell, Work, decide
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import Problem, groups_of
from hessblocks.curvature.sampled import gram_matrices
from hessblocks.errors import ArgumentError, check_name
from hessblocks.linalg import Estimate, keeping, norms_from_pairs
from hessblocks.statistics import Heterogeneity, ends
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_POINTS = 12
"""Up to this many groups are drawn as points; more are drawn as a map, layers × roles."""


class GroupNorms(dict[str, dict[Part, Estimate]], Tabular):
    """Frobenius norms of the diagonal blocks: group name → part → estimate."""

    def __init__(
        self, groups: Mapping[str, ParameterGroup], norms: Mapping[str, dict[Part, Estimate]]
    ) -> None:
        """Store `norms`, by name of the group, and the groups."""
        super().__init__(norms)
        self._groups = {name: groups[name] for name in norms}

    @property
    def parts(self) -> tuple[Part, ...]:
        """List the estimated parts."""
        return tuple(next(iter(self.values()), {}))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return tidy rows: quantity, layer, group, role, part, value, standard_error, method."""
        return norm_rows(self._groups, self)

    def _content(self) -> tuple[str, dict[str, Any]]:
        return type(self).__name__, {"groups": self._groups, "norms": dict(self)}

    def heterogeneity(self, part: Part) -> Heterogeneity[Estimate]:
        """Divide the largest norm of one part by the smallest, with a 95 % interval."""
        check_name("part", part, self.parts)
        return heterogeneity({name: parts[part] for name, parts in self.items()})

    def __str__(self) -> str:
        """Show the number of groups, the parts, and the heterogeneity of the last part."""
        names = ", ".join(SYMBOLS[part] for part in self.parts)
        last = self.heterogeneity(self.parts[-1])
        part = SYMBOLS[self.parts[-1]]
        return f"norms of {names} of {len(self)} groups; {part}, largest over smallest: {last}"

    __repr__ = Tabular.__repr__

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the norms on a logarithmic axis, one mark per part, with bars of one standard error.

        More than 12 groups of layers are drawn as a heatmap, layers × roles, of the last part.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import draw_layers, plot
        from hessblocks.figures import Panel, Series, log_axis

        layers = [group.layer for group in self._groups.values()]
        if len(self) > MOST_POINTS and any(layer is not None for layer in layers):
            part = self.parts[-1]
            norms = [parts[part].value for parts in self.values()]
            return draw_layers(tuple(self), layers, norms, part=part, ax=ax)
        series = []
        for part in self.parts:
            estimates = [parts[part] for parts in self.values()]
            values = tuple(max(estimate.value, 0.0) for estimate in estimates)
            errors = tuple(estimate.standard_error for estimate in estimates)
            places = tuple(map(float, range(len(self))))
            series.append(Series(name=SYMBOLS[part], x=places, y=values, error=errors, line=False))
        panel = Panel(
            title="Curvature of each group",
            x_label="",
            y_label="Frobenius norm (nats per token)",
            series=tuple(series),
            ticks=tuple(self),
            **log_axis(y for curve in series for y in curve.y),
        )
        return plot(panel, ax)


@keeping
def group_norms(
    problem: Problem,
    groups: Mapping[str, ParameterGroup] | None = None,
    *,
    probes: int = 16,
    seed: int = 0,
    parts: Sequence[Part] = PARTS,
    method: str = "auto",
    tell: Tell | None = None,
) -> GroupNorms:
    """Estimate Frobenius norms of the diagonal blocks of H_o, H_f and H by Hutchinson's probes.

    The results equal `frobenius_norm` of each operator. But the parts share their probes and, if
    the memory allows, all groups share one graph. A group with at most `probes` entries is computed
    exactly, with `method="exact"`.

    Args:
        problem: model, batches and loss.
        groups: groups by name; None: those of `parameter_groups`.
        probes: random vectors per group, at least 4.
        seed: seed of the probes; groups of equal size have the same probes.
        parts: parts to estimate.
        method: see `curvature_map`; `sampled` is for H_o only.
        tell: see `curvature_map`.

    Returns:
        Estimates by group name and part, a dictionary of dictionaries; `.to_rows()`, `.plot()`,
        `.heterogeneity("full")`.

    Raises:
        ArgumentError: too few probes, no groups, no parts or unknown ones, groups of another model;
            or see `curvature_map`.

    Cost: about one gradient per probe for a group of the first layer, less for later layers;
        sampled, 2/3 of a gradient for each of 4 · probes samples, for any number of groups.

    Examples:
        >>> import torch, hessblocks as hb
        >>> sizes = {"width": 16, "heads": 2, "vocab_size": 20, "context": 8}
        >>> model = hb.build("pre-ln-zero", depth=1, **sizes)  # its queries start at zero
        >>> norms = hb.group_norms(hb.Problem(model, {"input_ids": torch.randint(20, (4, 8))}))
        >>> print(norms["layers.0.attention.key"]["full"])  # which leaves keys without curvature
        0 ± 0 (16 probes)
        >>> norms["layers.0.attention.query"]["full"].value > 0
        True
    """
    groups = groups_of(problem, groups)
    check_probes(probes)
    if isinstance(parts, str) or not parts:
        raise ArgumentError(f"parts: expected a list of some of {', '.join(PARTS)}, got {parts!r}")
    for part in parts:
        check_name("part", part, PARTS)
    work = Work(problem=problem, groups=groups, parts=parts, blocks="diagonal")
    cost, sampling = decide(work, probes=probes, method=method, tell=tell)
    if sampling:
        grams = gram_matrices(problem, groups, sampling, seed=seed)
        pairs = norms_from_pairs(grams.products)
        sampled: dict[str, dict[Part, Estimate]] = {
            name: {"outer": pairs.norm(at, at)} for at, name in enumerate(groups)
        }
        return GroupNorms(groups, sampled)
    norms: dict[str, dict[Part, Estimate]] = {}
    for name in groups:
        squares = column_squares(
            problem, groups, name, [name], parts, cost.count, seed, by_name=False
        )
        norms[name] = {part: squares.norm(part, name) for part in parts}
    return GroupNorms(groups, norms)


def heterogeneity(norms: Mapping[str, Estimate]) -> Heterogeneity[Estimate]:
    """Divide the largest norm by the smallest; norms of exactly 0 are left out and named.

    Args:
        norms: norms of the groups' own blocks.

    Returns:
        The ratio, its 95 % interval, and the groups with the largest and smallest norm; the ratio's
        standard error is a quarter of the interval's width.
    """
    extremes = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    zero_groups = tuple(name for name, norm in norms.items() if norm.value <= 0)
    if extremes is None:
        nothing = Estimate(value=0.0, method="exact")
        return Heterogeneity(ratio=nothing, largest="", smallest="", zero_groups=zero_groups)
    both = norms[extremes.largest], norms[extremes.smallest]
    exact = not extremes.standard_error and all(end.method == "exact" for end in both)
    ratio = Estimate(
        value=extremes.ratio,
        standard_error=extremes.standard_error or 0.0,
        probes=max(end.probes for end in both),
        method="exact" if exact else "estimate",
    )
    return Heterogeneity(**{**vars(extremes), "ratio": ratio, "zero_groups": zero_groups})


def norm_rows(
    groups: Mapping[str, ParameterGroup], norms: Mapping[str, Mapping[Part, Estimate]]
) -> list[dict[str, Any]]:
    """Make tidy rows of the norms of `group_norms`.

    Returns:
        For each group and part quantity, layer, group, role, part, value, standard_error and
        method.
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
