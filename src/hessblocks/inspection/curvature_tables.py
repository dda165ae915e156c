"""The tables of a curvature run, from what is recorded of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.conventions import Part
from hessblocks.curvature import (
    ColumnSquares,
    CurvatureMap,
    ParameterGroup,
    combine_columns,
    heterogeneity,
)
from hessblocks.linalg import Estimate
from hessblocks.storage import (
    MAP_COLUMNS,
    SPECTRUM_COLUMNS,
    ResultRow,
    write_results,
    write_table,
)

Record = Mapping[str, Any]
"""All that was measured of one group, as JSON values."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """results.csv, map.csv and spectra.csv of one run."""

    folder: Path
    """Where they are written."""
    name: str
    """Of the model."""
    seed: int
    """Of the run."""
    parts: tuple[Part, ...]
    """The parts that are measured."""
    groups: Mapping[str, ParameterGroup]
    """All groups of the run."""
    loss: float
    """Mean loss, nats per token."""

    def write(self, records: Mapping[str, Record]) -> None:
        """Write the rows of the groups so far, and once all are there the map and the summary.

        Raises:
            RunError: a file cannot be written.
        """
        complete = len(records) == len(self.groups)
        maps = self._maps(records) if complete and _all_have("column", records) else []
        rows = [
            self._row(
                "frobenius_norm",
                part,
                Estimate(**record["norms"][part]),
                **{name: record[name] for name in ("layer", "group", "role")},
            )
            for record in records.values()
            for part in self.parts
        ]
        if complete:
            rows += self._summary_rows(records, maps)
        write_results(self.folder / "results.csv", rows)
        if _all_have("spectra", records):
            write_table(self.folder / "spectra.csv", SPECTRUM_COLUMNS, self._spectrum_rows(records))
        if maps:
            cells = [row for one in maps for row in one.to_rows()]
            write_table(self.folder / "map.csv", MAP_COLUMNS, cells)

    def _summary_rows(
        self, records: Mapping[str, Record], maps: Sequence[CurvatureMap]
    ) -> list[ResultRow]:
        """Loss, heterogeneity of each part, and the off-diagonal shares."""
        rows = [self._row("loss", "", Estimate(value=self.loss, method="exact"))]
        for part in self.parts:
            norms = {name: Estimate(**record["norms"][part]) for name, record in records.items()}
            rows.append(self._row("heterogeneity", part, heterogeneity(norms).ratio))
        shares = [(one.part, one.off_diagonal_share) for one in maps]
        return rows + [self._row("off_diagonal_share", part, share) for part, share in shares]

    def _row(self, quantity: str, part: str, found: Estimate, **place: Any) -> ResultRow:
        return ResultRow(
            preset=self.name,
            seed=self.seed,
            quantity=quantity,
            part=part,
            value=found.value,
            standard_error=found.standard_error,
            method=found.method,
            **place,
        )

    def _maps(self, records: Mapping[str, Record]) -> list[CurvatureMap]:
        columns = [ColumnSquares(**records[name]["column"]) for name in self.groups]
        return [combine_columns(self.groups, columns, part) for part in self.parts]

    def _spectrum_rows(self, records: Mapping[str, Record]) -> list[dict[str, Any]]:
        values = SPECTRUM_COLUMNS[2:-1]
        return [
            {"group": name, "part": part, "method": found[part]["method"]}
            | dict(zip(values, point, strict=True))
            for name, found in ((name, record["spectra"]) for name, record in records.items())
            for part in self.parts
            if part in found
            for point in zip(*(found[part][column] for column in values), strict=True)
        ]


def _all_have(key: str, records: Mapping[str, Record]) -> bool:
    return all(key in record for record in records.values())
