"""Pictures without content, for tests that look at everything else; drawing takes most of a small command's time."""

from importlib import import_module

import pytest
from matplotlib.figure import Figure

DRAWN_IN = (
    "hessblocks.report.comparison.page",
    "hessblocks.report.curvature.figures",
    "hessblocks.report.studies.section",
    "hessblocks.report.signal_figure",
)


def empty_pictures(patch: pytest.MonkeyPatch) -> None:
    """Let every picture be an empty one of one inch."""
    for name in DRAWN_IN:
        patch.setattr(import_module(name), "draw", lambda figure: Figure(figsize=(1, 1)))
