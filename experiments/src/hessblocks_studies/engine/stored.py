"""Read the points of a study from its store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hessblocks.storage import Row, Store, held, mended_store
from hessblocks_studies.engine.point import Point
from hessblocks_studies.engine.study import Study


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Lock `folder` and yield its store for reading and writing; move damaged lines aside first.

    Args:
        folder: folder of the store; created if missing.

    Raises:
        RunError: another process holds the folder, another version wrote it, or it cannot be read.

    Warns:
        UserWarning: lines were damaged. They are moved to `points.damaged`; their points run again.
    """
    with held(folder):
        yield mended_store(folder)


def grown(study: Study[Any], points: Sequence[Point], store: Store) -> list[Point]:
    """List the points of a study, including those that follow from the results.

    The list depends only on the store, so that each call gives the same points.

    Args:
        study: study of the points.
        points: points at the start of the study.
        store: store of the measurements.

    Returns:
        All points in order.
    """
    so_far = list(points)
    while study.more and not (stored := Stored.of(store, so_far)).missing:
        added = study.more(stored.rows, [point.settings for point in so_far])
        if not added:
            break
        so_far += study.made(added, so_far[0].gpus)
    return so_far


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Finished and missing points of a study."""

    finished: Sequence[Any]
    """Records of the finished points, in the points' order."""
    missing: Sequence[Point]
    """Points that are not finished, in order."""

    @classmethod
    def of(cls, store: Store, points: Sequence[Point]) -> Self:
        """Look up `points` in the store."""
        records = [(point, store.get(point.key)) for point in points]
        missing = [point for point, record in records if record is None]
        return cls(finished=[record for _, record in records if record], missing=missing)

    @property
    def rows(self) -> list[Row]:
        """All measurements."""
        return [dict(row) for record in self.finished for row in record.rows]

    @property
    def seconds(self) -> float:
        """Sum of the durations of the finished points."""
        seconds: float = sum(record.seconds for record in self.finished)
        return seconds

    @property
    def retried(self) -> int:
        """Number of restarts after a worker died, over all finished points."""
        return sum(record.attempts - 1 for record in self.finished)
