"""One page for all studies of a folder: ours beside the published, readable with no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hessblocks.errors import ArgumentError, RunError
from hessblocks.files import write_text
from hessblocks.report.study_figure import write_study_figure

AGREES = {True: "agrees", False: "differs", None: "too little to say"}
"""What is written of a check."""


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """What the page says of one study."""

    name: str
    """Of the study, and of its folder."""
    summary: dict[str, Any]
    """summary.json."""
    config: dict[str, Any]
    """config.json."""
    environment: dict[str, Any]
    """environment.json; empty where it is missing."""
    caption: str
    """Of the figure."""
    picture: str
    """The figure as a png in base64; empty where nothing is finished yet."""

    @property
    def missing(self) -> int:
        """Points that are not measured yet."""
        return int(self.summary["points"]["missing"])

    @property
    def checks(self) -> list[dict[str, str]]:
        """Rows of the table of facts."""
        return [{**check, "verdict": AGREES[check["holds"]]} for check in self.summary["checks"]]

    @property
    def tally(self) -> str:
        """How many facts agree, in words."""
        verdicts = [check["verdict"] for check in self.checks]
        counts = [(verdicts.count(word), word) for word in AGREES.values()]
        return ", ".join(f"{count} {word}" for count, word in counts if count) or "no facts yet"

    @property
    def hardware(self) -> str:
        """Processor and accelerator."""
        names = [self.environment.get("processor"), self.environment.get("accelerator")]
        return ", ".join(str(name) for name in names if name) or "not recorded"

    @property
    def time(self) -> str:
        """Time of all points together."""
        seconds = float(self.summary["seconds"])
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def study_folders(folder: Path) -> list[Path]:
    """The studies in `folder`: itself, or those of its sub-folders that are; none if it has none."""
    if (folder / "summary.json").is_file() and (folder / "figure.json").is_file():
        return [folder]
    return [path.parent for path in folder.glob("*/figure.json") if study_folders(path.parent)]


def write_gallery(folder: Path, order: Sequence[str] = ()) -> Path:
    """Draw every study's figure and write report.html, from files alone.

    Args:
        folder: of one study, or holding folders of studies, finished or not.
        order: names of studies, first ones first; others follow by name.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: there is no study.
        RunError: a file is damaged or cannot be written.
    """
    places = {name: place for place, name in enumerate(order)}
    folders = sorted(
        study_folders(folder), key=lambda path: (places.get(path.name, len(places)), path.name)
    )
    if not folders:
        raise ArgumentError(f"{folder}: no study there; `hessblocks reproduce` makes one.")
    templates = Environment(
        loader=PackageLoader("hessblocks.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [load_section(path) for path in folders]
    page = templates.get_template("gallery.html").render(sections=sections)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def load_section(folder: Path) -> StudySection:
    """Draw a study's figure and read its files.

    Raises:
        RunError: a file is missing or damaged.
    """
    pictures = write_study_figure(folder)
    return StudySection(
        name=_read(folder / "summary.json")["study"],
        summary=_read(folder / "summary.json"),
        config=_read(folder / "config.json"),
        environment=_read(folder / "environment.json"),
        caption=_read(folder / "figure.json")["caption"],
        picture=base64.b64encode(pictures[0].read_bytes()).decode("ascii") if pictures else "",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error
    assert isinstance(found, dict)
    return found
