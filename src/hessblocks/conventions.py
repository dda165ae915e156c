"""Shared conventions: the ignored label, the parts of a Hessian, the types of paths."""

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
