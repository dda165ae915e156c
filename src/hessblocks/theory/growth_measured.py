"""The growth of a block measured: log-log slopes of its exact norm on a small random layer."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from hessblocks.theory.cases import Case, arguments
from hessblocks.theory.closed_form import attention_hessian
from hessblocks.theory.growth import Growth


def measured_power(kind: str, growth: Growth, quantity: str, *, seed: int = 0) -> float | None:
    """Power of a quantity in a block by measurement: the log-log slope between two small sizes.

    Args:
        kind: a key of `GROWTH`.
        growth: which block and part.
        quantity: x, query, key, value or projection.
        seed: of the random layer.

    Returns:
        The slope, or None for a block that is zero.
    """
    names = {"x": "x"} | {name: f"w_{name}" for name in ("query", "key", "value", "projection")}
    small = _norm(_scaled(kind, seed, names[quantity], 1e-3), growth)
    large = _norm(_scaled(kind, seed, names[quantity], 2e-3), growth)
    return None if small == 0 else math.log2(large / small)


def _scaled(kind: str, seed: int, name: str, factor: float) -> dict[str, Any]:
    """A random causal layer with small inputs, and one of its tensors scaled."""
    case = Case(
        name=kind,
        batch=3,
        tokens=6,
        width=5,
        head=3,
        value=4,
        out=4,
        mask="causal",
        loss="matrix",
        scores="linear" if kind == "linear" else "softmax",
        query_key="one-matrix" if kind.endswith("one matrix") else "two-matrix",
    )
    made = arguments(case, seed=seed)
    size = 1.0 if name == "x" else 0.05
    made["x"] = made["x"] * size
    tensor: Tensor = made[name]
    return made | {name: tensor * factor}


def _norm(made: dict[str, Any], growth: Growth) -> float:
    block = attention_hessian(**made).block(growth.row, growth.column, growth.part)
    return float(block.dense().norm())
