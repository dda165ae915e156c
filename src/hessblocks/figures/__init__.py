"""Figures as data: panels, series, scales, the style of each name, and texts."""

from hessblocks.figures.figure import Figure, Heatmap, Panel, Scaling, Series, log_axis
from hessblocks.figures.style import MARKS, MATPLOTLIB, PHONE, RESOLUTION, Mark, marks
from hessblocks.figures.text import LARGE, NEGLIGIBLE, PART_WORDS, number, page_text, plain_math
