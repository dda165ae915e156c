"""Write the page of `hessblocks quantise`: three numbers, nats over bytes, bits by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.figures import Figure
from hessblocks.report import templates
from hessblocks.report.pretrained_pages import bits_map, cost_figure, nats, told_sentences

QUANTISED = ("File", "Size", "Bits a weight", "Forecast KL", "Measured KL", "Perplexity")
THIS = "this file"


def write_quantise_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a folder of `hessblocks quantise`.

    Args:
        folder: that the command wrote.

    Returns:
        The path of report.html.

    Raises:
        RunError: a file is missing, damaged or cannot be written.
    """
    return templates.write_summary_page(folder, "quantise", _content)


def _content(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    shares, front = bits_map(found["shares"]), _nats_over_bytes(found)
    names = ("files.csv", "bill.csv", "allocation.csv", "types.txt")
    return {
        "heading": f"{found['model']} as {Path(found['file']).name}",
        "headline": quantise_headline(found),
        "front": templates.drawn_picture(front, folder, "front"),
        "shares": templates.drawn_picture(shares, folder, "allocation") if shares else [],
        "costs": (QUANTISED, list(map(file_cells, found["files"]))),
        "files": [name for name in names if (folder / name).exists()],
    }


def quantise_headline(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the size and cost of the file, of standard mixes beside it, and its formats.

    Args:
        found: summary.json.

    Returns:
        Sentences.
    """
    own, *others = found["files"]
    measured = [row for row in others if row["measured"] is not None]
    beside = "; ".join(f"{row['name']} ({_size(row['bytes'])}): {_cost(row)}" for row in measured)
    counts = ", ".join(f"{count} at {name}" for name, count in found["counts"].items())
    sentences = [
        f"{found['file']}: {_size(found['size'])}, tensors {_size(own['bytes'])} "
        f"({own['bits']:.3g} bits a weight): forecast {nats(own)} nats a token, measured "
        f"{_cost(own)}.",
        f"Standard files of {_runtime(found)} beside it, measured: {beside}.",
        f"Embedding {found['table'] or 'as it was'}; {counts}.",
    ]
    if "siblings" in found:
        sentences.append(
            "Weights that runtimes fuse have one format; one for each would save "
            f"{found['siblings']:.2g} nats by the forecast."
        )
    return (*sentences, *told_sentences(found))


def file_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Format the cells of a row of files.csv."""
    measured = templates.ABSENT if row["measured"] is None else nats(row, "measured")
    cost = row["forecast"] if row["measured"] is None else row["measured"]
    about = row["name"], _size(row["bytes"]), f"{row['bits']:.3g}"
    return *about, nats(row), measured, f"× {math.exp(cost):.3f}"


def _runtime(found: Mapping[str, Any]) -> str:
    return "llama.cpp" if found["to"] == "gguf" else found["to"]


def _size(count: float) -> str:
    return f"{count / 1e6:.4g} MB"


def _cost(row: Mapping[str, Any]) -> str:
    return f"{nats(row, 'measured')} (perplexity × {math.exp(row['measured']):.3f})"


def _nats_over_bytes(found: Mapping[str, Any]) -> Figure:
    """Draw forecasts and measurements of this file, of the mixes, and of allocations between."""
    file, *mixes = found["files"]
    lines = {
        "allocations, forecast": (found["front"], "forecast"),
        "standard mixes, forecast": (mixes, "forecast"),
        "standard mixes, measured": (mixes, "measured"),
        "this file, measured": ([file], "measured"),
    }
    return cost_figure(lines, "bytes", "Tensors of the file, MB")
