"""`hessblocks check`: check which files of a folder are whole, foreign, edited or missing."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.errors import RunError
from hessblocks.escape import printable


@options.taking
def check(
    folder: Annotated[Path, Parameter(name="DIR", help="Run folder, study or folder of studies.")],
    /,
    *,
    screen: options.Screen,
) -> None:
    """Check which files are whole, foreign, edited or missing; exit status 0 if all are whole."""
    from hessblocks.cli.commands.report import kind_of

    findings = kind_of(folder).check(folder)
    count = Counter(finding.state for finding in findings)
    faulty = len(findings) - count.pop("whole", 0)
    files = {_name(one.path, folder): {"state": one.state, "words": one.words} for one in findings}
    if screen.json:
        whole = bool(findings) and not faulty
        print(json.dumps({"command": "check", "whole": whole, "files": files}))
    else:
        for name, one in files.items():
            words = "" if one["state"] == "whole" else f" {one['words']}"
            print(printable(f"{one['state']:9}{name}{words}"))
    if not findings:
        raise RunError(
            f"check: {folder} holds no files that could be whole; nothing was measured there."
        )
    if faulty:
        kinds = ", ".join(f"{number} {state}" for state, number in count.items())
        raise RunError(
            f"check: {faulty} of {len(findings)} files of {folder} are not whole ({kinds})."
        )


def _name(path: Path, folder: Path) -> str:
    """Return the path of a file below the folder; a saved model has the name of the folder."""
    return folder.resolve().name if path == folder else path.relative_to(folder).as_posix()
