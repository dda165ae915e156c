"""Draw figures with matplotlib, for files and for pages. Importing this loads matplotlib."""

from hessblocks.drawing.heatmap import draw_heatmap as draw_heatmap
from hessblocks.drawing.heatmap import draw_layers as draw_layers
from hessblocks.drawing.heatmap import short_name as short_name
from hessblocks.drawing.pictures import page_picture as page_picture
from hessblocks.drawing.pictures import write_picture as write_picture
from hessblocks.drawing.static import draw as draw
from hessblocks.drawing.static import plot as plot
from hessblocks.drawing.static import set_scale as set_scale

__all__ = ["draw", "draw_heatmap", "plot", "write_picture"]
