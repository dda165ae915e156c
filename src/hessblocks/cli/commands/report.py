"""`hessblocks report`: write the HTML pages of runs and studies, finished or not."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from hessblocks.cli import checks, options
from hessblocks.cli.extensions import FOLDERS, FolderKind, lacking_for, load_all
from hessblocks.errors import ArgumentError, RunError
from hessblocks.escape import printable

NAMED = 5
"""Most folders that an error message lists."""


def report(
    folders: Annotated[
        list[Path],
        options.checked(
            checks.folders, name="DIR", help="Run folders, studies or folders of studies."
        ),
    ],
    /,
    *,
    screen: options.Screen,
) -> None:
    """Write figures and report.html into run folders, from their files alone.

    Nothing is measured: there is no --out, --seed or --device.
    Missing results are listed here and on the page.
    """
    kinds = {folder: kind_of(folder) for folder in folders}
    written = [kind.write_page(folder) for folder, kind in kinds.items()]
    pages, lacking = [page for page, _ in written], [line for _, lines in written for line in lines]
    summary = {"command": "report", "reports": list(map(str, pages)), "missing": lacking}
    lines = [*(f"missing {line}" for line in lacking), *(f"report  {page}" for page in pages)]
    print(json.dumps(summary) if screen.json else "\n".join(map(printable, lines)))


def kind_of(folder: Path) -> FolderKind:
    """Find the kind of a folder that a command wrote.

    Returns:
        A kind of another distribution, or the kind of our own runs.

    Raises:
        ArgumentError: no command wrote the folder, it is a saved model, or the distribution of its
            command is not installed.
        RunError: the folder cannot be read.
    """
    from hessblocks.storage import MANIFEST, refuse_links

    refuse_links(folder)
    try:
        if (folder / MANIFEST).is_file():
            raise ArgumentError(
                f"DIR: {folder} is a saved model or a checkpoint, which has no page; give the "
                "folder of its run."
            )
        ours = FolderKind(holds=_is_run, write_page=_run_page)
        kinds: list[FolderKind] = [*load_all(FOLDERS).values(), ours]
        for kind in kinds:
            if kind.holds(folder):
                return kind
    except OSError as error:
        raise RunError(
            f"DIR: {folder} cannot be read ({error.strerror}); change its permissions."
        ) from error
    below = [str(path.parent) for path in sorted(folder.glob("*/config.json"))]
    dots = ", ..." if len(below) > NAMED else ""
    also = f"; such are {', '.join(below[:NAMED])}{dots}" if below else ""
    raise ArgumentError(
        f"DIR: {folder} has no config.json; expected a folder that a command wrote with --out{also}"
    )


def _is_run(folder: Path) -> bool:
    """Tell whether a command of ours wrote a folder; refuse it if its command is not installed."""
    from hessblocks.storage import read_object

    path, command = folder / "config.json", ""
    with suppress(RunError):  # the reader of the settings reports a damaged config.json
        command = str(read_object(path).get("command")) if path.is_file() else ""
    if lacking := lacking_for(command):
        raise ArgumentError(f"DIR: {folder} was written by `hessblocks {command}`; {lacking}")
    return path.is_file()


def _run_page(folder: Path) -> tuple[Path, list[str]]:
    """Write the page of a run; return its path and no missing parts."""
    from hessblocks.report import PAGES, write_report
    from hessblocks.storage import held, read_object

    with held(folder):
        command = str(read_object(folder / "config.json").get("command"))
        return (PAGES[command].write if command in PAGES else write_report)(folder), []
