"""The files of a study that are made from its store: results.csv, summary.json, figure.json."""

from __future__ import annotations

from collections.abc import Sequence

from hessblocks.storage import Scalar, write_json, write_table
from hessblocks.studies.engine.point import Point
from hessblocks.studies.engine.store import Store
from hessblocks.studies.engine.study import Check, Study


def write_outputs(study: Study, points: Sequence[Point], store: Store) -> tuple[Check, ...]:
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
    rows = store.rows(points)
    summary = study.summarise(rows)
    done = sum(point in store for point in points)
    about = {
        "study": study.name,
        "revision": study.revision,
        "title": study.title,
        "source": study.source,
        "published": study.published,
        "points": {"total": len(points), "done": done, "missing": len(points) - done},
        "seconds": store.seconds(points),
        "retried": store.retried(points),
        "settings": distinct_settings(points),
    }
    write_table(store.folder / "results.csv", study.columns, rows)
    write_json(store.folder / "figure.json", summary.figure.to_dict())
    write_json(store.folder / "summary.json", {**about, **summary.to_dict()})
    return summary.checks


def distinct_settings(points: Sequence[Point]) -> dict[str, list[Scalar]]:
    """Every setting of `points` with its values, each once, in the order of `points`."""
    found: dict[str, dict[Scalar, None]] = {}
    for point in points:
        for name, value in point.settings.items():
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}
