"""How each block of the Hessian of one attention layer grows with its input, weights and moments.

The powers hold for small scores (attention near uniform) with the loss gradient and curvature at the
attention output held fixed; under the squared loss H_f has the residual as a further factor. Read them
off the table of docs/theory.md: softmax moments bring M_1 one power of X, M_2 two and M_3 three; linear
scores bring M_1 three (A itself has two) and M_2 two.

Source: Ormaniec, Dangel & Singh 2025, section 4 and table 1, for query, key and value; projection and
one matrix follow from the same formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.verification import Case, arguments

PAPER = "Ormaniec et al. 2025, section 4"
DERIVED = "docs/theory.md, token form"


@dataclass(frozen=True, kw_only=True)
class Powers:
    """One term of a block: the power of each quantity it is made of."""

    x: int
    """Entry size of the input."""
    query: int = 0
    """Entry size of W_Q; of W_QK where there is one matrix."""
    key: int = 0
    """Entry size of W_K."""
    value: int = 0
    """Entry size of W_V."""
    projection: int = 0
    """Entry size of W_O."""
    first: int = 0
    """First moment M_1."""
    second: int = 0
    """Second moment M_2."""
    third: int = 0
    """Third moment M_3."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A block, a part, and the terms it is a sum of; no terms: it is zero.

    >>> Growth(row="key", column="key", part="outer", terms=(Powers(x=4), Powers(x=6)), source="").power("x")
    4
    """

    row: str
    """Row group."""
    column: str
    """Column group."""
    part: Part
    """outer or functional."""
    terms: tuple[Powers, ...]
    """The term with the lowest power of X rules for small inputs."""
    source: str
    """Where the powers come from."""

    def power(self, quantity: str) -> int | None:
        """Power of a quantity, a field of `Powers`, for small inputs; None for a block that is zero."""
        if not self.terms:
            return None
        ruling: int = getattr(min(self.terms, key=lambda term: term.x), quantity)
        return ruling


def _grown(row: str, column: str, part: Part, *terms: Powers, source: str = PAPER) -> Growth:
    return Growth(row=row, column=column, part=part, terms=terms, source=source)


SOFTMAX = (
    _grown("value", "value", "outer", Powers(x=2, projection=2, first=2)),
    _grown("query", "query", "outer", Powers(x=6, key=2, value=2, projection=2, second=2)),
    _grown("key", "key", "outer", Powers(x=6, query=2, value=2, projection=2, second=2)),
    _grown("query", "key", "outer", Powers(x=6, query=1, key=1, value=2, projection=2, second=2)),
    _grown("query", "value", "outer", Powers(x=4, key=1, value=1, projection=2, first=1, second=1)),
    _grown("key", "value", "outer", Powers(x=4, query=1, value=1, projection=2, first=1, second=1)),
    _grown("value", "value", "functional"),
    _grown("query", "query", "functional", Powers(x=5, key=2, value=1, projection=1, third=1)),
    _grown("key", "key", "functional", Powers(x=5, query=2, value=1, projection=1, third=1)),
    _grown(
        "query",
        "key",
        "functional",
        Powers(x=5, query=1, key=1, value=1, projection=1, third=1),
        Powers(x=3, value=1, projection=1, second=1),
    ),
    _grown("query", "value", "functional", Powers(x=3, key=1, projection=1, second=1)),
    _grown("key", "value", "functional", Powers(x=3, query=1, projection=1, second=1)),
    _grown("projection", "projection", "outer", Powers(x=2, value=2, first=2), source=DERIVED),
    _grown(
        "query",
        "projection",
        "outer",
        Powers(x=4, key=1, value=2, projection=1, first=1, second=1),
        source=DERIVED,
    ),
    _grown(
        "key",
        "projection",
        "outer",
        Powers(x=4, query=1, value=2, projection=1, first=1, second=1),
        source=DERIVED,
    ),
    _grown(
        "value", "projection", "outer", Powers(x=2, value=1, projection=1, first=2), source=DERIVED
    ),
    _grown("projection", "projection", "functional", source=DERIVED),
    _grown(
        "query", "projection", "functional", Powers(x=3, key=1, value=1, second=1), source=DERIVED
    ),
    _grown(
        "key", "projection", "functional", Powers(x=3, query=1, value=1, second=1), source=DERIVED
    ),
    _grown("value", "projection", "functional", Powers(x=1, first=1), source=DERIVED),
)
"""Softmax scores, W_Q and W_K apart."""

SOFTMAX_ONE_MATRIX = (
    _grown("query_key", "query_key", "outer", Powers(x=6, value=2, projection=2, second=2)),
    _grown("query_key", "query_key", "functional", Powers(x=5, value=1, projection=1, third=1)),
    _grown(
        "query_key",
        "value",
        "outer",
        Powers(x=4, value=1, projection=2, first=1, second=1),
        source=DERIVED,
    ),
    _grown("query_key", "value", "functional", Powers(x=3, projection=1, second=1), source=DERIVED),
)
"""Softmax scores, one matrix W_QK."""

LINEAR = (
    _grown("value", "value", "outer", Powers(x=6, query=2, key=2, projection=2, first=2)),
    _grown("query", "query", "outer", Powers(x=6, key=2, value=2, projection=2, second=2)),
    _grown("key", "key", "outer", Powers(x=6, query=2, value=2, projection=2, second=2)),
    _grown("query", "key", "outer", Powers(x=6, query=1, key=1, value=2, projection=2, second=2)),
    _grown(
        "query",
        "value",
        "outer",
        Powers(x=6, query=1, key=2, value=1, projection=2, first=1, second=1),
    ),
    _grown(
        "key",
        "value",
        "outer",
        Powers(x=6, query=2, key=1, value=1, projection=2, first=1, second=1),
    ),
    _grown("value", "value", "functional"),
    _grown("query", "query", "functional"),
    _grown("key", "key", "functional"),
    _grown("query", "key", "functional", Powers(x=3, value=1, projection=1, second=1)),
    _grown("query", "value", "functional", Powers(x=3, key=1, projection=1, second=1)),
    _grown("key", "value", "functional", Powers(x=3, query=1, projection=1, second=1)),
)
"""Linear scores."""

GROWTH: Mapping[str, tuple[Growth, ...]] = {
    "softmax": SOFTMAX,
    "softmax, one matrix": SOFTMAX_ONE_MATRIX,
    "linear": LINEAR,
}
"""All tables by kind of attention."""


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
