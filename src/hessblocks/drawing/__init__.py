"""What draws figures: matplotlib for files, plotly for pages. Both come with the extra `report`; all else works without.

What is offered is imported when it is first used, and refused in a sentence where the extra is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hessblocks.figures import check_drawing

if TYPE_CHECKING:
    from hessblocks.drawing.heatmap import draw_heatmap
    from hessblocks.drawing.interactive import plotly_panels
    from hessblocks.drawing.pictures import write_picture
    from hessblocks.drawing.static import draw, plot

__all__ = ["draw", "draw_heatmap", "plot", "plotly_panels", "write_picture"]
_PLACES = {
    "draw": "static",
    "draw_heatmap": "heatmap",
    "plot": "static",
    "plotly_panels": "interactive",
    "write_picture": "pictures",
}


def __getattr__(name: str) -> Any:
    """What is drawn with, once it is known to be installed."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_drawing()
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    """What is offered."""
    return [*globals(), *__all__]
