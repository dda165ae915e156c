"""Which block of the attention Hessian depends on what: measured powers next to the theory's.

Run `python examples/block_dependence.py`. Each entry is `measured / stated`: the log-log slope of the
exact Frobenius norm of the block in the entry size of the input or of one weight, with the loss
gradient and curvature behind the attention held fixed.
"""

import math

import torch

import hessblocks as hb
from hessblocks.theory import GROWTH, Growth

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
