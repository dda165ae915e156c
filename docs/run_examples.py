"""Run examples and keep what each cell prints, for the site.

Run `python docs/run_examples.py [NAME ...]`. It writes examples/outputs/NAME.json, a text per cell
of code. Without names all run but that of a pretrained model, which takes minutes and 9 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext

from hessblocks.storage import write_json

EXAMPLES = Path(__file__).parents[1] / "examples"
LARGE = "a_pretrained_model"
MARK = "\x1e"
"""Printed behind each cell."""


def printed(script: Path) -> list[str]:
    """What each cell of code prints, run in a folder of its own.

    Raises:
        CalledProcessError: it fails.
    """
    notebook = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    with TemporaryDirectory() as folder:
        told = Path(folder, script.name)
        told.write_text("".join(f"{cell}\nprint({MARK!r})\n" for cell in cells), encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, str(told)],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [text.strip("\n") for text in ran.stdout.split(MARK)[:-1]]


def main(names: list[str]) -> None:
    """Run some examples, or all that are small."""
    for script in sorted(EXAMPLES.glob("*.py")):
        if script.stem in names or (not names and script.stem != LARGE):
            write_json(EXAMPLES / "outputs" / f"{script.stem}.json", {"cells": printed(script)})


if __name__ == "__main__":
    main(sys.argv[1:])
