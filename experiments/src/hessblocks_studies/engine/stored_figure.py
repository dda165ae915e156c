"""Write and read figure.json: the figure of a study as plain data."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.figures import Figure
from hessblocks.storage import read_object
from hessblocks.typed import JSON, typed

OF_PAGES = ("note", "across", "below", "numbers", "band", "by_tick", "rows", "columns")
"""Fields of series, panels and maps that are not in figure.json."""


def figure_fields(figure: Figure) -> dict[str, Any]:
    """Convert the figure to plain data, as in figure.json."""
    panels = [asdict(panel, dict_factory=_stored) for panel in figure.panels]
    return {"title": figure.title, "caption": figure.caption, "panels": panels}


def _stored(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Select the fields for figure.json; as in older files, unused fields are left out."""
    silent = (("guide", False), ("limits", None))
    return {
        name: value for name, value in pairs if name not in OF_PAGES and (name, value) not in silent
    }


def read_figure(path: AnyPath) -> Figure:
    """Read the figure that a study wrote as figure.json.

    Returns:
        The figure of the study.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        return typed(JSON, Figure, read_object(Path(path)))
    except ValueError as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error
