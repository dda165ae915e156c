"""Write one page for all studies of a folder, readable without a network."""

from collections.abc import Sequence
from pathlib import Path

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError
from hessblocks.report import write_page
from hessblocks.storage import read_object
from hessblocks_studies.gallery.section import command, load_section


def not_begun(folder: Path) -> dict[str, str]:
    """List the requested studies that `folder` does not contain, in the order of the request.

    Returns:
        Name → the command that measures it.

    Raises:
        RunError: config.json is damaged.
    """
    path = folder / "config.json"
    asked = read_object(path).get("studies", {}) if path.is_file() else {}
    there = {path.name for path in study_folders(folder)}
    return {
        name: command(name, str(request["scale"]), request.get("seeds"))
        for name, request in asked.items()
        if name not in there
    }


def study_folders(folder: Path) -> list[Path]:
    """List the folders of studies: `folder` itself, or its subfolders; empty if there are none."""
    if (folder / "summary.json").is_file() and (folder / "figure.json").is_file():
        return [folder]
    return [path.parent for path in folder.glob("*/figure.json") if study_folders(path.parent)]


def write_gallery(folder: AnyPath, order: Sequence[str] = ()) -> Path:
    """Write report.html with the figure of every study, only from stored files.

    Args:
        folder: folder of one study, or of several studies, finished or not.
        order: names of studies that come first; others follow alphabetically.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: the folder has no study.
        RunError: a file is damaged or cannot be written.
    """
    places = {name: place for place, name in enumerate(order)}
    folder = Path(folder)
    folders = sorted(
        study_folders(folder), key=lambda path: (places.get(path.name, len(places)), path.name)
    )
    if not folders:
        raise ArgumentError(f"{folder}: no study there; `hessblocks reproduce` makes one.")
    sections = [load_section(path) for path in folders]
    studies = "study" if len(sections) == 1 else "studies"
    return write_page(
        folder,
        "studies.html",
        "hessblocks_studies.gallery",
        title="hessblocks: figures and tables reproduced",
        heading="Figures and tables reproduced",
        headline=(f"{len(sections)} {studies}, each beside what was published or expected.",),
        sections=sections,
        not_begun=not_begun(folder),
    )


def missing_lines(folder: AnyPath) -> list[str]:
    """List what each study in `folder` lacks, one line per study; empty if all is complete.

    Returns:
        Text lines.

    Raises:
        RunError: a file is missing or damaged.
    """
    folder, lines = Path(folder), []
    for path in study_folders(folder):
        points = read_object(path / "summary.json")["points"]
        if points["missing"]:
            lines.append(f"{path.name}: {points['missing']} of {points['total']} points")
    return lines + [f"{name}: not begun" for name in not_begun(folder)]
