"""Texts of figures: formatted numbers, and $mathematics$ for matplotlib and for pages."""

import math
import re
from html import escape

from hessblocks.escape import printable

LARGE = 1e7
"""Numbers from this value on are written with a power of ten."""

NEGLIGIBLE = 1e-6
"""A standard error below this share of its value is round-off and not shown."""

PART_WORDS = {
    "outer": "outer product $H_o$",
    "functional": "functional part $H_f$",
    "full": "full Hessian $H$",
}
"""Name of each part of the Hessian in titles."""

SIGNS = {
    r"\alpha": "α", r"\beta": "β", r"\gamma": "γ", r"\tau": "τ", r"\|": "‖", r"\max": "max",
    r"\min": "min", r"\,": " ", "=": " = ", "+": " + ",
}  # fmt: skip
"""TeX commands of our formulas → characters on a page."""

SYMBOL = re.compile(r"(\\[a-z]+|\\?.)(?:_(?:\\mathrm)?(?:\{(\w+)\}|(\w)))?")
"""Pattern of a letter or command, with an optional index."""


def plain_math(text: str) -> str:
    """Escape text, so that $ does not start mathematics and control characters are visible."""
    return printable(text).replace("$", r"\$")


def page_text(text: str) -> str:
    """Convert text with $mathematics$ to HTML: letters in italics, indices as subscripts.

    Args:
        text: text for matplotlib, whose mathematics has only letters, `SIGNS` and indices.

    Returns:
        Safe markup; all text outside of dollars is escaped.
    """
    pieces = re.split(r"(?<!\\)\$", text)
    return "".join(
        _formula(piece) if index % 2 else escape(piece.replace(r"\$", "$"))
        for index, piece in enumerate(pieces)
    )


def _formula(formula: str) -> str:
    shown = ""
    for symbol, long_index, index in SYMBOL.findall(formula):
        sign = SIGNS.get(symbol, symbol)
        shown += f"<i>{escape(sign)}</i>" if len(sign) == 1 and sign.isalpha() else escape(sign)
        shown += f"<sub>{long_index or index}</sub>" if long_index or index else ""
    return shown


def number(value: float) -> str:
    """Format three significant digits, with commas from 1,000 on: 0.0123, 12.3, 12,300."""
    if value == 0 or abs(value) < 1e-3 or abs(value) >= LARGE:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    # rounded first: 12,345 becomes 12,300
    return f"{float(f'{value:.3g}'):,.{digits}f}"
