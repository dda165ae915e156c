"""The command that makes the same folder again, from config.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from hessblocks.report.results import Settings

OWN_DATA = "PATH"
"""Stands for the user's data, whose place config.json does not keep."""
STANDARD_DATA = "python-code"
SIZES = ("vocab_size", "depth", "width", "heads", "mlp_width", "context")
TRAINING = ("steps", "batch_size", "learning_rate", "evaluate_every", "checkpoint_every")
CURVATURE = ("sequences", "tokens", "probes")


def command_line(settings: Settings) -> str:
    """The command with every option that its settings correspond to, quoted for a POSIX shell."""
    words = ["hessblocks", settings.command, *_options(settings)]
    return " ".join(shlex.quote(word) for word in [*words, "--out", "DIR"])


def _options(settings: Settings) -> Iterator[str]:
    if settings.command == "train":
        yield from settings.presets
    elif settings.command != "demo":
        yield from ("--presets", ",".join(settings.presets), "--seeds", str(len(settings.seeds)))
    if settings.command != "demo":
        yield from _sizes(settings)
    if settings.seeds:
        yield from ("--seed", str(min(settings.seeds)))
    if "device" in settings.values:
        yield from ("--device", str(settings.values["device"]))


def _sizes(settings: Settings) -> Iterator[str]:
    if settings.section("data").get("name", STANDARD_DATA) != STANDARD_DATA:
        yield from ("--data", OWN_DATA)
    yield from _section(settings.section("model"), SIZES)
    yield from _section(settings.section("training"), TRAINING)
    if settings.command != "train":
        yield from _section(settings.section("curvature"), CURVATURE, "curvature-")


def _section(
    values: Mapping[str, object], names: tuple[str, ...], prefix: str = ""
) -> Iterator[str]:
    for name in names:
        if values.get(name) is not None:
            yield from (f"--{prefix}{name.replace('_', '-')}", str(values[name]))
