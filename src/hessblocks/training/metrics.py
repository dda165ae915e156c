"""metrics.jsonl: one measured loss a line, appended as training goes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hessblocks.errors import RunError
from hessblocks.files import write_text


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one line; what is not a finite number becomes null.

    Raises:
        RunError: the file cannot be written.
    """
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); free some space and run again."
        ) from error


def read(path: Path) -> list[dict[str, Any]]:
    """The lines before the first damaged one, as a killed process leaves its last."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if not isinstance(line, dict):
            break
        lines.append(line)
    return lines


def read_finished(path: Path) -> list[dict[str, Any]]:
    """All lines of a run that is trained.

    Raises:
        RunError: the file is absent, or a line of it is damaged.
    """
    lines = read(path)
    count = len(path.read_bytes().splitlines()) if path.exists() else 0
    if not lines or len(lines) < count:
        what = f"its line {len(lines) + 1} is damaged" if count else "absent or empty"
        raise RunError(
            f"{path}: {what}, though the run is trained; remove {path.parent} and run again to "
            "train it once more."
        )
    return lines


def cut_back(path: Path, step: int | None) -> None:
    """Forget what came after a step, so that training can go on from there.

    Args:
        path: the file.
        step: the last step to keep; None forgets all.

    Raises:
        RunError: the file cannot be written.
    """
    kept = [] if step is None else [line for line in read(path) if line["step"] <= step]
    write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
