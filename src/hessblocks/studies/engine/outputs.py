"""The files of a study that are made from its store: results.csv, summary.json, figure.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hessblocks.storage import Scalar, table_text, write_json, write_text
from hessblocks.studies.engine.point import Point, plain
from hessblocks.studies.engine.store import Store
from hessblocks.studies.engine.study import Check, Study


def table_of(study: Study[Any], points: Sequence[Point], store: Store) -> str:
    """The text of results.csv: the rows of the finished ones of `points`."""
    return table_text(study.columns, store.of(points).rows)


def write_outputs(study: Study[Any], points: Sequence[Point], store: Store) -> tuple[Check, ...]:
    """Write what the finished ones of `points` amount to.

    Args:
        study: whose points they are.
        points: all points of the scale, finished or not.
        store: holds the finished ones; its folder is written.

    Returns:
        The published facts next to ours.

    Raises:
        RunError: a file cannot be written.
    """
    stored = store.of(points)
    rows = stored.rows
    summary = study.summarise(rows)
    settings: dict[str, dict[Scalar, None]] = {}
    for point in points:
        for name, value in plain(point.settings).items():
            settings.setdefault(name, {})[value] = None
    done, missing = len(stored.finished), len(stored.missing)
    about = {
        "study": study.name,
        "revision": study.revision,
        "title": study.title,
        "source": study.source,
        "published": study.published,
        "points": {"total": len(points), "done": done, "missing": missing},
        "seconds": stored.seconds,
        "retried": stored.retried,
        "settings": {name: list(values) for name, values in settings.items()},
    }
    write_text(store.folder / "results.csv", table_text(study.columns, rows))
    write_json(store.folder / "figure.json", summary.figure.to_dict())
    write_json(store.folder / "summary.json", {**about, **summary.to_dict()})
    return tuple(summary.checks)
