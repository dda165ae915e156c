"""Growth of each Hessian block of an attention layer with its input, weights and moments.

The powers hold for small scores (attention near uniform), with the loss gradient and curvature at
the attention output held fixed. Under the squared loss H_f has the residual as a further factor.
They are read off the table of docs/theory.md. Softmax moments bring M_1 one power of X, M_2 two and
M_3 three. Linear scores bring M_1 three (A itself has two) and M_2 two.

Source: Ormaniec, Dangel & Singh 2025, section 4 and table 1, for query, key and value and for the
own blocks of one matrix. Those with a projection, and of one matrix with values, follow from the
same formulas (docs/theory.md, token form).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from hessblocks.conventions import Part

Powers = Mapping[str, int]
"""One term of a block: the power of each quantity it is made of, where that is not 0.

`x` is the entry size of the input, `query` that of W_Q (of W_QK where there is one matrix), `key`,
`value` and `projection` those of W_K, W_V and W_O; `first`, `second` and `third` are the moments
M_1, M_2 and M_3.
"""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of a block: its part, and the terms it is a sum of; no terms: it is zero.

    >>> terms = ({"x": 4}, {"x": 6})
    >>> Growth(row="key", column="key", part="outer", terms=terms).power("x")
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

    def power(self, quantity: str) -> int | None:
        """Return the power of a quantity of `Powers` for small inputs; None for a zero block."""
        if not self.terms:
            return None
        return min(self.terms, key=lambda term: term["x"]).get(quantity, 0)


def _growth(line: str) -> Growth:
    """Read a line: row column part | powers of each term, or 0."""
    block, terms = (field.strip() for field in line.split("|"))
    row, column, part = block.split()
    return Growth(
        row=row,
        column=column,
        part=cast(Part, part),
        terms=tuple(_powers(term) for term in terms.split(" + ") if term != "0"),
    )


def _powers(term: str) -> Powers:
    return {factor[:-1]: int(factor[-1]) for factor in term.split()}


_LINES = {
    "softmax": """
        value value outer | x2 projection2 first2
        query query outer | x6 key2 value2 projection2 second2
        key key outer | x6 query2 value2 projection2 second2
        query key outer | x6 query1 key1 value2 projection2 second2
        query value outer | x4 key1 value1 projection2 first1 second1
        key value outer | x4 query1 value1 projection2 first1 second1
        value value functional | 0
        query query functional | x5 key2 value1 projection1 third1
        key key functional | x5 query2 value1 projection1 third1
        query key functional | x5 query1 key1 value1 projection1 third1 \
            + x3 value1 projection1 second1
        query value functional | x3 key1 projection1 second1
        key value functional | x3 query1 projection1 second1
        projection projection outer | x2 value2 first2
        query projection outer | x4 key1 value2 projection1 first1 second1
        key projection outer | x4 query1 value2 projection1 first1 second1
        value projection outer | x2 value1 projection1 first2
        projection projection functional | 0
        query projection functional | x3 key1 value1 second1
        key projection functional | x3 query1 value1 second1
        value projection functional | x1 first1
        """,
    "softmax, one matrix": """
        query_key query_key outer | x6 value2 projection2 second2
        query_key query_key functional | x5 value1 projection1 third1
        query_key value outer | x4 value1 projection2 first1 second1
        query_key value functional | x3 projection1 second1
        """,
    "linear": """
        value value outer | x6 query2 key2 projection2 first2
        query query outer | x6 key2 value2 projection2 second2
        key key outer | x6 query2 value2 projection2 second2
        query key outer | x6 query1 key1 value2 projection2 second2
        query value outer | x6 query1 key2 value1 projection2 first1 second1
        key value outer | x6 query2 key1 value1 projection2 first1 second1
        value value functional | 0
        query query functional | 0
        key key functional | 0
        query key functional | x3 value1 projection1 second1
        query value functional | x3 key1 projection1 second1
        key value functional | x3 query1 projection1 second1
        """,
}
GROWTH: Mapping[str, tuple[Growth, ...]] = {
    kind: tuple(map(_growth, lines.strip().splitlines())) for kind, lines in _LINES.items()
}
"""Blocks by kind of attention: W_Q and W_K apart, softmax or linear, or one matrix W_QK."""
