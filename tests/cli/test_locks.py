"""The report belongs to the run: nobody else writes to its folder meanwhile."""

from pathlib import Path

import pytest

from hessblocks.errors import RunError
from hessblocks.storage.manifest import held
from tests.breadth import everyday
from tests.cli.helpers import Shell, sentence


@pytest.mark.parametrize("command", everyday(["train", "compare"], "train"))
def test_the_folder_is_still_claimed_while_the_report_is_written(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    asked = []

    def try_to_enter(out: Path) -> None:
        asked.append(out)
        with pytest.raises(RunError, match="is in use by process"), held(out):
            pass

    monkeypatch.setattr("hessblocks.cli.commands.work.write_report", try_to_enter)
    few = ("--depth", 1, "--steps", 4, *(["--curvature-tokens", 4] * (command == "compare")))
    assert getattr(shell, command)(tmp_path / "out", *few).status == 0
    assert asked == [tmp_path / "out"]


def test_no_report_into_a_folder_that_another_command_writes_to(
    shell: Shell, tmp_path: Path
) -> None:
    assert shell.train(tmp_path / "out").status == 0
    with held(tmp_path / "out"):
        outcome = shell("report", tmp_path / "out")
    assert outcome.status == 1
    assert "is in use by process" in sentence(outcome)
    assert not (tmp_path / "out" / "report.html").exists()
