"""What the user may not read is one sentence, not a traceback."""

import os
from pathlib import Path

import pytest

from hessblocks.cli.app import main
from tests.cli.helpers import use_the_terminal
from tests.training.helpers import in_process_of_its_own

NOBODY = 65534


@pytest.fixture
def locked_away(tmp_path: Path) -> Path:
    """A folder with a text and a run, which its reader may not enter."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "text.py").write_text("x = 1\n" * 1000)
    (folder / "config.json").write_text("{}")
    return folder


def complaint(words: list[str], folder: Path, errors: Path) -> tuple[int | None, str]:
    """Exit status and last line of a command without permission to enter the folder."""

    main([*words[:-1], "/nowhere"])  # imports all that the user without permissions could not

    def closed() -> None:
        with errors.open("w") as file:
            os.dup2(file.fileno(), 2)
        use_the_terminal()
        folder.chmod(0)
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        os._exit(main(words))

    process = in_process_of_its_own(closed)
    process.join(600)
    folder.chmod(0o700)
    return process.exitcode, errors.read_text().splitlines()[-1]


@pytest.mark.parametrize("command", ["train sas --data", "compare --data"])
def test_text_in_a_closed_folder(locked_away: Path, tmp_path: Path, command: str) -> None:
    path = str(locked_away / "text.py")
    status, text = complaint([*command.split(), path], locked_away, tmp_path / "errors")
    assert status == 2
    assert text == (
        f"hessblocks: --data: {path} cannot be read (Permission denied); change its permissions or "
        "leave it out."
    )


def test_a_report_of_a_closed_folder(locked_away: Path, tmp_path: Path) -> None:
    status, text = complaint(["report", str(locked_away)], locked_away, tmp_path / "errors")
    assert status == 1
    assert text == (
        f"hessblocks: DIR: {locked_away} cannot be read (Permission denied); change its "
        "permissions."
    )
