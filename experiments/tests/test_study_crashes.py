"""Whatever stops `hessblocks reproduce` at whatever write, it ends with the results of an
undisturbed one."""

from pathlib import Path

import pytest

from experiments.tests import reproducing
from tests.crashes import ordeal
from tests.crashes.disk import ERRORS, KILLS

CASES = 50
"""Calls at which each kind of fault comes, spread evenly: about 7 minutes on two idle cores."""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    reproducing.known(monkeypatch)


@pytest.mark.parametrize("kind", [*KILLS, *ERRORS])
def test_it_survives_a_fault_at_any_write(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ordeal.undisturbed("reproduce")
    count, wrong = ordeal.survived("reproduce", kind, CASES, tmp_path)
    with capsys.disabled():
        if kind == KILLS[0]:
            print(f"\nreproduce: {len(whole.calls)} calls\n{ordeal.calls_table(whole.calls)}")
        print(f"\nreproduce, {kind}: {count} of {len(whole.calls)} calls, {len(wrong)} faults")
    assert wrong == []


def test_every_change_of_the_disk_is_a_call() -> None:
    whole = ordeal.undisturbed("reproduce")
    assert whole.unseen == []
    assert len(whole.calls) > 100
