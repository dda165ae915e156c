"""What a study has measured so far, on disk: one JSON line a finished point, never half a line.

A line is {"version", "checksum", "record"}, the checksum over the record. In a record, what all rows of a point
have in common stands once, under "common". Lines are only ever appended, and forced to disk before the next point is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hessblocks.errors import RunError
from hessblocks.storage import Row, atomic_path, held, parse_json
from hessblocks_studies.engine.point import Outcome, Point, canonical

VERSION = 2
"""Of a line; those of version 1, which have nothing in common, are read too."""
POINTS = "points.jsonl"
DAMAGED = "points.damaged"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished point as it is stored."""

    key: str
    """`Point.key`."""
    rows: tuple[Row, ...]
    """Its measurements."""
    seconds: float
    """Time it took."""
    attempts: int
    """Times it was started."""

    def line(self) -> bytes:
        """The record as it stands in the file."""
        common, rows = _apart(self.rows)
        record = {
            **vars(self),
            "seconds": round(self.seconds, 3),
            "common": common,
            "rows": rows,
        }
        checked = {"version": VERSION, "checksum": _checksum(record), "record": record}
        return canonical(checked).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a store holds of some points."""

    finished: Sequence[Record]
    """Of those that are measured, in their order."""
    missing: Sequence[Point]
    """Those that are not, in their order."""

    @property
    def rows(self) -> list[Row]:
        """All measurements."""
        return [row for record in self.finished for row in record.rows]

    @property
    def seconds(self) -> float:
        """Time that the finished points took, summed."""
        return sum(record.seconds for record in self.finished)

    @property
    def retried(self) -> int:
        """Times that a point was started again after its worker died."""
        return sum(record.attempts - 1 for record in self.finished)


class Store:
    """The finished points of one folder, by their keys; made by `opened` (to write) or `read` (to look)."""

    def __init__(self, folder: Path, records: dict[str, Record], damaged: int = 0) -> None:
        self.folder = folder
        self.damaged = damaged
        """Lines of the file that are not what was written."""
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def of(self, points: Sequence[Point]) -> Stored:
        """Which of `points` are finished, and what they gave."""
        known = self._records
        return Stored(
            finished=[known[point.key] for point in points if point.key in known],
            missing=[point for point in points if point.key not in known],
        )

    def add(self, outcome: Outcome) -> None:
        """Append a finished point and force it to disk.

        Raises:
            RunError: the file cannot be written (full disk).
        """
        record = Record(
            key=outcome.point.key,
            rows=outcome.rows,
            seconds=round(outcome.seconds, 3),  # as it is read back
            attempts=outcome.attempts,
        )
        _append(self.folder / POINTS, record.line())
        self._records[record.key] = record


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Hold `folder` and give its store; damaged lines are put aside first.

    Args:
        folder: made when missing.

    Raises:
        RunError: another process holds the folder, a newer version wrote it, or it cannot be read.

    Warns:
        UserWarning: lines were damaged; they are kept in `points.damaged`, their points are redone.
    """
    with held(folder):
        records, damaged = _load(folder / POINTS)
        if damaged:
            _set_aside(folder, records.values(), damaged)
        yield Store(folder, records)


def read(folder: Path) -> Store:
    """The store of `folder` as it stands, not held; damaged lines are passed over.

    Returns:
        The store, to look at only.

    Raises:
        RunError: a newer version wrote it, or it cannot be read.
    """
    records, damaged = _load(folder / POINTS)
    return Store(folder, records, damaged=len(damaged))


def _load(path: Path) -> tuple[dict[str, Record], list[bytes]]:
    """Records by key, first one first, and the lines that are none."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error}).") from error
    *lines, torn = content.split(b"\n")
    records: dict[str, Record] = {}
    damaged = [torn] if torn else []
    for line in lines:
        record = _parse(path, line)
        if record is None:
            damaged.append(line)
        else:
            records.setdefault(record.key, record)
    return records, damaged


def _parse(path: Path, line: bytes) -> Record | None:
    try:
        entry = parse_json(line.decode())
        version, checksum, record = entry["version"], entry["checksum"], entry["record"]
        if isinstance(version, int) and version > VERSION:
            raise RunError(
                f"{path}: written by a newer hessblocks (store version {version}, this one reads "
                f"up to {VERSION}); upgrade hessblocks or choose another --out."
            )
        if checksum != _checksum(record):
            return None
        common = record.pop("common") if version > 1 else {}
        rows = tuple({**common, **row} for row in record["rows"])
        return Record(**{**record, "rows": rows})
    except (ValueError, KeyError, TypeError):
        return None


def _apart(rows: Sequence[Row]) -> tuple[Row, list[Row]]:
    """What several rows have in common, spelled alike too, and each without it."""
    if len(rows) < 2:
        return {}, list(rows)
    spelled = [{name: canonical(value) for name, value in row.items()} for row in rows]
    common = set.intersection(*(set(row.items()) for row in spelled))
    names = {name for name, _ in common}
    rest = [{name: value for name, value in row.items() if name not in names} for row in rows]
    return {name: rows[0][name] for name in sorted(names)}, rest


def _set_aside(folder: Path, records: Iterable[Record], damaged: list[bytes]) -> None:
    """Keep the damaged lines in their own file, then write the store without them."""
    _append(folder / DAMAGED, b"".join(line + b"\n" for line in damaged))
    with atomic_path(folder / POINTS) as temporary:
        temporary.write_bytes(b"".join(record.line() for record in records))
    warnings.warn(
        f"{folder / POINTS}: {len(damaged)} damaged line(s) kept aside in {DAMAGED}; what they held is "
        "measured again.",
        stacklevel=3,
    )


def _append(path: Path, content: bytes) -> None:
    """Add `content` to the end and force it to disk; on failure the file is as it was."""
    try:
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                _write_all(file.fileno(), content)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}); free some space and start the same "
            "command again."
        ) from error


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _checksum(record: object) -> str:
    return hashlib.sha256(canonical(record).encode()).hexdigest()[:16]
