"""The folder of `hessblocks signal`: config.json, environment.json, results.csv and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError
from hessblocks.report import write_signal_figures
from hessblocks.storage import environment, held, write_json, write_table


def recorded(
    out: Path,
    config: Mapping[str, Any],
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write everything; what an earlier `signal` left there is replaced.

    Args:
        out: new, empty, or of an earlier `hessblocks signal`.
        config: all that the numbers depend on.
        columns: of results.csv.
        rows: one measured value each.

    Raises:
        ArgumentError: the folder holds something else.
        RunError: it cannot be written, or another process writes there.
    """
    check_folder(out)
    with held(out):
        check_folder(out)
        write_json(out / "config.json", config)
        write_json(out / "environment.json", environment())
        write_table(out / "results.csv", columns, rows)
        write_signal_figures(out)


def check_folder(out: Path) -> None:
    """Refuse a folder that holds something other than an earlier `hessblocks signal`.

    Raises:
        ArgumentError: names the folder.
    """
    try:
        entries = [path for path in out.iterdir() if not path.name.startswith(".")]
        config = json.loads((out / "config.json").read_text(encoding="utf-8")) if entries else {}
        ours = not entries or config.get("command") == "signal"
    except FileNotFoundError:
        ours = not out.exists()
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours:
        raise ArgumentError(
            f"--out: {out} holds something other than a run of `hessblocks signal`; choose a new or "
            "empty folder."
        )
