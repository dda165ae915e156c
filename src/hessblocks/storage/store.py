"""Store the measurements of a command, one JSON line per finished point, so that it can resume.

A line is {"version", "record"}. Values that all rows of a record share are stored once, under
"common". Lines are only appended. Each line is forced to disk before the next point begins.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.storage.files import append, atomic_path, numbered, parse_json

VERSION = 3
"""Version of new lines. Lines of version 2, which have a checksum too, are also read."""
POINTS = "points.jsonl"
DAMAGED = "points.damaged"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Stored measurements of a finished point."""

    key: str
    """Unique key of the point."""
    rows: tuple[Mapping[str, Any], ...]
    """Measurements of the point."""
    seconds: float
    """Duration in seconds."""
    attempts: int
    """Number of times that the point was started."""

    def line(self) -> bytes:
        """Encode the record as a line of the file."""
        common, rows = _apart(self.rows)
        record = {**vars(self), "common": common, "rows": rows}
        return canonical({"version": VERSION, "record": record}).encode() + b"\n"


class Store:
    """Finished points of a folder, by key; opened by `mended_store` or `read_store` (read only)."""

    def __init__(self, folder: Path, records: dict[str, Record], damaged: int = 0) -> None:
        self.folder = folder
        self.damaged = damaged
        """Number of damaged lines in the file."""
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def get(self, key: str) -> Record | None:
        """Return the record of a key; None if there is none."""
        return self._records.get(key)

    def add(
        self, key: str, rows: Iterable[Mapping[str, Any]], seconds: float = 0.0, attempts: int = 1
    ) -> Record:
        """Append a finished point and force it to disk.

        Args:
            key: unique key of the point.
            rows: measurements of the point, JSON values.
            seconds: duration, rounded to milliseconds.
            attempts: number of times that the point was started.

        Returns:
            The record, as a later call reads it.

        Raises:
            RunError: the file cannot be written (full disk), or a number is not finite.
        """
        record = Record(key=key, rows=tuple(rows), seconds=round(seconds, 3), attempts=attempts)
        try:
            line = record.line()
        except ValueError as error:
            raise RunError(f"{key}: one of its numbers is not finite.") from error
        append(self.folder / POINTS, line, force=True)
        return self._records.setdefault(key, record)


def canonical(value: Any) -> str:
    """Encode `value` as canonical JSON: sorted names, no spaces, only finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mended_store(folder: Path) -> Store:
    """Open the store of a folder that this process has locked; move damaged lines away first.

    Returns:
        The store, for reading and adding.

    Raises:
        RunError: another version wrote the store, or it cannot be read.

    Warns:
        UserWarning: lines were damaged; they are now in `points.damaged`.
    """
    records, damaged = _load(folder / POINTS)
    if damaged:
        append(folder / DAMAGED, b"".join(line.rstrip(b"\n") + b"\n" for line in damaged))
        with atomic_path(folder / POINTS) as temporary:
            temporary.write_bytes(b"".join(record.line() for record in records.values()))
        warnings.warn(
            f"{folder / POINTS}: {len(damaged)} damaged line(s) kept aside in {DAMAGED}; what they "
            "held is measured again.",
            stacklevel=4,
        )
    return Store(folder, records)


def read_store(folder: Path) -> Store:
    """Read the store of a folder without a lock; damaged lines are skipped and counted.

    Returns:
        The store, for reading only.

    Raises:
        RunError: another version wrote the store, or it cannot be read.
    """
    records, damaged = _load(folder / POINTS)
    return Store(folder, records, damaged=len(damaged))


def _load(path: Path) -> tuple[dict[str, Record], list[bytes]]:
    """Read the first record of each key, and the damaged lines."""
    records: dict[str, Record] = {}
    damaged = []
    for _, line in numbered(path):
        record = _parse(path, line) if line.endswith(b"\n") else None
        if record is None:
            damaged.append(line)
        else:
            records.setdefault(record.key, record)
    return records, damaged


def _parse(path: Path, line: bytes) -> Record | None:
    try:
        entry = parse_json(line.decode())
        version, record = entry["version"], dict(entry["record"])
        if version not in (2, VERSION):
            raise RunError(
                f"{path}: written by another version of hessblocks (store version {version}, this "
                f"one reads 2 to {VERSION}); use that version, or choose another --out."
            )
        common = record.pop("common")
        rows = tuple({**common, **row} for row in record.pop("rows"))
        return Record(rows=rows, **record)
    except (ValueError, KeyError, TypeError):
        return None


def _apart(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Split rows into the values that all of them share, and the rest of each row."""
    if len(rows) < 2:
        return {}, list(rows)
    spelled = [{name: canonical(value) for name, value in row.items()} for row in rows]
    names = dict(set.intersection(*(set(row.items()) for row in spelled)))
    rest = [{name: value for name, value in row.items() if name not in names} for row in rows]
    return {name: rows[0][name] for name in sorted(names)}, rest
