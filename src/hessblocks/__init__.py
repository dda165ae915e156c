"""Transformer blocks, simplified, and the curvature of their loss.

`import hessblocks` tells the Auto classes of Hugging Face transformers of its models; everything else is
imported when it is first used.
"""

import importlib
import importlib.util
from typing import Any

from hessblocks._version import __version__
from hessblocks.auto_classes import announce

_OFFERED = {
    "blocks": ("PRESETS", "BlockConfig", "preset"),
    "curvature": (
        "Functional", "Hessian", "OuterProduct", "ParameterGroup", "Problem", "curvature_map",
        "exact_attention_curvature", "group_norms", "parameter_groups",
    ),
    "errors": ("ArgumentError", "HessblocksError", "RunError"),
    "inspection": ("measure_curvature", "measure_signal"),
    "linalg": (
        "Estimate", "LinearOperator", "Spectrum", "condition_number", "diagonal",
        "extreme_eigenvalues", "frobenius_norm", "jensen_shannon_distance", "spectral_density", "trace",
    ),
    "models": ("build",),
    "theory": ("attention_hessian",),
}  # fmt: skip
"""What each package gives to the public face."""
_PLACES = {name: package for package, names in _OFFERED.items() for name in names}
__all__ = sorted(["__version__", "signal", *_PLACES])
announce()


def __getattr__(name: str) -> Any:
    """Import a public name, or a package, when it is first asked for."""
    if name in _PLACES:
        value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'hessblocks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
