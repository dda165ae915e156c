"""What figures are drawn with comes with an extra of this package, so that one who only multiplies need not install it."""

from __future__ import annotations

from hessblocks.errors import check_extra


def check_drawing() -> None:
    """Refuse what draws figures where they cannot be drawn, before anything is done.

    Raises:
        ArgumentError: matplotlib or plotly is not installed.
    """
    check_extra("figures", "report", "matplotlib", "plotly")
