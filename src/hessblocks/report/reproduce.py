"""The command that makes the same folder again, from config.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hessblocks.report.results import Settings


def command_line(settings: Settings) -> str:
    """The command with every setting that config.json records, quoted for a POSIX shell."""
    words = ["hessblocks", settings.command or "compare", *_options(settings), "--out", "DIR"]
    return " ".join(word if word == "DIR" else shlex.quote(word) for word in words)


def _options(settings: Settings) -> Iterator[str]:
    yield from ("--presets", ",".join(settings.presets))
    yield from ("--seeds", ",".join(map(str, settings.seeds)))
    for section, prefix in (("model", ""), ("training", ""), ("curvature", "curvature-")):
        for name, value in settings.section(section).items():
            if isinstance(value, (int, float, str)):
                yield from (f"--{prefix}{name.replace('_', '-')}", str(value))
