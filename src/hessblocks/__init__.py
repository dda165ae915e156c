"""Transformer blocks, simplified, and the curvature of their loss.

`import hessblocks` tells the Auto classes of Hugging Face transformers of its models; everything else is
imported when it is first used. The public names are those imported below for type checkers.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any

from hessblocks._version import __version__ as __version__
from hessblocks.auto_classes import announce
from hessblocks.errors import ArgumentError as ArgumentError
from hessblocks.errors import HessblocksError as HessblocksError
from hessblocks.errors import RunError as RunError

if TYPE_CHECKING:
    from hessblocks import signal as signal
    from hessblocks.blocks import PRESETS as PRESETS
    from hessblocks.blocks import BlockConfig as BlockConfig
    from hessblocks.blocks import preset as preset
    from hessblocks.curvature import Functional as Functional
    from hessblocks.curvature import Hessian as Hessian
    from hessblocks.curvature import OuterProduct as OuterProduct
    from hessblocks.curvature import ParameterGroup as ParameterGroup
    from hessblocks.curvature import Problem as Problem
    from hessblocks.curvature import curvature_map as curvature_map
    from hessblocks.curvature import exact_attention_curvature as exact_attention_curvature
    from hessblocks.curvature import group_norms as group_norms
    from hessblocks.curvature import parameter_groups as parameter_groups
    from hessblocks.inspection import measure_curvature as measure_curvature
    from hessblocks.inspection import measure_signal as measure_signal
    from hessblocks.linalg import Estimate as Estimate
    from hessblocks.linalg import LinearOperator as LinearOperator
    from hessblocks.linalg import Spectrum as Spectrum
    from hessblocks.linalg import condition_number as condition_number
    from hessblocks.linalg import diagonal as diagonal
    from hessblocks.linalg import extreme_eigenvalues as extreme_eigenvalues
    from hessblocks.linalg import frobenius_norm as frobenius_norm
    from hessblocks.linalg import jensen_shannon_distance as jensen_shannon_distance
    from hessblocks.linalg import spectral_density as spectral_density
    from hessblocks.linalg import trace as trace
    from hessblocks.models import build as build
    from hessblocks.theory import attention_hessian as attention_hessian


def _offered() -> dict[str, str]:
    """Each public name and the package that has it, read from the imports above."""
    tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {one.asname: str(node.module) for node in imports for one in node.names if one.asname}


_OFFERED = _offered()
__all__ = sorted(_OFFERED)
announce()


def __getattr__(name: str) -> Any:
    """Import a public name, or a package, when it is first asked for."""
    if name in _OFFERED and _OFFERED[name] != __name__:
        value = getattr(importlib.import_module(_OFFERED[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'hessblocks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
