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
    from hessblocks import signal
    from hessblocks.curvature import (
        Functional,
        Hessian,
        OuterProduct,
        ParameterGroup,
        Problem,
        curvature_map,
        exact_attention_curvature,
        group_norms,
        parameter_groups,
    )
    from hessblocks.linalg import (
        Estimate,
        LinearOperator,
        Spectrum,
        condition_number,
        diagonal,
        extreme_eigenvalues,
        frobenius_norm,
        jensen_shannon_distance,
        spectral_density,
        trace,
    )
    from hessblocks.theory import attention_hessian

_CURVATURE = (
    "Functional",
    "Hessian",
    "OuterProduct",
    "ParameterGroup",
    "Problem",
    "curvature_map",
    "exact_attention_curvature",
    "group_norms",
    "parameter_groups",
)
_LINALG = (
    "Estimate",
    "LinearOperator",
    "Spectrum",
    "condition_number",
    "diagonal",
    "extreme_eigenvalues",
    "frobenius_norm",
    "jensen_shannon_distance",
    "spectral_density",
    "trace",
)
_LAZY = {
    **dict.fromkeys(_CURVATURE, "hessblocks.curvature"),
    **dict.fromkeys(_LINALG, "hessblocks.linalg"),
    "attention_hessian": "hessblocks.theory",
}

__all__ = [
    "PRESETS",
    "ArgumentError",
    "BlockConfig",
    "Estimate",
    "Functional",
    "HessblocksError",
    "Hessian",
    "LinearOperator",
    "OuterProduct",
    "ParameterGroup",
    "Problem",
    "RunError",
    "Spectrum",
    "__version__",
    "attention_hessian",
    "build",
    "condition_number",
    "curvature_map",
    "diagonal",
    "exact_attention_curvature",
    "extreme_eigenvalues",
    "frobenius_norm",
    "group_norms",
    "jensen_shannon_distance",
    "parameter_groups",
    "preset",
    "signal",
    "spectral_density",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its package when it is first asked for."""
    if name == "signal":
        return importlib.import_module("hessblocks.signal")
    if name not in _LAZY:
        raise AttributeError(f"module 'hessblocks' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
