"""Figures as data: panels, series, scales, the look of each name and the words beside them."""

from hessblocks.figures.figure import Figure, Heatmap, Panel, Scaling, Series, log_axis, read_figure
from hessblocks.figures.style import MARKS, MATPLOTLIB, PHONE, RESOLUTION, Mark, marks
from hessblocks.figures.text import LARGE, NEGLIGIBLE, PART_WORDS, number, page_text, plain_math
