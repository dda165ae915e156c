"""Write figures as PNG and SVG; equal figures give equal bytes."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import style
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
"""Number of colours of a PNG: enough for a colour scale, and the file is a third as large."""
OF_MAPS, OF_LINES = Image.Quantize.MEDIANCUT, Image.Quantize.FASTOCTREE
"""Choice of these colours: by number of pixels for maps, evenly for small marks of lines."""
WHITE = 252
"""Colour components from this value on count as white background."""
MARGIN = 0.1
"""White margin around a picture on a page, in inches."""
SHEET = rb'width="[^"]+" height="[^"]+" viewBox="[^"]+"'
"""Pattern of the size of an SVG."""
DARK = b"""<style>@media (prefers-color-scheme: dark) {
 svg { fill: #e8e8e8 } [style*="stroke: #000000"] { stroke: #e8e8e8 !important }
 [style*="fill: #ffffff"] { fill: #17191c !important } }</style>
"""
"""Colours of a map in dark mode. Its cells stay: inverted, the highest values were darkest."""
UNDATED = {"Date": None, "Creator": None}
"""Metadata of an SVG: no date and no version, so that files are reproducible."""


def write_picture(figure: Figure, folder: AnyPath, name: str) -> Path:
    """Write a drawn figure to `folder` as NAME.png and NAME.svg.

    Args:
        figure: figure of matplotlib.
        folder: folder of the files; it is created if it is missing.
        name: file name without suffix.

    Returns:
        Path of the PNG; the SVG has the same path with the suffix .svg.

    Raises:
        RunError: a file cannot be written.
    """
    path = Path(folder, f"{name}.png")
    with style.context(MATPLOTLIB):
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
    """Fix the position of empty labels; matplotlib would otherwise compute it in each pass."""
    for axis in figure.axes:
        for ruler in (axis.xaxis, axis.yaxis):
            if not ruler.get_label_text():
                ruler.set_label_coords(0, 0)


def _settle(figure: Figure) -> None:
    """Fix the computed layout, so that the SVG does not compute it again."""
    figure.set_layout_engine("none")
    if not any(axis.images for axis in figure.axes):  # maps have a fixed layout
        for axis in figure.axes:  # the last digits of the layout solver vary
            x, y, width, height = (round(n, 6) for n in axis.get_position(original=True).bounds)
            axis.set_position((x, y, width, height))


def page_picture(figure: Figure) -> bytes:
    """Draw a figure of matplotlib as SVG for a page, where title and caption are HTML text."""
    for text in figure.texts:
        text.set_visible(text.get_gid() not in OF_FILES)
    svg = BytesIO()
    with style.context(MATPLOTLIB):
        figure.set_dpi(RESOLUTION)  # writing an SVG changes it
        _hold_empty_labels(figure)
        renderer = FigureCanvasAgg(figure).get_renderer()
        if isinstance(engine := figure.get_layout_engine(), ConstrainedLayoutEngine):
            engine.execute(figure)
            _settle(figure)
        box = figure.get_tightbbox(renderer).padded(MARGIN)
        FigureCanvasSVG(figure).print_svg(svg, metadata=UNDATED)
    inches = box.x0, figure.get_figheight() - box.y1, box.width, box.height
    left, top, width, height = (f"{72 * length:.2f}" for length in inches)
    view = f'width="{width}pt" height="{height}pt" viewBox="{left} {top} {width} {height}"'
    picture = re.sub(SHEET, view.encode(), svg.getvalue(), count=1)
    of_map = any(axis.images for axis in figure.axes)
    return picture.replace(b" <defs>", DARK + b" <defs>", 1) if of_map else picture
