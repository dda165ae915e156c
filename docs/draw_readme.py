"""Draw the three pictures of README.md, from committed numbers.

`python docs/draw_readme.py` writes docs/files.svg (KL against megabytes), docs/three_blocks.svg and
docs/curvature_of_smollm2.svg (norms of weight matrices). Their letters are grey on no ground, so
that light and dark pages show them alike.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import hessblocks as hb
from hessblocks.models import draw_blocks
from hessblocks.storage import write_text

DOCS = Path(__file__).parent
INK = "#808080"
"""Contrast of 4 on white and on black."""
BEFORE, AFTER = "#d55e00", "#2f81f7"
PAPER = {
    "background: #ffffff": "background: none",
    "fill: #1b1f24": "fill: #767676",
    "#57606a": INK,
}
"""Style of drawings on white → on no ground."""
ROLES = {
    "attention.query": "Q", "attention.key": "K", "attention.value": "V",
    "attention.projection": "O", "mlp.in": "up, gate", "mlp.out": "down",
}  # fmt: skip
STYLE = {
    "svg.fonttype": "path", "svg.hashsalt": "hessblocks", "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def files() -> Figure:
    """KL against megabytes of files of SmolLM2-135M-Instruct: llama.cpp's mixes and ours."""
    told = json.loads((DOCS.parent / "benchmarks/results/quantised_files.json").read_text("utf-8"))
    rows = told["figures"]["files"]
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    ax = figure.subplots()
    for by, colour, mark in (("llama.cpp's mix", BEFORE, "o"), ("hessblocks", AFTER, "D")):
        own = [row for row in rows if row["by"] == by]
        x = [row["tensor bytes"] / 1e6 for row in own]
        y = [row["KL, documentation"] for row in own]
        errors = [row["KL error, documentation"] for row in own]
        ax.errorbar(x, y, errors, fmt=mark, color=colour, label=by, capsize=2, ms=6)
        for row, across, up in zip(own, x, y, strict=True):
            ours, left = by == "hessblocks", row["size of"] == "Q5_0"
            side = (-8, -4) if ours or left else (7, 0)
            ax.annotate(
                by if ours else row["size of"],
                (across, up),
                side,
                textcoords="offset points",
                color=colour,
                ha="right" if ours or left else "left",
            )
    ax.set(
        xlabel="megabytes of tensors",
        ylabel="KL to the original, nats per token",
        xlim=(84, 108),
        ylim=(0, None),
    )
    shares = [row["of the mix's, documentation"] for row in rows if row["by"] == "hessblocks"]
    title = f"At the same bytes {' and '.join(f'{share:.2f}' for share in shares)} of the mixes' KL"
    ax.set_title(title, loc="left", fontweight="bold")
    return figure


def layers() -> Figure:
    """Norms of the Gauss-Newton Hessian of SmolLM2, layers by roles, the embedding below."""
    with (DOCS / "results" / "smollm2-curvature.csv").open(encoding="utf-8") as file:
        norms = {row["group"]: float(row["norm"]) for row in csv.DictReader(file)}
    table = np.array([[norms[f"layers.{layer}.{role}"] for layer in range(30)] for role in ROLES])
    embedding = norms["embedding.token"]
    scale = LogNorm(0.1, embedding)
    figure = Figure(figsize=(5.6, 3.1), layout="constrained")
    upper, lower = figure.subplots(2, height_ratios=[6, 1])
    drawn = upper.imshow(table, norm=scale, cmap="viridis", aspect="auto")
    upper.set_yticks(range(len(ROLES)), list(ROLES.values()))
    upper.set_xticks(range(0, 30, 5))
    upper.set_xlabel("layer")
    role, layer = np.unravel_index(table.argmax(), table.shape)
    upper.annotate(
        "largest",
        (layer, role),
        (layer + 3, role - 1.5),
        color="white",
        arrowprops={"color": "white", "arrowstyle": "->"},
    )
    lower.imshow([[embedding]], norm=scale, cmap="viridis", aspect="auto")
    lower.set_xticks([])
    lower.set_yticks([0], ["embedding"])
    figure.colorbar(drawn, ax=[upper, lower], label="norm of the Hessian")
    figure.suptitle(
        "SmolLM2: values and MLPs are sensitive, queries and keys hardly",
        fontweight="bold",
        fontsize=10,
    )
    return figure


def three_blocks() -> str:
    """Draw pre-LN, SAS and SAS-P."""
    drawn = draw_blocks({name: hb.preset(name) for name in ("pre-ln", "sas", "sas-p")})
    for colour, new in PAPER.items():
        drawn = drawn.replace(colour, new)
    return drawn


if __name__ == "__main__":
    matplotlib.rcParams.update(STYLE)
    files().savefig(DOCS / "files.svg", transparent=True, metadata={"Date": None})
    layers().savefig(DOCS / "curvature_of_smollm2.svg", transparent=True, metadata={"Date": None})
    write_text(DOCS / "three_blocks.svg", three_blocks())
