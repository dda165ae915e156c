"""One command at a time writes to a folder, and leaves no name of the machine behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from hessblocks.errors import RunError
from hessblocks.storage.manifest import HOLDER, held

HOLD = """
import sys
from pathlib import Path
from hessblocks.storage.manifest import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_named_and_its_lock_goes_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(RunError, match=f"in use by process {other.pid} on .* since"),
            held(tmp_path),
        ):
            pass
        assert (tmp_path / HOLDER).exists()
        other.kill()
        other.wait()
    with held(tmp_path):
        pass


def test_the_lock_removes_its_holder_file(tmp_path: Path) -> None:
    with held(tmp_path):
        assert (tmp_path / HOLDER).exists()
    assert not (tmp_path / HOLDER).exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match=r"--out: .*inside cannot be written"),
        held(tmp_path / "file" / "inside"),
    ):
        pass
