"""A run folder of `hessblocks curvature`, from its files alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError
from hessblocks.storage.folder_results import COLUMNS
from hessblocks.storage.lines import damaged, number, read_object, read_table

MAP_COLUMNS = ("row", "column", "part", "value", "standard_error", "method")
SPECTRUM_COLUMNS = ("group", "part", "eigenvalue", "density", "standard_error", "method")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A measured number."""

    value: float
    """In the unit of its quantity."""
    standard_error: float
    """Of the value; 0 where it is exact."""
    method: str
    """exact or estimate."""


@dataclass(frozen=True, kw_only=True)
class Density:
    """The spectrum of one group's block."""

    eigenvalues: tuple[float, ...]
    """Where the density is given, rising."""
    density: tuple[float, ...]
    """Share of eigenvalues per unit."""
    standard_errors: tuple[float, ...]
    """Of the density."""


@dataclass(frozen=True, kw_only=True)
class CurvatureResults:
    """What the folder holds."""

    folder: Path
    """The folder."""
    config: Mapping[str, Any]
    """config.json."""
    environment: Mapping[str, Any]
    """environment.json; empty where it is missing."""
    norms: Mapping[str, Mapping[str, Norm]]
    """By group, in the order of the model, and part."""
    layers: Mapping[str, int | None]
    """Layer of each group."""
    roles: Mapping[str, str]
    """Role of each group."""
    heterogeneity: Mapping[str, Norm]
    """By part; empty while groups are missing."""
    off_diagonal_shares: Mapping[str, Norm]
    """By part; empty without a map."""
    loss: float | None
    """Mean loss of the batch, nats per token."""
    cells: Mapping[str, Mapping[tuple[str, str], Norm]]
    """By part, the norms of all blocks (row, column); empty without a map."""
    spectra: Mapping[str, Mapping[str, Density]]
    """By part and group; empty without spectra."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that were asked for."""
        return tuple(self.config["curvature"]["parts"])

    @property
    def name(self) -> str:
        """Short name of the model."""
        return str(self.config["model"]["name"])

    @property
    def missing(self) -> tuple[str, ...]:
        """Groups that are not measured yet."""
        return tuple(name for name in self.config["groups"] if name not in self.norms)

    def by_size(self) -> list[str]:
        """Groups, the largest norm of the last part first."""
        last = self.parts[-1]
        return sorted(self.norms, key=lambda name: -self.norms[name][last].value)

    def zero_groups(self) -> dict[str, list[str]]:
        """By part, the groups whose norm is exactly 0, where there are any."""
        found = {
            part: [name for name, norms in self.norms.items() if norms[part].value == 0]
            for part in self.parts
        }
        return {part: names for part, names in found.items() if names}

    def summary(self, *, seconds: float) -> dict[str, Any]:
        """The run as one JSON object.

        Args:
            seconds: what the command took.
        """
        return {
            "command": "curvature",
            "out": str(self.folder),
            "seconds": seconds,
            "model": dict(self.config["model"]),
            "loss": self.loss,
            "curvature": {
                group: {part: vars(norm) for part, norm in norms.items()}
                for group, norms in self.norms.items()
            },
            "heterogeneity": {part: vars(norm) for part, norm in self.heterogeneity.items()},
            "off_diagonal_share": {
                part: vars(norm) for part, norm in self.off_diagonal_shares.items()
            },
            "zero_groups": self.zero_groups(),
            "missing": list(self.missing),
        }


def is_curvature_run(folder: Path) -> bool:
    """Whether the folder's config.json says that `hessblocks curvature` wrote it."""
    return read_object(folder / "config.json").get("command") == "curvature"


def load_curvature(folder: Path) -> CurvatureResults:
    """Read a run folder, finished or not.

    Raises:
        ArgumentError: it is not a folder of `hessblocks curvature`.
        RunError: a file is damaged; the message names file and line.
    """
    if not (folder / "config.json").is_file() or not is_curvature_run(folder):
        raise ArgumentError(f"{folder}: expected a folder that `hessblocks curvature` wrote.")
    environment = folder / "environment.json"
    rows = _read(folder / "results.csv", COLUMNS)
    norms: dict[str, dict[str, Norm]] = defaultdict(dict)
    whole: dict[str, dict[str, Norm]] = defaultdict(dict)
    for row, norm in rows:
        if row["quantity"] == "frobenius_norm":
            norms[row["group"]][row["part"]] = norm
        else:
            whole[row["quantity"]][row["part"]] = norm
    groups = {row["group"]: row for row, _ in rows if row["group"]}
    return CurvatureResults(
        folder=folder,
        config=read_object(folder / "config.json"),
        environment=read_object(environment) if environment.is_file() else {},
        norms=norms,
        layers={name: int(row["layer"]) if row["layer"] else None for name, row in groups.items()},
        roles={name: row["role"] for name, row in groups.items()},
        heterogeneity=whole["heterogeneity"],
        off_diagonal_shares=whole["off_diagonal_share"],
        loss=whole["loss"][""].value if whole["loss"] else None,
        cells=_cells(folder / "map.csv"),
        spectra=_spectra(folder / "spectra.csv"),
    )


def _read(path: Path, columns: tuple[str, ...]) -> list[tuple[Mapping[str, str], Norm]]:
    """Each row with its value, error and method as a number."""
    found = []
    if not path.is_file():
        return []
    for line, row in read_table(path, columns):
        try:
            error = number(row["standard_error"]) if row["standard_error"] else 0.0
            value = number(row["value"])
        except ValueError as problem:
            raise damaged(path, line, str(problem)) from problem
        if not (math.isfinite(value) and math.isfinite(error)):
            raise damaged(path, line, "expected finite numbers")
        found.append((row, Norm(value=value, standard_error=error, method=row["method"])))
    return found


def _cells(path: Path) -> dict[str, dict[tuple[str, str], Norm]]:
    found: dict[str, dict[tuple[str, str], Norm]] = defaultdict(dict)
    for row, norm in _read(path, MAP_COLUMNS):
        found[row["part"]][row["row"], row["column"]] = norm
    return found


def _spectra(path: Path) -> dict[str, dict[str, Density]]:
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    if path.is_file():
        for line, row in read_table(path, SPECTRUM_COLUMNS):
            try:
                point = (number(row["eigenvalue"]), number(row["density"]))
                points[row["part"], row["group"]].append((*point, number(row["standard_error"])))
            except ValueError as problem:
                raise damaged(path, line, str(problem)) from problem
    spectra: dict[str, dict[str, Density]] = defaultdict(dict)
    for (part, group), values in points.items():
        eigenvalues, density, errors = zip(*values, strict=True)
        spectra[part][group] = Density(
            eigenvalues=eigenvalues, density=density, standard_errors=errors
        )
    return spectra
