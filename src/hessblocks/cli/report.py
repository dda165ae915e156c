"""`hessblocks report`: the HTML page of runs that are finished, or as far as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli import options
from hessblocks.errors import ArgumentError


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Write figures and report.html into run folders, from their files alone."""
    for folder in folders:
        if not (folder / "config.json").is_file():
            raise ArgumentError(
                f"DIR: {folder} has no config.json; expected a folder that a command wrote with --out"
            )
    from hessblocks.report.curvature_page import is_curvature_run, write_curvature_report
    from hessblocks.report.page import write_report

    pages = [
        write_curvature_report(folder) if is_curvature_run(folder) else write_report(folder)
        for folder in folders
    ]
    if as_json:
        print(json.dumps({"command": "report", "reports": [str(page) for page in pages]}))
        return
    for page in pages:
        print(f"report  {page}")
