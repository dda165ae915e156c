"""Signal propagation: rank collapse, token similarity, attention entropy, Jacobians, gradients.

The package can be called: `hessblocks.signal(model, batch)` is `hessblocks.signal.propagate(model,
batch)`.
"""

import sys
from types import ModuleType
from typing import Any

from hessblocks.signal.derivatives import Conditioning
from hessblocks.signal.heads import HeadSignal
from hessblocks.signal.layers import layers_of
from hessblocks.signal.propagation import (
    COLLAPSED,
    LayerSignal,
    Signal,
    TokenSignal,
    propagate,
    rank_collapse,
)

__all__ = [
    "Conditioning",
    "HeadSignal",
    "LayerSignal",
    "Signal",
    "TokenSignal",
    "propagate",
    "rank_collapse",
]


class _CallablePackage(ModuleType):
    """Package that can be called: `hessblocks.signal(...)` calls `propagate`."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Signal:
        """See `propagate`."""
        return propagate(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallablePackage
