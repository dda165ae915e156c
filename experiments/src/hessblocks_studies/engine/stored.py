"""What a store holds of the points of a study."""

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
    """Hold `folder` and give its store, to read and to add to; damaged lines are put aside first.

    Args:
        folder: made when missing.

    Raises:
        RunError: another process holds the folder, another version wrote it, or it cannot be read.

    Warns:
        UserWarning: lines were damaged; they are kept in `points.damaged`, their points are redone.
    """
    with held(folder):
        yield mended_store(folder)


def grown(study: Study[Any], points: Sequence[Point], store: Store) -> list[Point]:
    """List the points of a study with those of every seed that its numbers have asked for so far.

    A store tells the same seeds again, whoever reads it: where all points are measured and decide
    nothing, those of one more seed follow.

    Args:
        study: whose points they are.
        points: that it begins with.
        store: of what is measured.

    Returns:
        All of them, in their order.
    """
    found = list(points)
    while study.more and not (stored := Stored.of(store, found)).missing:
        added = study.more(stored.rows, [point.settings for point in found])
        if not added:
            break
        found += study.made(added, found[0].gpus)
    return found


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Points of a study that a store holds."""

    finished: Sequence[Any]
    """Records of those that are measured, in their order."""
    missing: Sequence[Point]
    """Those that are not, in their order."""

    @classmethod
    def of(cls, store: Store, points: Sequence[Point]) -> Self:
        """Tell which of `points` are finished, and what they gave."""
        found = [(point, store.get(point.key)) for point in points]
        missing = [point for point, record in found if record is None]
        return cls(finished=[record for _, record in found if record], missing=missing)

    @property
    def rows(self) -> list[Row]:
        """List all measurements."""
        return [dict(row) for record in self.finished for row in record.rows]

    @property
    def seconds(self) -> float:
        """Sum the time that the finished points took."""
        seconds: float = sum(record.seconds for record in self.finished)
        return seconds

    @property
    def retried(self) -> int:
        """Count how often a point was started again after its worker died."""
        return sum(record.attempts - 1 for record in self.finished)
