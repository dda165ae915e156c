"""`reproduce all` killed ten times ends with the numbers of one left alone."""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from experiments.tests import toy
from experiments.tests.kills import differences, killed_and_finished, reproduce, stored, unclocked
from hessblocks_studies.blocks_paper.speed import TOKEN_TIME
from hessblocks_studies.catalogue import names
from hessblocks_studies.engine import POINTS
from hessblocks_studies.shared.step_times import STEP_TIME


def spoil_a_digit(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"square":0', b'"square":1'), *lines[1:]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lines: lines[::-1], []),
        (spoil_a_digit, ["toy: other numbers at "]),
        (lambda lines: lines[:-1], ["toy: 1 points in one only"]),
        (lambda lines: [*lines, lines[0]], ["toy: a point is there twice in "]),
    ],
    ids=["another order", "a digit", "a point lost", "a point twice"],
)
def test_differences_are_seen(tmp_path: Path, spoil, said: list[str]) -> None:
    toy.run(tmp_path / "alone" / "toy", [toy.ToySettings(number=number) for number in range(3)])
    shutil.copytree(tmp_path / "alone", tmp_path / "killed")
    points = tmp_path / "killed" / "toy" / POINTS
    points.write_bytes(b"".join(spoil(points.read_bytes().splitlines(keepends=True))))
    found = differences(tmp_path / "alone", tmp_path / "killed")
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def test_measured_seconds_are_not_a_difference_if_all_rows_of_a_point_are_seconds() -> None:
    records = [
        {"common": {"quantity": quantity}, "rows": [{"variant": "sas", "value": value}]}
        for quantity in (STEP_TIME, TOKEN_TIME, "validation_loss")
        for value in (1.0, 2.0)
    ]
    found = [unclocked(record) for record in records]
    assert [found[at] == found[at + 1] for at in (0, 2, 4)] == [True, True, False]


@pytest.mark.slow
def test_ten_kills_of_the_whole_change_nothing(tmp_path: Path) -> None:
    """About 20 minutes on two idle cores; `experiments/tests/kills.py` runs it by hand."""
    start = time.monotonic()
    subprocess.run(reproduce("all", "smoke", tmp_path / "alone"), check=True)
    longest = 2 * (time.monotonic() - start) / 11  # ten kills of half that each: most of the way
    generator = random.Random(time.time_ns())
    delays = [generator.uniform(1, longest) for _ in range(10)]
    command = reproduce("all", "smoke", tmp_path / "killed")
    assert killed_and_finished(command, delays, tmp_path / "killed") == 10, delays
    assert stored(tmp_path / "killed").keys() == set(names())
    assert differences(tmp_path / "alone", tmp_path / "killed") == [], delays
