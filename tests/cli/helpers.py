"""The command line in this process, and tiny sizes."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hessblocks.cli.app import main

SIZES = ["--depth", "2", "--width", "16", "--heads", "2", "--context", "16", "--vocab-size", "260"]
TRAINING = [
    "--steps",
    "12",
    "--batch-size",
    "4",
    "--evaluate-every",
    "5",
    "--checkpoint-every",
    "4",
]
CURVATURE = ["--curvature-sequences", "2", "--curvature-tokens", "6", "--curvature-probes", "4"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left on the terminal."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True)
class Shell:
    """Runs commands in this process."""

    capture: pytest.CaptureFixture[str]
    code: Path

    def __call__(self, *words: object) -> Outcome:
        self.capture.readouterr()
        status = main([str(word) for word in words])
        captured = self.capture.readouterr()
        return Outcome(status=status, output=captured.out, errors=captured.err)

    def compare(self, out: Path, *words: object) -> Outcome:
        """A tiny comparison of pre-ln and sas-p; later words win."""
        presets = ("--presets", "pre-ln,sas-p", "--data", self.code)
        return self("compare", *presets, *SIZES, *TRAINING, *CURVATURE, "--out", out, *words)

    def train(self, out: Path, *words: object) -> Outcome:
        """A tiny run of sas."""
        return self("train", "sas", "--data", self.code, *SIZES, *TRAINING, "--out", out, *words)


def use_the_terminal() -> None:
    """In a forked process: write to its own standard output and error, which pytest replaced."""
    sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)


def sentence(outcome: Outcome) -> str:
    """The one line of complaint, after what was done before it."""
    *_, last = outcome.errors.strip().splitlines()
    assert "Traceback" not in outcome.errors
    return last
