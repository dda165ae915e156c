"""`hessblocks finetune` on the command line."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hessblocks.cli.app import main
from hessblocks.cli.terminal.console import _spread

QUICK = ("--epochs", "12", "--batch-size", "8", "--learning-rate", "1e-2", "--device", "cpu")


def test_it_shows_what_a_model_is_worth_and_the_line_that_uses_it(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", str(saved["sas-p"]), "--data", str(reviews), *QUICK]
    words += ["--out", str(tmp_path / "out")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "always 'praise'" in shown
    assert "of 24 held-out texts" in shown
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["accuracy"] > 0.9
    assert f"{found['after']['accuracy']:.3f} ±" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("next    ")]
    _, *command = shlex.split(line.removeprefix("next    "))
    ran = subprocess.run(
        [sys.executable, *command[:-1], "a good film"], capture_output=True, text=True, check=True
    )
    assert "'label': 'praise'" in ran.stdout


def test_the_folder_has_no_page_and_is_checked(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["finetune", str(saved["gpt2"]), "--data", str(reviews), "--out", out]) == 0
    assert main(["report", out]) == 2
    assert "is of `hessblocks finetune`, which has no page" in capsys.readouterr().err
    assert main(["check", out]) == 0


def test_an_error_is_not_zero_where_all_answers_are_alike() -> None:
    assert _spread(1.0, 20) == pytest.approx((22 / 24 * 2 / 24 / 24) ** 0.5)
    assert _spread(0.5, 10_000) == pytest.approx(0.005, rel=1e-3)
