"""`hessblocks report`: the HTML page of runs and studies that are finished, or as far as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli import options
from hessblocks.errors import ArgumentError, RunError
from hessblocks.shown import printable

NAMED = 5
"""Folders that a refusal lists."""


@options.taking
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, studies or folders of studies."),
    ],
    *,
    screen: options.Screen,
) -> None:
    """Write figures and report.html into run folders, from their files alone.

    Each page goes into its own folder and nothing is measured: there is no --out, --seed or --device.
    What a run or study lacks is listed, on the page and here.
    """
    writers = {folder: _study_page if holds_studies(folder) else _run_page for folder in folders}
    for folder in folders:
        _refuse_model(folder)
    written = [write(folder) for folder, write in writers.items()]
    pages, lacking = [page for page, _ in written], [line for _, lines in written for line in lines]
    found = {"command": "report", "reports": list(map(str, pages)), "missing": lacking}
    lines = [*(f"missing {line}" for line in lacking), *(f"report  {page}" for page in pages)]
    print(json.dumps(found) if screen.json else "\n".join(map(printable, lines)))


def _refuse_model(folder: Path) -> None:
    """A page inside a saved model would be a foreign file there."""
    from hessblocks.storage import MANIFEST

    if (folder / MANIFEST).is_file():
        raise ArgumentError(
            f"DIR: {folder} is a saved model or a checkpoint, which has no page; give the folder of its run."
        )


def holds_studies(folder: Path) -> bool:
    """Whether `folder` is of studies; False means that it is of a run."""
    from hessblocks.storage import refuse_links
    from hessblocks.studies import is_study_folder

    refuse_links(folder)
    try:
        if is_study_folder(folder):
            return True
        if (folder / "config.json").is_file():
            return False
    except OSError as error:
        raise RunError(
            f"DIR: {folder} cannot be read ({error.strerror}); change its permissions."
        ) from error
    below = [str(path.parent) for path in sorted(folder.glob("*/config.json"))]
    more = ", ..." if len(below) > NAMED else ""
    also = f"; such are {', '.join(below[:NAMED])}{more}" if below else ""
    raise ArgumentError(
        f"DIR: {folder} has no config.json; expected a folder that a command wrote with --out{also}"
    )


def _run_page(folder: Path) -> tuple[Path, list[str]]:
    """The page of a run, which lacks nothing."""
    from hessblocks.report import write_curvature_report, write_report
    from hessblocks.storage import held, is_curvature_run

    with held(folder):
        write = write_curvature_report if is_curvature_run(folder) else write_report
        return write(folder), []


def _study_page(folder: Path) -> tuple[Path, list[str]]:
    """The page of a folder of studies, and a line for each study that is not whole."""
    from hessblocks.report import missing_lines, write_gallery
    from hessblocks.studies import names, refreshed

    with refreshed(folder):
        return write_gallery(folder, names()), missing_lines(folder)
