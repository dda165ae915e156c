"""Read the results in a run folder of `hessblocks curvature`."""

import itertools
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError
from hessblocks.statistics import ends
from hessblocks.storage.config import read_environment
from hessblocks.storage.files import damaged, read_object, refuse_links
from hessblocks.storage.manifest import DamageWarning
from hessblocks.storage.store import canonical
from hessblocks.storage.tables import NORM, ResultRow, columns_of, read_results, read_table
from hessblocks.storage.tabular import Tabular
from hessblocks.typed import JSON


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """Row of map.csv: the norm of one block, group × group."""

    row: str
    """Parameter group of the block's rows."""
    column: str
    """Parameter group of the block's columns."""
    part: str
    """outer, functional or full."""
    value: float
    """Frobenius norm, nats per token; a sampled norm close to zero may be negative."""
    standard_error: float | None
    """Standard error of the value."""
    method: str
    """exact, estimate or sampled."""


@dataclass(frozen=True, kw_only=True)
class SpectrumRow:
    """Row of spectra.csv: one point of the spectral density of a group's block."""

    group: str
    """Group of the block; empty for all groups together."""
    part: str
    """outer, functional or full."""
    eigenvalue: float
    """Abscissa of the point, nats per token."""
    density: float
    """Share of the eigenvalues per unit of eigenvalue."""
    standard_error: float
    """Standard error of the density."""
    method: str
    """exact or estimate."""


EIGENVALUE = ("eigenvalue", "eigenvalue_residual")
"""Quantities of the two rows of an eigenvalue in results.csv."""
MAP_COLUMNS = columns_of(MapRow)
SPECTRUM_COLUMNS = columns_of(SpectrumRow)


@dataclass(frozen=True, kw_only=True)
class StoredNorm:
    """Norm, or a number computed from norms, with its standard error."""

    value: float
    """Value, in the unit of its quantity."""
    standard_error: float
    """Standard error of the value; 0 if the value is exact."""
    method: str
    """exact or estimate."""


@dataclass(frozen=True, kw_only=True)
class StoredRatio(StoredNorm):
    """Heterogeneity: the ratio of the largest norm to the smallest.

    The standard error is a quarter of the interval's width.
    """

    low: float
    """Lower end of the 95 % interval, at least 1; the value itself if it is exact."""
    high: float
    """Upper end of the 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class Eigenvalue:
    """One of the largest eigenvalues of H."""

    value: float
    """Eigenvalue λ, nats per token."""
    residual: float
    """‖H v − λ v‖ for the unit vector v: an eigenvalue of H lies within this distance of λ."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CurvatureResults(Tabular):
    """Contents of a run folder of `hessblocks curvature`."""

    folder: Path
    """Run folder."""
    config: Mapping[str, Any]
    """Content of config.json."""
    environment: Mapping[str, Any]
    """Content of environment.json; empty if the file is missing."""
    norms: Mapping[str, Mapping[str, StoredNorm]]
    """Group, in the order of the model → part → Frobenius norm."""
    layers: Mapping[str, int | None]
    """Group → layer from 0; None outside the layers."""
    roles: Mapping[str, str]
    """Group → role."""
    heterogeneity: Mapping[str, StoredRatio]
    """Part → heterogeneity, computed from the stored norms; empty while groups are missing."""
    off_diagonal_shares: Mapping[str, StoredNorm]
    """Part → off-diagonal share; empty without a map."""
    loss: float | None
    """Mean loss of the batch, nats per token."""
    cells: Mapping[str, Mapping[tuple[str, str], StoredNorm]]
    """Part → (row group, column group) → norm of the block; empty without a map."""
    spectra: Mapping[str, Mapping[str, Sequence[SpectrumRow]]]
    """Part → group ('': all groups together) → points of the spectral density; may be empty."""
    eigenvalues: Mapping[str, Sequence[Eigenvalue]]
    """Group ('': all groups together) → largest eigenvalues of H; may be empty."""

    @property
    def parts(self) -> tuple[str, ...]:
        """List the parts of the Hessian that the run measures."""
        return tuple(self.config["curvature"]["parts"])

    @property
    def name(self) -> str:
        """Return the short name of the model."""
        return str(self.config["model"]["name"])

    @property
    def missing(self) -> tuple[str, ...]:
        """List the groups that are not measured yet."""
        return tuple(name for name in self.config["groups"] if name not in self.norms)

    def to_rows(self) -> list[dict[str, Any]]:
        """List the norm of each group and part, with layer and role."""
        return [
            {
                "quantity": NORM,
                "layer": self.layers[group],
                "group": group,
                "role": self.roles[group],
                "part": part,
                **vars(norm),
            }
            for group, norms in self.norms.items()
            for part, norm in norms.items()
        ]

    def __str__(self) -> str:
        """Print the model, the number of groups, the heterogeneity, and the folder if it exists."""
        last = self.parts[-1]
        ratio = self.heterogeneity.get(last)
        uneven = "" if ratio is None else f", norms of {last} differ {ratio.value:.3g} times"
        missing = f", {len(self.missing)} missing" if self.missing else ""
        where = f"; in {self.folder}" if self.folder.is_dir() else ""
        return f"curvature of {self.name}: {len(self.norms)} groups{missing}{uneven}{where}"

    def by_size(self) -> list[str]:
        """List the groups by their norm of the last part, the largest first."""
        return sorted(self.norms, key=lambda name: -self.norms[name][self.parts[-1]].value)

    def zero_groups(self) -> dict[str, list[str]]:
        """Map each part to its groups whose norm is exactly 0; parts without any are left out."""
        groups: dict[str, list[str]] = defaultdict(list)
        for part, (name, norms) in itertools.product(self.parts, self.norms.items()):
            if norms[part].value == 0:
                groups[part].append(name)
        return groups

    def summary(self) -> dict[str, Any]:
        """Describe the run as one JSON object."""
        return {
            "command": "curvature",
            "out": str(self.folder),
            "model": dict(self.config["model"]),
            "loss": self.loss,
            "curvature": JSON.unstructure(self.norms),
            "heterogeneity": JSON.unstructure(self.heterogeneity),
            "off_diagonal_share": JSON.unstructure(self.off_diagonal_shares),
            "eigenvalues": JSON.unstructure(self.eigenvalues),
            "zero_groups": self.zero_groups(),
            "missing": list(self.missing),
        }


def group_key(run: str, group: str) -> str:
    """Make the key of a group's record in the store, from the identity of the run."""
    return canonical({"of": run, "group": group})


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def load_curvature(folder: AnyPath) -> CurvatureResults:
    """Read a run folder, finished or not.

    Returns:
        Contents of the folder; empty mappings for missing tables.

    Raises:
        ArgumentError: it is not a folder of `hessblocks curvature`, or it contains a link.
        RunError: a file is damaged; the message names file and line.
    """
    folder = Path(folder)
    refuse_links(folder)
    path = folder / "config.json"
    config = read_object(path) if path.is_file() else {}
    if config.get("command") != "curvature":
        raise ArgumentError(f"{folder}: expected a folder that `hessblocks curvature` wrote.")
    model, curvature = config.get("model"), config.get("curvature")
    parts = curvature.get("parts") if isinstance(curvature, dict) else None
    named = isinstance(model, dict) and "name" in model
    if not (named and parts and _are_names(config.get("groups")) and _are_names(parts)):
        expected = "expected `groups`, a `name` of the model and `parts` of `curvature`"
        raise damaged(path, None, expected)
    norms: dict[str, dict[str, StoredNorm]] = defaultdict(dict)
    totals: dict[str, dict[str, StoredNorm]] = defaultdict(dict)
    rows = read_results(folder / "results.csv")
    not_finite = {row.group for row in rows if row.group and not math.isfinite(row.value)}
    for group in sorted(not_finite):
        message = f"{folder / 'results.csv'}: a norm of {group} is not a number; it is left out"
        warnings.warn(message, DamageWarning, stacklevel=2)
    for row in (row for row in rows if row.group not in not_finite):
        table = norms[row.group] if row.quantity == NORM else totals[row.quantity]
        table[row.part] = _norm(row, folder / "results.csv")
    groups = {row.group: row for row in rows if row.group}
    norms = {name: norm for name, norm in norms.items() if norm.keys() >= {*parts}}
    return CurvatureResults(
        folder=folder,
        config=config,
        environment=read_environment(folder),
        norms=norms,
        layers={name: row.layer for name, row in groups.items()},
        roles={name: row.role for name, row in groups.items()},
        heterogeneity={
            part: _ratio({name: norm[part] for name, norm in norms.items()}, written.method)
            for part, written in totals["heterogeneity"].items()
        },
        off_diagonal_shares=totals["off_diagonal_share"],
        loss=totals["loss"][""].value if totals["loss"] else None,
        cells=_cells(folder / "map.csv"),
        spectra=_spectra(folder / "spectra.csv"),
        eigenvalues=_eigenvalues(rows),
    )


def _norm(row: ResultRow | MapRow, path: Path) -> StoredNorm:
    error = row.standard_error or 0.0
    if not (math.isfinite(row.value) and math.isfinite(error)):
        raise damaged(path, None, f"expected finite numbers, got {row.value} ± {error}")
    return StoredNorm(value=row.value, standard_error=error, method=row.method)


def _ratio(norms: Mapping[str, StoredNorm], method: str) -> StoredRatio:
    """Compute the ratio from the norms: earlier versions stored a biased one, too large."""
    extremes = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    if extremes is None or extremes.low is None or extremes.high is None:
        return StoredRatio(value=0.0, standard_error=0.0, low=0.0, high=0.0, method="exact")
    return StoredRatio(
        value=extremes.ratio,
        standard_error=extremes.standard_error or 0.0,
        low=extremes.low,
        high=extremes.high,
        method=method if extremes.low == extremes.high else "estimate",
    )


def _eigenvalues(rows: Sequence[ResultRow]) -> dict[str, list[Eigenvalue]]:
    """Pair the rows of eigenvalues with the rows of residuals, which have the same order."""
    pairs: dict[str, list[Eigenvalue]] = defaultdict(list)
    values, residuals = ([row for row in rows if row.quantity == name] for name in EIGENVALUE)
    for row, residual in zip(values, residuals, strict=False):  # a cut file may lack one
        pairs[row.group].append(Eigenvalue(value=row.value, residual=residual.value))
    return pairs


def _cells(path: Path) -> dict[str, dict[tuple[str, str], StoredNorm]]:
    cells: dict[str, dict[tuple[str, str], StoredNorm]] = defaultdict(dict)
    for row in read_table(MapRow, path):
        cells[row.part][row.row, row.column] = _norm(row, path)
    return cells


def _spectra(path: Path) -> dict[str, dict[str, list[SpectrumRow]]]:
    points: dict[str, dict[str, list[SpectrumRow]]] = defaultdict(lambda: defaultdict(list))
    for row in read_table(SpectrumRow, path):
        points[row.part][row.group].append(row)
    return points
