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
from hessblocks.storage.store import DAMAGED, POINTS, canonical
from hessblocks.storage.store import read_store as read
from hessblocks.storage.tables import Row
from hessblocks_studies.engine import Stored, opened
from tests.synced import synced_files

TOY_POINTS = [toy.point(toy.ToySettings(number=number)) for number in range(4)]


def fill(folder: Path, count: int = 3) -> None:
    with opened(folder) as store:
        for point in TOY_POINTS[:count]:
            store.add(point.key, toy.measure(point.settings), 1.0)


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path)
    store = read(tmp_path)
    assert len(store) == 3
    stored = Stored.of(store, TOY_POINTS)
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
        store.add(TOY_POINTS[0].key, rows)
    record = json.loads((tmp_path / POINTS).read_bytes())["record"]
    same = {"variant": "a", "value": 0.5, "start": None}
    assert record["common"] == (same if count > 1 else {})
    found = Stored.of(read(tmp_path), TOY_POINTS[:1]).rows
    assert [json.dumps(row, sort_keys=True) for row in found] == [
        json.dumps(row, sort_keys=True) for row in rows
    ]


def test_lines_with_a_checksum_are_read_beside_others(tmp_path: Path) -> None:
    """As version 2 wrote them, which committed stores have."""
    fill(tmp_path, 1)
    shared = {"attempts": 2, "seconds": 1.5, "common": {"seed": 1}, "rows": [{"a": 1}, {"a": 2}]}
    record = {"key": TOY_POINTS[1].key, **shared}
    checksum = hashlib.sha256(canonical(record).encode()).hexdigest()[:16]
    with (tmp_path / POINTS).open("a") as file:
        file.write(canonical({"version": 2, "checksum": checksum, "record": record}) + "\n")
    fill_one = toy.measure(TOY_POINTS[0].settings)
    stored = Stored.of(read(tmp_path), TOY_POINTS[:2])
    assert stored.rows == [*fill_one, {"seed": 1, "a": 1}, {"seed": 1, "a": 2}]
    assert (stored.seconds, stored.retried) == (2.5, 1)


def test_rows_come_in_the_order_of_the_points_asked_for(tmp_path: Path) -> None:
    fill(tmp_path)
    assert [row["number"] for row in Stored.of(read(tmp_path), TOY_POINTS[::-1]).rows] == [2, 1, 0]


def test_of_two_records_of_a_point_the_first_counts(tmp_path: Path) -> None:
    """A point is measured once; what another copy of the store appended changes no number."""
    for seconds in (1.0, 2.0):
        with opened(tmp_path / str(seconds)) as store:
            store.add(TOY_POINTS[0].key, (), seconds)
    first, second = ((tmp_path / name / POINTS).read_bytes() for name in ("1.0", "2.0"))
    (tmp_path / POINTS).write_bytes(first + second)
    assert Stored.of(read(tmp_path), TOY_POINTS[:1]).seconds == 1.0


def test_a_point_is_on_the_disk_before_it_counts_as_stored(tmp_path: Path, monkeypatch) -> None:
    synced = synced_files(monkeypatch)
    fill(tmp_path, 1)
    status = (tmp_path / POINTS).stat()
    assert synced == [(status.st_ino, status.st_size)]


@pytest.mark.parametrize("failing", ["fsync", "write"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_point_that_could_not_be_stored_does_not_change_the_file(
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
            store.add(TOY_POINTS[3].key, (), 1.0)
        monkeypatch.undo()
        assert path.read_bytes() == held
        store.add(TOY_POINTS[3].key, (), 1.0)
    assert len(read(tmp_path)) == before + 1
    assert not (tmp_path / DAMAGED).exists()


def lose_a_name(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"seconds":', b'"second":'), lines[2]]


DAMAGES = {
    "a field of another name": lose_a_name,
    "torn in the middle of the last line": lambda lines: [*lines[:2], lines[2][:20]],
    "no JSON": lambda lines: [b"\x00\xff", *lines[1:]],
    "JSON but no record": lambda lines: [b"[1, 2]", *lines[1:]],
    "a field too many": lambda lines: [
        lines[0],
        lines[1],
        json.dumps({"version": 3, "record": json.loads(lines[2])["record"] | {"more": 1}}).encode(),
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
    missing = Stored.of(read(tmp_path), TOY_POINTS[:3]).missing
    assert len(missing) == 1
    with opened(tmp_path) as store:  # no second warning: the store is clean
        rows = tuple(toy.measure(missing[0].settings))
        store.add(missing[0].key, rows, 1.0)
    assert sorted((tmp_path / POINTS).read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (4, r"another version .*version 4, .* 2 to 3\); use that version, or choose another --out"),
        (1, r"another version .*version 1, .* 2 to 3\); use that version, or choose another --out"),
    ],
)
def test_a_store_of_another_version_is_refused_and_untouched(
    tmp_path: Path, version: int, words: str
) -> None:
    fill(tmp_path)
    line = canonical({"version": version, "checksum": "", "record": {}}) + "\n"
    content = (tmp_path / POINTS).read_bytes() + line.encode()
    (tmp_path / POINTS).write_bytes(content)
    with pytest.raises(RunError, match=words), opened(tmp_path):
        pass
    assert (tmp_path / POINTS).read_bytes() == content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [1.0, float("nan")]])
def test_what_is_not_finite_is_not_stored(tmp_path: Path, value: object) -> None:
    fill(tmp_path, 1)
    before = (tmp_path / POINTS).read_bytes()
    with opened(tmp_path) as store:
        with pytest.raises(RunError, match="mine: one of its numbers is not finite"):
            store.add("mine", [{"a": value}])
        assert store.get("mine") is None
    assert (tmp_path / POINTS).read_bytes() == before


HOLD = """
import sys, time
from pathlib import Path
from hessblocks.storage.manifest import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_command_is_refused_and_a_dead_one_is_not_a_hindrance(tmp_path: Path) -> None:
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


def test_a_full_disk_does_not_change_the_store(tmp_path: Path, monkeypatch) -> None:
    fill(tmp_path, 2)
    before = (tmp_path / POINTS).read_bytes()

    def half(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as store:
        monkeypatch.setattr("hessblocks.storage.files.os.write", half)
        with pytest.raises(RunError, match="No space left"):
            store.add(TOY_POINTS[2].key, ())
        monkeypatch.undo()
    assert (tmp_path / POINTS).read_bytes() == before


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"out: .* cannot be written"),
        opened(tmp_path / "file" / "x"),
    ):
        pass
