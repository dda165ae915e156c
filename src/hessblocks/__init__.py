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
    from hessblocks.curvature import (
        Functional,
        Hessian,
        OuterProduct,
        ParameterGroup,
        Problem,
        exact_attention_curvature,
        group_norms,
        parameter_groups,
    )
    from hessblocks.linalg import Estimate, frobenius_norm
    from hessblocks.theory import attention_hessian

_CURVATURE = (
    "Functional",
    "Hessian",
    "OuterProduct",
    "ParameterGroup",
    "Problem",
    "exact_attention_curvature",
    "group_norms",
    "parameter_groups",
)
_LAZY = {
    **dict.fromkeys(_CURVATURE, "hessblocks.curvature"),
    "Estimate": "hessblocks.linalg",
    "attention_hessian": "hessblocks.theory",
    "frobenius_norm": "hessblocks.linalg",
}

__all__ = [
    "PRESETS",
    "ArgumentError",
    "BlockConfig",
    "Estimate",
    "Functional",
    "HessblocksError",
    "Hessian",
    "OuterProduct",
    "ParameterGroup",
    "Problem",
    "RunError",
    "__version__",
    "attention_hessian",
    "build",
    "exact_attention_curvature",
    "frobenius_norm",
    "group_norms",
    "parameter_groups",
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
