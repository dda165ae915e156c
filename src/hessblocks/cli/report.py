"""`hessblocks report`: the HTML page of runs that are finished, or as far as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli import options
from hessblocks.errors import ArgumentError, RunError


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Write figures and report.html into run folders, from their files alone.

    Each page goes into its own folder and nothing is drawn or computed: there is no --out, --seed or
    --device.
    """
    for folder in folders:
        if not _holds_a_run(folder):
            raise ArgumentError(
                f"DIR: {folder} has no config.json; expected a folder that a command wrote with --out"
            )
    from hessblocks.report.curvature_page import is_curvature_run, write_curvature_report
    from hessblocks.report.page import write_report
    from hessblocks.training import locked

    pages = []
    for folder in folders:
        with locked(folder):
            write = write_curvature_report if is_curvature_run(folder) else write_report
            pages.append(write(folder))
    if as_json:
        print(json.dumps({"command": "report", "reports": [str(page) for page in pages]}))
        return
    for page in pages:
        print(f"report  {page}")


def _holds_a_run(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError as error:
        raise RunError(
            f"DIR: {folder} cannot be read ({error.strerror}); change its permissions."
        ) from error
