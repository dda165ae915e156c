"""Workers keep the memory that each step frees and asks for again."""

import pytest

from experiments.tests import toy
from hessblocks.storage.tables import Row
from hessblocks_studies.engine import Executor
from tests.test_malloc import PAGES, faults, pytestmark  # noqa: F401


def measure(settings: toy.ToySettings) -> list[Row]:
    """A point of a study."""
    faults()
    return [{"then": faults()}]


@pytest.mark.slow
def test_a_worker_keeps_them() -> None:
    (outcome,) = Executor(1).outcomes(measure, [toy.point(toy.ToySettings(number=0))])
    assert outcome.rows[0]["then"] < PAGES / 100
