"""Pages of which few figures are drawn, for everyday tests: each costs seconds."""

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Drawn

from hessblocks.figures import Figure


def draw_only(patch: pytest.MonkeyPatch, names: Collection[str], *, phone: bool = True) -> None:
    """Let every figure but those of these names be an empty one, and those of phones on request."""
    drawing = import_module("hessblocks.drawing")
    real = drawing.draw

    def draw(figure: Figure, *narrowest: float) -> Drawn:
        wanted = figure.name in names and (phone or not narrowest)
        return real(figure, *narrowest) if wanted else Drawn(figsize=(1, 1))

    patch.setattr(drawing, "draw", draw)


def show_instead(patch: pytest.MonkeyPatch, stand_ins: Mapping[str, str]) -> None:
    """Let a page show earlier figures of its own in the place of some, and leave out all files."""
    templates = import_module("hessblocks.report.templates")
    real, shown = templates.drawn_picture, {}

    def drawn_picture(figure: Figure, folder: Path, name: str, *phone: Any) -> list[str]:
        earlier = stand_ins.get(name)
        shown[name] = shown[earlier] if earlier else real(figure, folder, name, *phone)
        return shown[name]

    patch.setattr("hessblocks.drawing.write_picture", lambda *_: None)
    patch.setattr(templates, "drawn_picture", drawn_picture)


def draw_no_curvature(patch: pytest.MonkeyPatch) -> None:
    """Let a page of curvature show empty figures, and leave out all files."""
    pictures = import_module("hessblocks.drawing.pictures")
    templates = import_module("hessblocks.report.templates")
    empty = templates.inlined(pictures.page_picture(Drawn(figsize=(1, 1))))
    patch.setattr(
        "hessblocks.report.curvature_figures.drawn_picture",
        lambda figure, *_: [] if figure is None else [empty],
    )
