"""The table of SmolLM2-135M on docs/simplify.md has the numbers of the committed removals."""

import csv
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "simplify.md").read_text(encoding="utf-8")
WORDS = {
    "attention skip": "skip around attention",
    "mlp skip": "skip around the MLP",
    "attention norm": "norm before attention, made a constant scale",
    "mlp norm": "norm before the MLP, made a constant scale",
    "mlp": "MLP",
    "heads": "a group of heads",
    "mlp units": "a quarter of the MLP's units",
}
"""Kind → what the page calls it, where it is another word."""
with (DOCS / "results" / "smollm2-removals.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_each_line_of_the_table_is_that_of_the_store(kind: str) -> None:
    own = [row for row in ROWS if row["kind"] == kind]
    costs = {int(row["layer"]): float(row["kl"]) for row in own}
    least, most = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
    each = [float(row["nats_per_percent"]) for row in own if row["nats_per_percent"]]
    cells = (
        WORDS.get(kind, kind),
        f"{median(costs.values()):.2g}",
        f"{costs[least]:.2g} ({least})",
        f"{costs[most]:.2g} ({most})",
        f"{median(each):.2g}" if each else "",
    )
    assert f"| {' | '.join(cells)} |" in PAGE


def test_sentences_have_the_numbers_of_the_store() -> None:
    saving = [row for row in ROWS if row["nats_per_percent"]]
    lowest = sorted(saving, key=lambda row: float(row["nats_per_percent"]))[:30]
    counts = Counter(row["kind"] for row in lowest)
    assert f"of the 30 lowest prices {counts['mlp units']} and {counts['heads']}." in PAGE
    unclear = sum(float(row["kl"]) < 2 * float(row["kl_error"]) for row in ROWS)
    said = f"Of {len(ROWS)} removals {unclear} cost less than two standard errors over text."
    assert said in PAGE
    skips = [float(row["kl"]) for row in ROWS if row["kind"].endswith("skip")]
    assert f"at least {sorted(skips)[1]:.2g} nats everywhere but" in PAGE
    kl = {(row["kind"], int(row["layer"])): float(row["kl"]) for row in ROWS}
    ratios = [kl["value and projection = identity", n] / kl["attention", n] for n in range(30)]
    assert 0.9 < median(ratios) < 1
    assert f"scale costs {kl['attention norm', 11]:.2g} nats in layer 11" in PAGE
    assert f"but {kl['attention norm', 12]:.2g} nats in layer 12" in PAGE
