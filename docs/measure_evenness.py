"""Measure how uneven curvature is before training, from three initial scales.

Usage: python docs/measure_evenness.py
Blocks of 4 layers and width 64, in float32 on the CPU. Every random matrix starts with the std of
its row, n being its number of inputs (for embeddings the width). Spread: standard deviation of
log10 of the norms of the Hessian's blocks, in decades. A seed draws weights, held-out batch and
probes. Keys, whose curvature is 0 where queries are 0, are left out. It takes minutes, and writes
results/evenness.json and the table of findings.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessblocks.storage import environment, read_object, write_json, write_text
from hessblocks_studies import shared

DOCS = Path(__file__).parent
STARTS = {
    "0.02": lambda n: 0.02,
    "0.32/√n": lambda n: 0.32 / math.sqrt(n),
    "1/√n": lambda n: n**-0.5,
}
"""Initial scale → std of a matrix with n inputs."""
BLOCKS = ("pre-ln, zero queries", "sas", "sas-p")
COUNTS = ("all groups", "all weight matrices", "common matrices")
SEEDS = (1, 2, 3)
TEXT = "python, no tables"
PROBE = shared.Probe(sequences=8, tokens=64, probes=8)
MARK = "<!-- table: evenness -->\n"


def spreads(start: str, block: str, seed: int) -> dict[str, float]:
    """Measure the spread of one fresh model over each of `COUNTS`."""
    size = replace(shared.SIZES["laptop"], data=TEXT)
    narrow = (
        "attention.key",
        *(("attention.value", "attention.projection") if block == BLOCKS[0] else ()),
    )
    std = STARTS[start]
    slots = (
        *(f"{name}.std={std(size.width):.6g}" for name in (*narrow, "mlp.input")),
        f"mlp.output.std={std(size.mlp_width):.6g}",
    )
    settings = shared.TrainedSettings(
        study="evenness",
        variant=block,
        seed=seed,
        size=size,
        slots=slots,
        embedding_std=std(size.width),
    )
    model = shared.make_model(settings)
    rows = shared.curvature_rows(model, shared.text_of(size), PROBE, seed, ("key",), ("full",))
    found = shared.of_quantity(rows, shared.SPREAD)
    return {row["group"]: row["value"] for row in found}


def table(measured: Mapping[str, Any]) -> str:
    """Format SAS and SAS-P minus pre-LN, over seeds with 95 % intervals, and pre-LN itself."""
    lines = [
        "| initial std | counted over | pre-LN, zero queries | SAS minus it | SAS-P minus it |"
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for start in STARTS:
        for count in COUNTS:
            values = {
                block: dict(zip(SEEDS, measured["spreads"][start][block][count], strict=True))
                for block in BLOCKS
            }
            gaps = [
                _cell(shared.gaps(values[block], values[BLOCKS[0]]), "+") for block in BLOCKS[1:]
            ]
            lines.append(" | ".join([f"| {start}", count, _cell(values[BLOCKS[0]]), *gaps]) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Mapping[Any, float], sign: str = "") -> str:
    """Format mean and interval over seeds."""
    found = shared.over_seeds(values)
    low, high = (found.mean + side * found.reach() for side in (-1, 1))
    return f"{found.mean:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"


def measure() -> dict[str, Any]:
    """Measure all starts, blocks and seeds."""
    found: dict[str, dict[str, dict[str, Sequence[float]]]] = {}
    for start in STARTS:
        for block in BLOCKS:
            each = [spreads(start, block, seed) for seed in SEEDS]
            found.setdefault(start, {})[block] = {c: [one[c] for one in each] for c in COUNTS}
            print(start, block, found[start][block], flush=True)
    made = environment()
    frame = {"device": "cpu", "precision": "float32", "text": TEXT, "commit": made["commit"]}
    return {"frame": {**frame, "processor": made["processor"]}, "seeds": SEEDS, "spreads": found}


def write(docs: Path = DOCS) -> None:
    """Write the table of findings.md from results/evenness.json."""
    page = docs / "findings.md"
    text = table(read_object(docs / "results" / "evenness.json"))
    old = page.read_text(encoding="utf-8")
    write_text(page, re.sub(f"{MARK}\n(\\|.*\n)*", lambda _: f"{MARK}\n{text}", old))


if __name__ == "__main__":
    write_json(DOCS / "results" / "evenness.json", measure())
    write()
