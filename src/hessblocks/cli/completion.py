"""Complete names that a command knows; the shell asks for them at each TAB, so that nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hessblocks.conventions import PARTS
from hessblocks.settings import ROLES

NAMES = "pre-ln post-ln parallel skipless v-skipinit sas sas-p sas-p-no-norm op modern"
PRESETS = tuple(NAMES.split())
"""As `hessblocks.blocks.PRESETS`, which needs torch."""
KNOWN = {
    "preset": PRESETS,
    "presets": PRESETS,
    "device": ("auto", "cpu", "cuda"),
    "report_to": ("none", "tensorboard", "wandb", "trackio"),
    "position": ("learned", "sinusoidal", "rotary", "no"),
    "parts": PARTS,
    "curvature_groups": ROLES,
}
"""By field or parameter; other names may be right too, so that these are offered and not required."""


@dataclass(frozen=True)
class Names:
    """Offer names to the shell, after a comma too."""

    names: tuple[str, ...]

    def __call__(self, context: Any) -> Iterator[str]:
        """Complete the last of several words with commas."""
        before, comma, _ = context.incomplete.rpartition(",")
        return (f"{before}{comma}{name}" for name in self.names)


def completer(name: str) -> Names | None:
    """Find what completes a field or parameter; None where its values are free."""
    return Names(KNOWN[name]) if name in KNOWN else None
