"""The command that makes the same folder again, from config.json."""

from __future__ import annotations

from collections.abc import Iterator

from hessblocks.escape import shell_line
from hessblocks.settings import (
    ComparisonSettings,
    DataSettings,
    ModelSettings,
    ObservationSettings,
    TrainingSettings,
    said_again,
)
from hessblocks.storage import Settings

OWN_DATA = "PATH"
"""Stands for the user's data, whose place config.json does not keep."""
STANDARD_DATA = "python-code"


def command_line(settings: Settings) -> str:
    """The command with every option that is not the default, quoted for a POSIX shell."""
    names = list(settings.presets if settings.command == "train" else ())
    options = [*_options(settings), "--out", "DIR"]
    if any(
        name.startswith("-") for name in names
    ):  # somebody else's config.json; no options of ours
        return shell_line(["hessblocks", settings.command, *options, "--", *names])
    return shell_line(["hessblocks", settings.command, *names, *options])


def _options(settings: Settings) -> Iterator[str]:
    if settings.command not in ("train", "demo"):
        yield from ("--presets", ",".join(settings.presets), "--seeds", str(len(settings.seeds)))
        yield from said_again(ComparisonSettings, {"match": settings.values.get("match")})
    if settings.command != "demo":
        yield from _chosen(settings)
    if settings.seeds:
        yield from ("--seed", str(min(settings.seeds)))
    if "device" in settings.values:
        yield from ("--device", str(settings.values["device"]))


def _chosen(settings: Settings) -> Iterator[str]:
    """Data, sizes, training and what is measured on the way."""
    model, observation = settings.section("model"), settings.section("observation")
    own = settings.section("data").get("name", STANDARD_DATA) != STANDARD_DATA
    data = {**model, "data": OWN_DATA if own else None}
    sample = settings.section("curvature") or observation.get("sample")
    for one, values in (
        (DataSettings, data),
        (ModelSettings, model),
        (TrainingSettings, settings.section("training")),
        (ObservationSettings, {**observation, "sample": sample}),
    ):
        yield from said_again(one, values)
