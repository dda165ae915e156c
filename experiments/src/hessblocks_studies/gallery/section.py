"""Read one study from its folder, as its page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.figures import read_figure
from hessblocks.report import drawn_picture
from hessblocks.storage import read_object
from hessblocks_studies.gallery.against_published import Difference, differences

VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}
"""Verdict on a check, in words."""
FEW = 4
"""Values of a setting that are written out."""
MANY = 12
"""Names beyond which the first `FEW` alone are."""


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """Section of the page on one study."""

    name: str
    """Name of the study, and of its folder."""
    summary: dict[str, Any]
    """summary.json."""
    config: dict[str, Any]
    """config.json."""
    environment: dict[str, Any]
    """environment.json; empty where it is missing."""
    caption: str
    """Caption of the figure."""
    differences: tuple[Difference, ...]
    """Our curves against the published ones."""
    picture: Sequence[str]
    """The figure as SVG in base64; empty where nothing is finished yet."""

    @property
    def missing(self) -> int:
        """Points that are not measured yet."""
        return int(self.summary["points"]["missing"])

    @property
    def command(self) -> str:
        """Return the command that measures its missing points, in its folder."""
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
        """Count the facts that hold, in words."""
        verdicts = [verdict for *_, verdict in self.facts]
        counts = [(verdicts.count(word), word) for word in VERDICTS.values()]
        return ", ".join(f"{word}: {count}" for count, word in counts if count) or "no facts yet"

    @property
    def settings(self) -> str:
        """Settings of all points in a line, but lists of slots, which labels name."""
        found = self.summary.get("settings", {})
        return "; ".join(
            f"{name.replace('_', ' ')} {_values(values)}"
            for name, values in found.items()
            if name != "study" and not any(isinstance(value, list) for value in values)
        )

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


def command(name: str, scale: str, seeds: int | None) -> str:
    """The `hessblocks reproduce` that measures a study as it was asked for."""
    return f"hessblocks reproduce {name} --scale {scale}" + (f" --seeds {seeds}" if seeds else "")


def _values(values: Sequence[Any]) -> str:
    """One value, all of a few, or how many there are, numbers from which to which."""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    if len(texts) <= FEW:
        return ", ".join(texts)
    if all(isinstance(value, int | float) for value in values):
        return f"{texts[0]} to {texts[-1]} ({len(texts)} values)"
    if len(texts) > MANY:
        return f"{', '.join(texts[:FEW])} and {len(texts) - FEW} more"
    return ", ".join(texts)


def load_section(folder: Path) -> StudySection:
    """Draw a study's figure and read its files.

    Returns:
        What the page shows of it.

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
