"""A study whose numbers ask for more points gets them, killed or not; all readers see the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.tests import toy
from hessblocks_studies.engine import Executor, Rows, Silent, Stored, grown, opened
from hessblocks_studies.runner import StudyResult, measure_study


def more(rows: Rows, settings: Sequence[toy.ToySettings]) -> list[toy.ToySettings]:
    """One more number until the squares are 50 together."""
    enough = sum(row["square"] for row in rows) >= 50
    return [] if enough else [replace(settings[-1], number=len(settings))]


STUDY = replace(toy.STUDY, more=more)
FIRST = [toy.ToySettings(number=number) for number in range(3)]


def run(folder: Path, first: Sequence[toy.ToySettings] = FIRST) -> StudyResult:
    made = [toy.point(each) for each in first]
    return measure_study(STUDY, made, folder=folder, config={}, where=Executor(), reporter=Silent())


def test_points_are_added_until_the_numbers_decide(tmp_path: Path) -> None:
    """0 + 1 + 4 + 9 + 16 = 30 is not enough, with 25 it is."""
    result = run(tmp_path / "toy")
    assert [row["number"] for row in result.rows] == [0, 1, 2, 3, 4, 5]
    assert (result.points, result.measured) == (6, 6)
    again = run(tmp_path / "toy")
    assert (again.points, again.measured, again.rows) == (6, 0, result.rows)


def test_a_reader_finds_the_points_that_were_added_and_those_that_are_due(tmp_path: Path) -> None:
    made = [toy.point(each) for each in FIRST]
    with opened(tmp_path / "toy") as store:
        assert grown(STUDY, made, store) == made
        for number in (0, 1, 2):
            store.add(made[number].key, [{"number": number, "square": number**2}], 0.0, 1)
        found = grown(STUDY, made, store)
        assert [point.settings.number for point in found] == [0, 1, 2, 3]
        assert [one.settings.number for one in Stored.of(store, found).missing] == [3]
        assert grown(toy.STUDY, made, store) == made
    assert run(tmp_path / "toy").measured == 3
