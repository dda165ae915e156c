"""What draws figures: matplotlib for files, plotly for pages. Both come with the extra `report`; all else works without."""

from hessblocks.figures import check_drawing

check_drawing()

from hessblocks.drawing.heatmap import draw_heatmap  # noqa: E402
from hessblocks.drawing.interactive import plotly_panels  # noqa: E402
from hessblocks.drawing.pictures import write_picture  # noqa: E402
from hessblocks.drawing.static import draw, plot  # noqa: E402

__all__ = ["draw", "draw_heatmap", "plot", "plotly_panels", "write_picture"]
