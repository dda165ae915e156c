"""Draw figures with matplotlib, for files and pages. Importing this loads matplotlib."""

from hessblocks.drawing.heatmap import draw_heatmap, draw_layers
from hessblocks.drawing.pictures import page_picture, write_picture
from hessblocks.drawing.static import draw, plot

__all__ = ["draw", "draw_heatmap", "plot", "write_picture"]
