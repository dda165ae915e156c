"""Style of all figures: a preset, control or reference has one colour, marker and line style.

The first colours are those of Okabe and Ito, which differ with every common colour blindness; only
their yellow, too faint on white, is replaced. Further colours are from Paul Tol's muted scheme.
Marker and line style differ too, so that figures can be read in grey.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Mark of one name: colour, marker and dashes for matplotlib."""

    colour: str
    """Colour, hexadecimal sRGB."""
    marker: str
    """Marker, by matplotlib's letter."""
    dashes: tuple[float, ...]
    """Lengths of dashes and gaps, in points; empty for a solid line."""


MARKS: Mapping[str, Mark] = MappingProxyType(
    {
        "pre-ln": Mark(colour="#000000", marker="o", dashes=()),
        "parallel": Mark(colour="#0072B2", marker="s", dashes=(7, 3)),
        "sas": Mark(colour="#E69F00", marker="^", dashes=(2, 2)),
        "sas-p": Mark(colour="#009E73", marker="D", dashes=(8, 3, 2, 3)),
        "sas-p-no-norm": Mark(colour="#D55E00", marker="X", dashes=(4, 2)),
        "skipless": Mark(colour="#CC79A7", marker="v", dashes=(10, 4)),
        "v-skipinit": Mark(colour="#56B4E9", marker="P", dashes=(5, 2, 1, 2)),
        "post-ln": Mark(colour="#7F7F7F", marker="p", dashes=(1, 2)),
        "op": Mark(colour="#882255", marker="h", dashes=(12, 3, 2, 3)),
        "modern": Mark(colour="#332288", marker="*", dashes=(6, 2, 2, 2, 2, 2)),
        # too similar to black, so that other names get it last
        "pre-ln-zero": Mark(colour="#661100", marker="<", dashes=(3, 2)),
    }
)
BESIDE: Mapping[str, Mark] = MappingProxyType(
    {
        "pre-ln, zero queries": MARKS["pre-ln-zero"],
        "gpt2": Mark(colour="#AA4499", marker=">", dashes=(9, 2, 1, 2)),
        "bigram table": Mark(colour="#999933", marker="H", dashes=(14, 4)),
        "parallel, zero queries": Mark(colour="#117733", marker="d", dashes=(1, 1)),
    }
)
"""Marks of controls and references that most figures show beside presets."""
PHONE = 3.8
"""Width of a figure on a phone, in inches: 365 pixels."""
RESOLUTION = 150
"""Dots per inch of the png files."""
MATPLOTLIB = Path(__file__).with_name("hessblocks.mplstyle")
"""Style sheet for `matplotlib.style`."""


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """Choose a mark for each name: its fixed mark, or else one that no block has.

    Args:
        names: names of presets and others, in the order of the legend.

    Returns:
        Name → mark, all different for up to 182 names. Figures without blocks use the marks of
        blocks; in other figures, further names combine a colour with other markers and dashes.
    """
    names = list(names)
    fixed = {**MARKS, **BESIDE}
    marks = list(dict.fromkeys(fixed.values()))
    strangers = [name for name in names if name not in fixed]
    taken = {fixed[name].colour for name in names if name in fixed}
    free = [] if taken else list(marks)
    free += [
        replace(marks[index - shift], colour=mark.colour)
        for shift in range(1, len(marks))
        for index, mark in enumerate(marks)
    ]
    free.sort(key=lambda mark: mark.colour in taken)
    assigned = {name: free[index % len(free)] for index, name in enumerate(strangers)}
    return {name: fixed.get(name) or assigned[name] for name in names}
