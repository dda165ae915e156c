"""SIGINT, SIGTERM and SIGHUP end `hessblocks reproduce` as they end every command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.tests import reproducing
from tests.cli.helpers import Shell, sentence
from tests.cli.test_signals import NUMBERS, heard, said_when_ended  # noqa: F401

REPRODUCE = (
    "hessblocks: interrupted; the same command goes on where it stopped, and `hessblocks report` "
    "shows what there is."
)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_a_signal_ends_it_with_a_sentence(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(
        "hessblocks_studies.run_studies", lambda *_, **__: signal.raise_signal(number)
    )
    outcome = shell("reproduce", "fig3a")
    assert outcome.status == 128 + number
    assert sentence(outcome) == REPRODUCE


@pytest.mark.slow
def test_it_goes_on_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproducing.known(monkeypatch)
    step = "hessblocks.storage.store.Store.add"
    said = said_when_ended("reproduce", step, signal.SIGTERM, tmp_path / "out")
    assert said == REPRODUCE


@pytest.mark.slow
def test_the_terminal_interrupts_a_study_with_its_workers(tmp_path: Path) -> None:
    """The signal reaches all processes of the terminal; one of them says the sentence."""
    words = [
        "reproduce",
        "one-matrix",
        "--scale",
        "smoke",
        "--workers",
        "2",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "hessblocks", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "one-matrix" / "summary.json").exists():  # workers start right after
        time.sleep(0.01)
        assert process.poll() is None
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, said
    assert said.splitlines()[-1] == REPRODUCE
    assert "Traceback" not in said
