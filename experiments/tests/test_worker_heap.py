"""Workers keep the memory that each step frees and asks for again."""

import pytest

from experiments.tests import toy
from hessblocks.storage.tables import Row
from hessblocks_studies.engine.workers import LocalProcesses
from tests.test_malloc import PAGES, faults, pytestmark  # noqa: F401


def measure(settings: toy.ToySettings) -> list[Row]:
    """A point of a study."""
    faults()
    return [{"then": faults()}]


@pytest.mark.slow
def test_a_worker_keeps_them() -> None:
    crew = LocalProcesses(1)
    (outcome,) = crew.outcomes(measure, [toy.point(toy.ToySettings(number=0))])
    crew.close()
    assert outcome.rows[0]["then"] < PAGES / 100
