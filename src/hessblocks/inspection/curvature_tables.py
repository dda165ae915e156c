"""Write the tables of a curvature run from the records of its groups."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hessblocks import curvature, storage
from hessblocks.conventions import PARTS, Part
from hessblocks.linalg import Estimate

GroupRecord = Mapping[str, Any]
"""Measurements of one group, as JSON values."""


def write_tables(
    folder: Path,
    groups: Mapping[str, curvature.ParameterGroup],
    records: Mapping[str, GroupRecord],
    *,
    loss: float,
    **run: Any,
) -> None:
    """Write rows of all measured groups; map and summary follow once every group is measured.

    Args:
        folder: folder for results.csv, map.csv and spectra.csv.
        groups: all groups of the run.
        records: records of the measured groups; the name '' means all groups together.
        loss: mean loss, nats per token.
        **run: `preset` and `seed` of every row.

    Raises:
        RunError: a file cannot be written.
    """
    norms = {
        name: {part: Estimate(**record["norms"][part]) for part in _ordered(record["norms"])}
        for name, record in records.items()
        if name
    }
    rows, maps = curvature.norm_rows(groups, norms), []
    if len(norms) == len(groups):
        measured = [records[name] for name in groups]
        if all("column" in record for record in measured):
            columns = [curvature.ColumnSquares(**record["column"]) for record in measured]
            maps = [
                curvature.combine_columns(groups, columns, part)
                for part in _ordered(columns[0].squares)
            ]
        elif all("samples" in record for record in measured):
            products = [torch.tensor(record["samples"]).double() for record in measured]
            maps = [curvature.combine_samples(groups, torch.stack(products))]
        rows += _summary_rows(norms, maps, loss)
    rows += _eigenvalue_rows(groups, records)
    result_rows = [storage.ResultRow(**run, **row) for row in rows]
    storage.write_results(folder / "results.csv", result_rows)
    if spectra := _spectrum_rows(records):
        storage.write_table(folder / "spectra.csv", storage.SPECTRUM_COLUMNS, spectra)
    if maps:
        cells = [row for whole_map in maps for row in whole_map.to_rows()]
        storage.write_table(folder / "map.csv", storage.MAP_COLUMNS, cells)


def _summary_rows(
    norms: Mapping[str, Mapping[Part, Estimate]],
    maps: Sequence[curvature.CurvatureMap],
    loss: float,
) -> list[dict[str, Any]]:
    """List loss, heterogeneity of each part with its interval, and off-diagonal shares."""
    rows: list[tuple[str, str, Estimate]] = [("loss", "", Estimate(value=loss, method="exact"))]
    for part in next(iter(norms.values())):
        ratio = curvature.heterogeneity({name: parts[part] for name, parts in norms.items()})
        rows.append(("heterogeneity", part, ratio.ratio))
        ends = {"heterogeneity_low": ratio.low, "heterogeneity_high": ratio.high}
        rows += [
            (name, part, Estimate(value=end, method=ratio.ratio.method))
            for name, end in ends.items()
            if end is not None
        ]
    shares = [(whole_map.part, whole_map.off_diagonal_share) for whole_map in maps]
    rows += [("off_diagonal_share", part, share) for part, share in shares if share]
    return [
        {"quantity": quantity, "part": part, **estimate.to_row()}
        for quantity, part, estimate in rows
    ]


def _eigenvalue_rows(
    groups: Mapping[str, curvature.ParameterGroup], records: Mapping[str, GroupRecord]
) -> list[dict[str, Any]]:
    """List eigenvalues of H, the largest first, each followed by its residual."""
    rows = []
    for name, record in records.items():
        group = (
            {"group": name, "layer": groups[name].layer, "role": groups[name].role} if name else {}
        )
        for eigenvalue in record.get("eigenvalues", []):
            for quantity, value in zip(storage.EIGENVALUE, eigenvalue.values(), strict=True):
                row = {"quantity": quantity, "part": "full", "value": value, "method": "measured"}
                rows.append(row | group)
    return rows


def _spectrum_rows(records: Mapping[str, GroupRecord]) -> list[dict[str, Any]]:
    values = storage.SPECTRUM_COLUMNS[2:-1]
    return [
        {"group": name, "part": part, "method": spectra[part]["method"]}
        | dict(zip(values, point, strict=True))
        for name, spectra in ((name, record.get("spectra", {})) for name, record in records.items())
        for part in _ordered(spectra)
        for point in zip(*(spectra[part][column] for column in values), strict=True)
    ]


def _ordered(parts: Mapping[Any, Any]) -> list[Part]:
    """List the parts in the order of `PARTS`, which a file may not keep."""
    return [part for part in PARTS if part in parts]
