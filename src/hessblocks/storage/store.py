"""Store what a command has measured, one JSON line per finished point, so that it can go on.

A line is {"version", "record"}. In a record, what all rows of a point have in common stands once,
under "common". Lines are only ever appended, and forced to disk before the next point is taken.
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
"""Version of a line; version 2, which has a checksum beside its record, is read too."""
POINTS = "points.jsonl"
DAMAGED = "points.damaged"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A finished point as it is stored."""

    key: str
    """A text that two points share only if they are the same."""
    rows: tuple[Mapping[str, Any], ...]
    """Its measurements."""
    seconds: float
    """Time it took."""
    attempts: int
    """Times it was started."""

    def line(self) -> bytes:
        """Write the record as it stands in the file."""
        common, rows = _apart(self.rows)
        record = {**vars(self), "common": common, "rows": rows}
        return canonical({"version": VERSION, "record": record}).encode() + b"\n"


class Store:
    """Finished points of a folder, by key; from `mended_store` to write, `read_store` to read."""

    def __init__(self, folder: Path, records: dict[str, Record], damaged: int = 0) -> None:
        self.folder = folder
        self.damaged = damaged
        """Lines of the file that hold no record."""
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def get(self, key: str) -> Record | None:
        """Find what was stored under a key."""
        return self._records.get(key)

    def add(
        self, key: str, rows: Iterable[Mapping[str, Any]], seconds: float = 0.0, attempts: int = 1
    ) -> Record:
        """Append a finished point and force it to disk.

        Args:
            key: key of the point.
            rows: its measurements, JSON values.
            seconds: time it took; milliseconds are kept.
            attempts: times it was started.

        Returns:
            The point as it is read back.

        Raises:
            RunError: the file cannot be written (full disk), or a number is not finite.
        """
        spent = round(seconds, 3)
        record = Record(key=key, rows=tuple(rows), seconds=spent, attempts=attempts)
        try:
            line = record.line()
        except ValueError as error:
            raise RunError(f"{key}: a number of it is not finite.") from error
        append(self.folder / POINTS, line, force=True)
        return self._records.setdefault(key, record)


def canonical(value: Any) -> str:
    """Spell `value` as JSON in one way: sorted names, no spaces, only finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def mended_store(folder: Path) -> Store:
    """Open the store of a folder that this process holds; damaged lines are put aside first.

    Returns:
        The store, to read and to add to.

    Raises:
        RunError: another version wrote it, or it cannot be read.

    Warns:
        UserWarning: lines were damaged; they are kept in `points.damaged`.
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
    """Read the store of `folder` as it stands, not held; damaged lines are passed over.

    Returns:
        The store, to look at only.

    Raises:
        RunError: another version wrote it, or it cannot be read.
    """
    records, damaged = _load(folder / POINTS)
    return Store(folder, records, damaged=len(damaged))


def _load(path: Path) -> tuple[dict[str, Record], list[bytes]]:
    """Read records by key, the first one of each, and the lines that hold none."""
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
            age, way = (
                ("a newer", "upgrade hessblocks or ") if version > VERSION else ("an older", "")
            )
            raise RunError(
                f"{path}: written by {age} hessblocks (store version {version}, this one reads 2 "
                f"to {VERSION}); {way}choose another --out."
            )
        common = record.pop("common")
        rows = tuple({**common, **row} for row in record.pop("rows"))
        return Record(rows=rows, **record)
    except (ValueError, KeyError, TypeError):
        return None


def _apart(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Split off the values that several rows have in common."""
    if len(rows) < 2:
        return {}, list(rows)
    spelled = [{name: canonical(value) for name, value in row.items()} for row in rows]
    common = set.intersection(*(set(row.items()) for row in spelled))
    names = {name for name, _ in common}
    rest = [{name: value for name, value in row.items() if name not in names} for row in rows]
    return {name: rows[0][name] for name in sorted(names)}, rest
