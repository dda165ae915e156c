"""TODO."""

from __future__ import annotations

import math
from html import escape

from hessblocks.figures.drawings import Label

LARGE = 1e7
"""From here on numbers have powers of ten."""

NEGLIGIBLE = 1e-6
"""A standard error below this share of its value is rounding and not shown."""


def both(text: str) -> Label:
    """A text without mathematics, safe in matplotlib and on the page."""
    return Label(math=plain_math(text), html=escape(text))


def plain_math(text: str) -> str:
    """Text in which matplotlib sees no mathematics."""
    return text.replace("$", r"\$")


def number(value: float) -> str:
    """Three significant digits, with commas from a thousand on: 0.0123, 12.3, 12,300."""
    if value == 0 or abs(value) < 1e-3 or abs(value) >= LARGE:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{float(f'{value:.3g}'):,.{digits}f}"
