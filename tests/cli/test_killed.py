"""The real command in a process of its own, killed at random moments."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import CURVATURE, SIZES, TRAINING
from tests.training.helpers import files, numbers

RUN = "from hessblocks.cli import main; raise SystemExit(main())"


def command(code: Path, out: Path) -> list[str]:
    words = ["compare", "--presets", "pre-ln,sas-p", "--data", str(code), "--out", str(out)]
    return [sys.executable, "-c", RUN, *words, *SIZES, *TRAINING, *CURVATURE, "--steps", "300"]


@pytest.mark.slow
def test_the_command_killed_ten_times_ends_with_the_same_numbers(
    tmp_path: Path, code: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(shared_cache))
    subprocess.run(command(code, tmp_path / "whole"), check=True)
    draw = random.Random(0)
    killed = 0
    for _ in range(10):
        process = subprocess.Popen(command(code, tmp_path / "killed"))
        try:
            process.wait(draw.uniform(2, 12))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    subprocess.run(command(code, tmp_path / "killed"), check=True)
    assert killed >= 5
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    figures = [name for name in files(tmp_path / "whole") if "figures" not in name]
    assert [name for name in files(tmp_path / "killed") if "figures" not in name] == figures
