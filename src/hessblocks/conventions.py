"""Shared conventions: ignored label, parts of a Hessian, names of groups, types of paths."""

import re
from fnmatch import fnmatchcase
from os import PathLike
from typing import Literal

AnyPath = str | PathLike[str]
"""Path of a file or folder, as a user gives it."""

IGNORED = -100
"""Label of tokens that the loss ignores, as in torch and transformers."""

Part = Literal["outer", "functional", "full"]
"""Part of the Hessian: H_o (Gauss-Newton), H_f, or the full H = H_o + H_f."""

SYMBOLS: dict[Part, str] = {"outer": "H_o", "functional": "H_f", "full": "H"}
"""Symbol of each part in plain text."""

PARTS: tuple[Part, ...] = ("outer", "functional", "full")
"""All parts, in the order of tables and figures."""

LAYERS = re.compile(r"layers\.(\d+)(?:-(\d+))?\.(.+)")
"""Name of a group in a layer, or of equal ones in several layers: `layers.0-3.attention.key`."""


def selects(pattern: str, name: str, role: str = "") -> bool:
    """Tell whether a pattern selects a group: its role, its name with * and ?, or layers as 0-3."""
    if name == pattern:  # also one with brackets
        return True
    several, single = LAYERS.fullmatch(pattern), LAYERS.fullmatch(name)
    if several and several[2] and single:
        inside = int(several[1]) <= int(single[1]) <= int(several[2])
        return inside and fnmatchcase(single[3], several[3])
    return role == pattern != "" or fnmatchcase(name, pattern)
