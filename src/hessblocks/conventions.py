"""Shared conventions: the ignored label, the parts of a Hessian, the types of paths."""

from os import PathLike
from typing import Literal

AnyPath = str | PathLike[str]
"""A file or folder, as users write it."""

IGNORED = -100
"""Label of a token that the loss leaves out, as in torch and transformers."""

Part = Literal["outer", "functional", "full"]
"""H_o, H_f or H = H_o + H_f."""

SYMBOLS: dict[Part, str] = {"outer": "H_o", "functional": "H_f", "full": "H"}
"""What each part is called in a line of text."""

PARTS: tuple[Part, ...] = ("outer", "functional", "full")
"""All parts, in the order in which they are shown."""
