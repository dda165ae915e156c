"""Choose what is spent on norms and map: as asked, by a budget, or as an unfinished run did."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.curvature import Cost, ParameterGroup, Problem, Work, decide
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection
from hessblocks.storage import read_object


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What the groups' norms and their map are made of."""

    probes: int
    """Random vectors a group."""
    samples: int = 0
    """Gradients for all groups that take their place; 0 where they do not."""
    budget: float | None = None
    """Minutes that chose the number."""

    def said(self) -> dict[str, Any]:
        """Describe it in config.json, where only what is used stands."""
        return {name: value for name, value in vars(self).items() if value}


def chosen(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    settings: CurvatureInspection,
    folder: Path,
    progress: Progress,
) -> Spending:
    """Choose what a run spends, and tell `progress` what it will cost.

    Args:
        problem: model, batch and loss.
        groups: that are measured.
        settings: what was asked for.
        folder: of the run; where an earlier call was given the same budget, its number stands.
        progress: told the cost.

    Returns:
        Probes or samples.

    Raises:
        ArgumentError: a memory limit or a budget that is too small.

    Cost: a product or two.
    """
    if settings.budget is not None and (before := _before(folder, settings.budget)):
        return before
    work = Work(
        problem=problem,
        groups=groups,
        parts=settings.parts,
        blocks="all" if settings.map else "diagonal",
    )

    def tell(cost: Cost) -> None:
        progress.note(f"{'map' if settings.map else 'norms'}: {cost}")

    cost, sampling = decide(
        work, probes=settings.probes, method=settings.method, budget=settings.budget, tell=tell
    )
    return Spending(
        probes=settings.probes if sampling else cost.count,
        samples=cost.count if sampling else 0,
        budget=settings.budget,
    )


def _before(folder: Path, budget: float) -> Spending | None:
    """Find what an earlier call with this budget chose."""
    path = folder / "config.json"
    found = read_object(path).get("curvature") if path.is_file() else None
    if not isinstance(found, dict) or found.get("budget") != budget or "probes" not in found:
        return None
    return Spending(probes=found["probes"], samples=found.get("samples", 0), budget=budget)
