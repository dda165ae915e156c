"""Which block of the attention Hessian depends on what: measured powers next to the theory's.

Run `python examples/block_dependence.py`. Each entry is `measured / stated`: the log-log slope of
the exact Frobenius norm of the block in the entry size of the input or of one weight, with the loss
gradient and curvature behind the attention held fixed.

The powers hold for small scores (attention near uniform). Under the squared loss H_f has the
residual as a further factor. They are read off the table of docs/theory.md. Softmax moments bring
M_1 one power of X, M_2 two and M_3 three. Linear scores bring M_1 three (A itself has two) and M_2
two.

Source: Ormaniec, Dangel & Singh 2025, section 4 and table 1, for query, key and value and for the
own blocks of one matrix. Those with a projection, and of one matrix with values, follow from the
same formulas (docs/theory.md, token form).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

import hessblocks as hb

Powers = Mapping[str, int]
"""One term of a block: the power of each quantity it is made of, where that is not 0.

`x` is the entry size of the input, `query` that of W_Q (of W_QK where there is one matrix), `key`,
`value` and `projection` those of W_K, W_V and W_O; `first`, `second` and `third` are the moments
M_1, M_2 and M_3.
"""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of a block: its part, and the terms it is a sum of; no terms: it is zero."""

    row: str
    column: str
    part: str
    terms: tuple[Powers, ...]
    """The term with the lowest power of X rules for small inputs."""

    def power(self, quantity: str) -> int | None:
        """Return the power of a quantity of `Powers` for small inputs; None for a zero block."""
        if not self.terms:
            return None
        return min(self.terms, key=lambda term: term["x"]).get(quantity, 0)


def read(line: str) -> Growth:
    """Read a line: row column part | powers of each term, or 0."""
    block, terms = (field.strip() for field in line.split("|"))
    row, column, part = block.split()
    return Growth(
        row=row,
        column=column,
        part=part,
        terms=tuple(powers(term) for term in terms.split(" + ") if term != "0"),
    )


def powers(term: str) -> Powers:
    """Read a term: each quantity with its power behind it."""
    return {factor[:-1]: int(factor[-1]) for factor in term.split()}


LINES = {
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
GROWTH = {kind: tuple(map(read, lines.strip().splitlines())) for kind, lines in LINES.items()}
"""Blocks by kind of attention: W_Q and W_K apart, softmax or linear, or one matrix W_QK."""

QUANTITIES = {"x": "X", "query": "W_Q", "key": "W_K", "value": "W_V"}


def measured_power(kind: str, growth: Growth, quantity: str) -> float | None:
    """Log-log slope of a block's norm between two small sizes of one quantity; None: it is zero."""
    small, large = (norm(kind, growth, quantity, factor) for factor in (1e-3, 2e-3))
    return None if small == 0 else math.log2(large / small)


def norm(kind: str, growth: Growth, quantity: str, factor: float) -> float:
    """Norm of a block in a random causal layer with small inputs, one of its tensors scaled."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    one_matrix = "one matrix" in kind
    curvature = draw(3, 6, 4, 4)
    made = {
        "x": draw(3, 6, 5),
        "w_query": draw(5, 5 if one_matrix else 3),
        "w_key": None if one_matrix else draw(5, 3),
        "w_value": draw(5, 4),
        "w_projection": draw(4, 4),
    }
    name = quantity if quantity == "x" else f"w_{quantity}"
    if name != "x":  # small inputs keep the attention near uniform, as the powers ask
        made["x"] = 0.05 * made["x"]
    made[name] = factor * made[name]
    hessian = hb.attention_hessian(
        **made,
        gradient=draw(3, 6, 4),
        curvature=curvature + curvature.mT,
        mask="causal",
        scores="linear" if kind == "linear" else "softmax",
        query_key="one-matrix" if one_matrix else "two-matrix",
    )
    return float(hessian.block(growth.row, growth.column, growth.part).dense().norm())


def entry(kind: str, growth: Growth, quantity: str) -> str:
    """One cell: measured and stated power; 0 for a block that is zero."""
    if quantity == "key" and "one matrix" in kind:
        return "-"
    measured, stated = measured_power(kind, growth, quantity), growth.power(quantity)
    return "zero" if measured is None else f"{round(measured, 2) + 0.0:.2f} / {stated}"


def main() -> None:
    """Print one table for each kind of attention."""
    for kind, table in GROWTH.items():
        print(f"\n{kind}")
        print(f"{'block':24}{'part':12}" + "".join(f"{name:>12}" for name in QUANTITIES.values()))
        for growth in table:
            cells = "".join(f"{entry(kind, growth, quantity):>12}" for quantity in QUANTITIES)
            print(f"{growth.row + ', ' + growth.column:24}{growth.part:12}{cells}")


if __name__ == "__main__":
    main()
