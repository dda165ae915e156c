"""The store: durable lines, damage kept aside, versions, one command at a time."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.tests import toy
from hessblocks.errors import RunError
from hessblocks.storage.tables import Row
from hessblocks_studies.engine.point import Outcome, canonical
from hessblocks_studies.engine.store import DAMAGED, POINTS, opened, read
from tests.synced import synced_files

TOY_POINTS = [toy.point(toy.ToySettings(number=number)) for number in range(4)]


def fill(folder: Path, count: int = 3) -> None:
    with opened(folder) as store:
        for point in TOY_POINTS[:count]:
            store.add(Outcome(point=point, rows=tuple(toy.measure(point.settings)), seconds=1.0))


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path)
    store = read(tmp_path)
    assert len(store) == 3
    stored = store.of(TOY_POINTS)
    assert stored.missing == [TOY_POINTS[3]]
    assert stored.rows == [row for p in TOY_POINTS[:3] for row in toy.measure(p.settings)]
    assert stored.seconds == 3.0


MIXED: list[Row] = [
    {"variant": "a", "seed": 1, "step": 0, "value": 0.5, "tuned": True, "start": None},
    {"variant": "a", "seed": 1.0, "step": 1, "value": 0.5, "tuned": 1, "start": None},
    {"variant": "a", "seed": True, "step": 2, "value": 0.5, "start": None},
]
"""1, 1.0 and true are equal to Python; the last row has one name less."""


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_what_rows_have_in_common_stands_once(tmp_path: Path, count: int) -> None:
    rows = tuple(MIXED[:count])
    with opened(tmp_path) as store:
        store.add(Outcome(point=TOY_POINTS[0], rows=rows))
    record = json.loads((tmp_path / POINTS).read_bytes())["record"]
    same = {"variant": "a", "value": 0.5, "start": None}
    assert record["common"] == (same if count > 1 else {})
    found = read(tmp_path).of(TOY_POINTS[:1]).rows
    assert [json.dumps(row, sort_keys=True) for row in found] == [
        json.dumps(row, sort_keys=True) for row in rows
    ]


def test_lines_of_the_first_version_are_read(tmp_path: Path) -> None:
    """Written out as that version did: every row whole."""
    record = {"key": TOY_POINTS[0].key, "rows": MIXED, "seconds": 1.5, "attempts": 2}
    checksum = hashlib.sha256(canonical(record).encode()).hexdigest()[:16]
    line = canonical({"version": 1, "checksum": checksum, "record": record})
    (tmp_path / POINTS).write_text(line + "\n")
    stored = read(tmp_path).of(TOY_POINTS[:1])
    assert (stored.rows, stored.seconds, stored.retried) == (MIXED, 1.5, 1)


def test_rows_come_in_the_order_of_the_points_asked_for(tmp_path: Path) -> None:
    fill(tmp_path)
    assert [row["number"] for row in read(tmp_path).of(TOY_POINTS[::-1]).rows] == [2, 1, 0]


def test_of_two_records_of_a_point_the_first_counts(tmp_path: Path) -> None:
    """A point is measured once; what another copy of the store appended changes no number."""
    for seconds in (1.0, 2.0):
        with opened(tmp_path / str(seconds)) as store:
            store.add(Outcome(point=TOY_POINTS[0], rows=(), seconds=seconds))
    first, second = ((tmp_path / name / POINTS).read_bytes() for name in ("1.0", "2.0"))
    (tmp_path / POINTS).write_bytes(first + second)
    assert read(tmp_path).of(TOY_POINTS[:1]).seconds == 1.0


def test_a_point_is_on_the_disk_before_it_counts_as_stored(tmp_path: Path, monkeypatch) -> None:
    synced = synced_files(monkeypatch)
    fill(tmp_path, 1)
    status = (tmp_path / POINTS).stat()
    assert synced == [(status.st_ino, status.st_size)]


@pytest.mark.parametrize("failing", ["fsync", "write"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_point_that_could_not_be_stored_leaves_the_file_as_it_was(
    failing: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full after half of a line; the next command must find whole lines alone."""
    fill(tmp_path, before)
    path, plain = tmp_path / POINTS, os.write
    held = path.read_bytes() if before else b""

    def full(descriptor: int, content: bytes = b"") -> int:
        if failing == "write" and not written:
            written.append(plain(descriptor, bytes(content)[: len(content) // 2]))
            return written[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    written: list[int] = []
    with opened(tmp_path) as store:
        monkeypatch.setattr(os, failing, full)
        with pytest.raises(RunError, match=r"cannot be written .*No space left"):
            store.add(Outcome(point=TOY_POINTS[3], rows=(), seconds=1.0))
        monkeypatch.undo()
        assert path.read_bytes() == held
        store.add(Outcome(point=TOY_POINTS[3], rows=(), seconds=1.0))
    assert len(read(tmp_path)) == before + 1
    assert not (tmp_path / DAMAGED).exists()


def damage_byte(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"square":1', b'"square":7'), lines[2]]


DAMAGES = {
    "one digit changed": damage_byte,
    "torn in the middle of the last line": lambda lines: [*lines[:2], lines[2][:20]],
    "no JSON": lambda lines: [b"\x00\xff", *lines[1:]],
    "JSON but no record": lambda lines: [b"[1, 2]", *lines[1:]],
    "a field too many": lambda lines: [
        lines[0],
        lines[1],
        json.dumps({**json.loads(lines[2]), "checksum": "0"}).encode(),
    ],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_line_is_kept_aside_and_its_point_redone(tmp_path: Path, damage) -> None:
    fill(tmp_path)
    whole = (tmp_path / POINTS).read_bytes()
    lines = damage(whole.splitlines())
    (tmp_path / POINTS).write_bytes(b"\n".join(lines) + b"\n" * (len(lines[-1]) > 20))
    bad = [line for line in lines if line not in whole.splitlines()]
    with pytest.warns(UserWarning, match="1 damaged line"), opened(tmp_path) as store:
        assert len(store) == 2
    assert (tmp_path / DAMAGED).read_bytes().splitlines() == bad
    missing = read(tmp_path).of(TOY_POINTS[:3]).missing
    assert len(missing) == 1
    with opened(tmp_path) as store:  # no second warning: the store is clean
        rows = tuple(toy.measure(missing[0].settings))
        store.add(Outcome(point=missing[0], rows=rows, seconds=1.0))
    assert sorted((tmp_path / POINTS).read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_store_of_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    fill(tmp_path)
    content = (tmp_path / POINTS).read_bytes() + b'{"version":3,"checksum":"","record":{}}\n'
    (tmp_path / POINTS).write_bytes(content)
    with pytest.raises(RunError, match=r"newer hessblocks .*version 3.*upgrade"), opened(tmp_path):
        pass
    assert (tmp_path / POINTS).read_bytes() == content


HOLD = """
import sys, time
from pathlib import Path
from hessblocks.storage.locks import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_command_is_refused_and_a_dead_one_is_no_hindrance(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            in_use = f"in use by process {holder.pid} on"
            with pytest.raises(RunError, match=in_use), opened(tmp_path):
                pass
        finally:
            holder.kill()
    with opened(tmp_path) as store:
        assert len(store) == 0


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch) -> None:
    fill(tmp_path, 2)
    before = (tmp_path / POINTS).read_bytes()

    def half(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as store:
        monkeypatch.setattr("hessblocks_studies.engine.store.os.write", half)
        with pytest.raises(RunError, match="No space left"):
            store.add(Outcome(point=TOY_POINTS[2], rows=()))
        monkeypatch.undo()
    assert (tmp_path / POINTS).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"out: .* cannot be written"),
        opened(tmp_path / "file" / "x"),
    ):
        pass
