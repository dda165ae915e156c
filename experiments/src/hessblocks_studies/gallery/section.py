"""Read a study from its folder for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.figures import Figure
from hessblocks.report import drawn_picture
from hessblocks.storage import read_object
from hessblocks.typed import JSON, typed
from hessblocks_studies.gallery.against_published import Difference, differences

VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}
"""Value of a check → verdict as text."""
FEW = 4
"""Largest number of values of a setting that are listed."""
MANY = 12
"""Largest number of names that are listed; of more names the first `FEW` are."""


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """Section of the page on one study."""

    name: str
    """Name of the study, and of its folder."""
    summary: dict[str, Any]
    """Content of summary.json."""
    config: dict[str, Any]
    """Content of config.json."""
    environment: dict[str, Any]
    """Content of environment.json; empty if the file is missing."""
    caption: str
    """Caption of the figure."""
    differences: tuple[Difference, ...]
    """Differences between our curves and the published ones."""
    picture: Sequence[str]
    """SVG images of the figure in base64; empty if nothing is finished yet."""

    @property
    def missing(self) -> int:
        """Number of points that are not measured yet."""
        return int(self.summary["points"]["missing"])

    @property
    def command(self) -> str:
        """Return the command that measures the missing points, in the folder."""
        return command(self.name, self.config["scale"], self.config.get("seeds"))

    @property
    def facts(self) -> list[tuple[str, str, str, str]]:
        """Each check as a row of a table: fact, expected, ours, verdict."""
        return [
            (check["fact"], check["expected"], check["ours"], VERDICTS[check["holds"]])
            for check in self.summary["checks"]
        ]

    @property
    def tally(self) -> str:
        """Describe the number of facts that hold."""
        verdicts = [verdict for *_, verdict in self.facts]
        counts = [(verdicts.count(word), word) for word in VERDICTS.values()]
        return ", ".join(f"{word}: {count}" for count, word in counts if count) or "no facts yet"

    @property
    def settings(self) -> str:
        """List the settings of all points in one line, without slots, which labels name."""
        found = self.summary.get("settings", {})
        return "; ".join(
            f"{name.replace('_', ' ')} {_values(values)}"
            for name, values in found.items()
            if name != "study" and not any(isinstance(value, list) for value in values)
        )

    @property
    def hardware(self) -> str:
        """Names of processor and accelerator."""
        names = [self.environment.get("processor"), self.environment.get("accelerator")]
        return ", ".join(str(name) for name in names if name) or "not recorded"

    @property
    def time(self) -> str:
        """Total duration of all points, as text."""
        seconds = float(self.summary["seconds"])
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def command(name: str, scale: str, seeds: int | None) -> str:
    """Return the `hessblocks reproduce` command that measures a study as it was requested."""
    return f"hessblocks reproduce {name} --scale {scale}" + (f" --seeds {seeds}" if seeds else "")


def _values(values: Sequence[Any]) -> str:
    """Format one value, a few values, or the count of many; for numbers also the range."""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    if len(texts) <= FEW:
        return ", ".join(texts)
    if all(isinstance(value, int | float) for value in values):
        return f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
    if len(texts) > MANY:
        return f"{', '.join(texts[:FEW])} and {len(texts) - FEW} more"
    return ", ".join(texts)


def read_figure(path: AnyPath) -> Figure:
    """Read the figure that a study wrote as figure.json.

    Returns:
        The figure of the study.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        return typed(JSON, Figure, read_object(Path(path)))
    except ValueError as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error


def load_section(folder: Path) -> StudySection:
    """Read a study's files and draw its figure.

    Returns:
        The content of the section.

    Raises:
        RunError: a file is missing or damaged.
    """
    figure = read_figure(folder / "figure.json")
    return StudySection(
        name=read_object(folder / "summary.json")["study"],
        summary=read_object(folder / "summary.json"),
        config=read_object(folder / "config.json"),
        environment=read_object(folder / "environment.json"),
        caption=figure.caption,
        differences=tuple(differences(figure)),
        picture=drawn_picture(figure, folder, folder.name) if figure.panels else (),
    )
