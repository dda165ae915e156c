"""Transformer blocks, simplified, and the curvature of their loss.

`import hessblocks` registers its models with the Auto classes of Hugging Face transformers; the
rest is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hessblocks._version import __version__
from hessblocks.blocks import PRESETS, BlockConfig, preset
from hessblocks.errors import ArgumentError, HessblocksError, RunError
from hessblocks.models import build

if TYPE_CHECKING:
    from hessblocks.linalg import Estimate

_LAZY = {
    "Estimate": "hessblocks.linalg",
}

__all__ = [
    "PRESETS",
    "ArgumentError",
    "BlockConfig",
    "Estimate",
    "HessblocksError",
    "RunError",
    "__version__",
    "build",
    "preset",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its package when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'hessblocks' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
