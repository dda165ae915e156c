"""Which block of the attention Hessian depends on what: measured powers next to the theory's.

Run `python examples/block_dependence.py`. Each entry is `measured / stated`: the log-log slope of the
exact Frobenius norm of the block in the entry size of the input or of one weight, with the loss
gradient and curvature behind the attention held fixed.
"""

from hessblocks.theory import GROWTH, Growth, measured_power

QUANTITIES = {"x": "X", "query": "W_Q", "key": "W_K", "value": "W_V"}


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
