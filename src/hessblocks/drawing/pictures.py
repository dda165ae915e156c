"""Write figures as png and svg, the same bytes for the same numbers."""

import re
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from hessblocks.conventions import AnyPath
from hessblocks.drawing.static import OF_FILES
from hessblocks.figures import MATPLOTLIB, RESOLUTION
from hessblocks.storage import atomic_path

COLOURS = 255
"""Colours of a png: enough for a colour scale, and a file a third as large."""
OF_MAPS, OF_LINES = Image.Quantize.MEDIANCUT, Image.Quantize.FASTOCTREE
"""How they are chosen: finest where many pixels are, or alike everywhere for small marks."""
WHITE = 252
"""Parts of a colour from here on are those of white paper, which the page goes on with."""
MARGIN = 0.1
"""Inches of paper around a picture on a page."""
SHEET = rb'width="[^"]+" height="[^"]+" viewBox="[^"]+"'
"""Size of a svg."""
UNDATED = {"Date": None, "Creator": None}
"""Metadata of a svg: nothing that differs from one day to the next."""


def write_picture(figure: Figure, folder: AnyPath, name: str) -> Path:
    """Write a drawn figure to `folder` as NAME.png and NAME.svg.

    Args:
        figure: figure of matplotlib.
        folder: made when missing.
        name: without suffix.

    Returns:
        The path of the png; that of the svg differs in its suffix.

    Raises:
        RunError: a file cannot be written.
    """
    path = Path(folder, f"{name}.png")
    with mpl.rc_context(dict(MATPLOTLIB)):
        figure.set_dpi(RESOLUTION)
        _hold_empty_labels(figure)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        with atomic_path(path) as temporary:
            method = OF_MAPS if any(axis.images for axis in figure.axes) else OF_LINES
            few = image.quantize(COLOURS, method, dither=Image.Dither.NONE)
            few.putpalette([255 if part >= WHITE else part for part in few.getpalette() or []])
            few.save(temporary, dpi=(RESOLUTION, RESOLUTION), optimize=True)
        _settle(figure)
        with atomic_path(path.with_suffix(".svg")) as temporary:
            FigureCanvasSVG(figure).print_svg(temporary, metadata=UNDATED)
    return path


def _hold_empty_labels(figure: Figure) -> None:
    """Give labels without text a fixed place, which matplotlib would search in each pass."""
    for axis in figure.axes:
        for one in (axis.xaxis, axis.yaxis):
            if not one.get_label_text():
                one.set_label_coords(0, 0)


def _settle(figure: Figure) -> None:
    """Fix the places that were found, so that the svg need not find them again."""
    figure.set_layout_engine("none")
    if not any(axis.images for axis in figure.axes):  # those have places of their own
        for axis in figure.axes:  # the solver's last digits are not the same every time
            x, y, width, height = axis.get_position(original=True).bounds
            place = round(x, 6), round(y, 6), round(width, 6), round(height, 6)
            axis.set_position(place)


def page_picture(figure: Figure) -> bytes:
    """Draw a figure of matplotlib as SVG for a page, which has title and caption in words."""
    for text in figure.texts:
        text.set_visible(text.get_gid() not in OF_FILES)
    svg = BytesIO()
    with mpl.rc_context(dict(MATPLOTLIB)):
        figure.set_dpi(RESOLUTION)  # a svg leaves its own
        _hold_empty_labels(figure)
        renderer = FigureCanvasAgg(figure).get_renderer()
        if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
            engine.execute(figure)
            _settle(figure)
        box = figure.get_tightbbox(renderer).padded(MARGIN)
        FigureCanvasSVG(figure).print_svg(svg, metadata=UNDATED)
    inches = box.x0, figure.get_figheight() - box.y1, box.width, box.height
    left, top, width, height = (f"{72 * one:.2f}" for one in inches)
    view = f'width="{width}pt" height="{height}pt" viewBox="{left} {top} {width} {height}"'
    return re.sub(SHEET, view.encode(), svg.getvalue(), count=1)
