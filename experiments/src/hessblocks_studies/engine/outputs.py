"""Write the files that a study derives from its store: results.csv, summary.json, figure.json."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hessblocks.figures import Figure
from hessblocks.storage import Scalar, Store, json_text, table_text, write_text
from hessblocks_studies.engine.point import Point, plain
from hessblocks_studies.engine.stored import Stored
from hessblocks_studies.engine.study import Check, Study

OF_PAGES = ("note", "across", "below", "numbers", "band", "by_tick", "rows", "columns")
"""Fields of series, panels and maps that are not in figure.json."""


def write_outputs(study: Study[Any], points: Sequence[Point], store: Store) -> tuple[Check, ...]:
    """Write the results and the summary of the finished points.

    Args:
        study: study of the points.
        points: all points of the scale, finished or not.
        store: store with the finished points; the files are written to its folder.

    Returns:
        The checks of published facts against our measurements.

    Raises:
        RunError: a file cannot be written.
    """
    texts, checks = outputs_of(study, points, store)
    for name, text in texts.items():
        write_text(store.folder / name, text)
    return checks


def outputs_of(
    study: Study[Any], points: Sequence[Point], store: Store
) -> tuple[dict[str, str], tuple[Check, ...]]:
    """Compute the text of each file by name, and the checks of published facts."""
    stored = Stored.of(store, points)
    rows = stored.rows
    summary = study.summarise(rows)
    settings: dict[str, dict[Scalar, None]] = {}
    for point in points:
        for name, value in plain(point.settings).items():
            settings.setdefault(name, {})[value] = None
    done, missing = len(stored.finished), len(stored.missing)
    about = {
        "study": study.name,
        **{name: getattr(study, name) for name in ("revision", "title", "source", "published")},
        "points": {"total": len(points), "done": done, "missing": missing},
        "seconds": stored.seconds,
        "retried": stored.retried,
        "settings": {name: list(values) for name, values in settings.items()},
    }
    texts = {
        "results.csv": table_text(study.columns, rows),
        "figure.json": json_text(figure_fields(summary.figure)),
        "summary.json": json_text({**about, **summary.to_dict()}),
    }
    return texts, tuple(summary.checks)


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
