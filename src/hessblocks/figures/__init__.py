"""Figures as data, and what draws them: matplotlib for files, plotly for pages."""

from hessblocks.figures.drawings import Drawing, DrawnPanel, DrawnSeries, Label, Point
from hessblocks.figures.figure import Figure, Heatmap, Panel, Scaling, Series
from hessblocks.figures.heatmap import draw_heatmap
from hessblocks.figures.interactive import plotly_panels
from hessblocks.figures.log_scale import LogScale, log_scale
from hessblocks.figures.static import write_figures
from hessblocks.figures.study_figure import draw_study_figure, write_study_figure
from hessblocks.figures.style import MATPLOTLIB, RESOLUTION, Mark, marks
from hessblocks.figures.swatches import swatch
from hessblocks.figures.text import LARGE, NEGLIGIBLE, both, number, plain_math
from hessblocks.statistics import mean_and_error
