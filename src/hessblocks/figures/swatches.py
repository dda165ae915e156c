"""Legend samples of the page: the line, marker or bar of an entry as a small inline SVG."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path

from hessblocks.figures.drawings import Drawing
from hessblocks.figures.style import Mark

GREY = "#666666"
SVG = '<svg class="swatch" width="36" height="16" viewBox="0 0 36 16" aria-hidden="true">{}</svg>'
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def swatch(drawing: Drawing, look: Mark | None, place: int) -> Markup:
    """The sample of one legend entry.

    Args:
        drawing: the figure.
        look: the entry's mark; None for bars, whose entries are moments of training.
        place: of the entry in the legend, from 0.

    Returns:
        Safe markup.
    """
    if drawing.kind == "bars" or look is None:
        return Markup(SVG.format(_bar(hatched=place == 0)))
    line = _line(look) if drawing.kind == "lines" else ""
    return Markup(SVG.format(f"{line}{_marker(look)}"))


def _bar(*, hatched: bool) -> str:
    fill = "none" if hatched else GREY
    stripes = '<path d="M8 14L17 3M14 14L23 3M20 14L28 4" stroke="#666" stroke-width="1.3"/>'
    return (
        f'<rect x="6" y="2.5" width="24" height="11.5" fill="{fill}" stroke="{GREY}" '
        f'stroke-width="1.5"/>{stripes if hatched else ""}'
    )


def _line(look: Mark) -> str:
    dashes = f' stroke-dasharray="{" ".join(map(str, look.dashes))}"' if look.dashes else ""
    return f'<path d="M0 8H36" stroke="{look.colour}" stroke-width="2"{dashes}/>'


def _marker(look: Mark) -> str:
    """Matplotlib's own outline of the marker, so that page and pictures agree."""
    style = MarkerStyle(look.marker)
    outline = style.get_path().transformed(style.get_transform())
    pieces = []
    for corners, code in outline.iter_segments():
        if code == Path.CLOSEPOLY:
            pieces.append("Z")
            continue
        numbers = [f"{value:.3g}" for value in corners]
        pieces.append(COMMANDS[code] + " ".join(numbers))
    return f'<path transform="translate(18 8) scale(9 -9)" fill="{look.colour}" d="{"".join(pieces)}"/>'
