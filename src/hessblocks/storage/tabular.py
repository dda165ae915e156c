"""Base of results: one line that says them, and rows for pandas, a page or a file."""

from __future__ import annotations

import abc
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import write_json
from hessblocks.storage.tables import write_table

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 20
"""Rows of a table in a notebook."""


class Tabular(abc.ABC):
    """A result that is printed as one line and holds a table.

    >>> class Squares(Tabular):
    ...     def to_rows(self):
    ...         return [{"n": n, "square": n * n} for n in range(3)]
    ...     def __str__(self):
    ...         return "3 squares"
    >>> Squares()
    3 squares
    """

    @abc.abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """List tidy rows: one value a row, with what it belongs to."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """One line."""

    def __repr__(self) -> str:
        """One line."""
        return str(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Convert the rows to a table of pandas.

        Returns:
            A data frame with a row for each of `to_rows`.

        Raises:
            RunError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise RunError("to_dataframe: pandas is not installed; pip install pandas") from error
        return pd.DataFrame(self.to_rows())

    def save(self, path: str | Path) -> None:
        """Write the rows to a file, whole or not at all.

        Args:
            path: ends in .csv or .json.

        Raises:
            ArgumentError: another ending.
            RunError: the file cannot be written.
        """
        path, rows = Path(path), self.to_rows()
        if path.suffix == ".csv":
            write_table(path, list(dict.fromkeys(name for row in rows for name in row)), rows)
        elif path.suffix == ".json":
            write_json(path, rows)
        else:
            raise ArgumentError(
                f"path: expected a name that ends in .csv or .json, got {str(path)!r}"
            )

    def _first(self, most: int) -> tuple[list[dict[str, Any]], int]:
        """The first rows, and how many there are; for tables too long to be made for a look."""
        rows = self.to_rows()
        return rows[:most], len(rows)

    def _repr_html_(self) -> str:
        """What a notebook shows: the line and the first rows."""
        rows, count = self._first(SHOWN)
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>"
            for row in rows
        )
        more = count - SHOWN
        rest = f"<p>and {more:,} more rows: .to_rows(), .to_dataframe()</p>" if more > 0 else ""
        return (
            f"<p>{escape(str(self))}</p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>{rest}"
        )


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
