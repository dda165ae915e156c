"""Write the pages of `hessblocks price` and `simplify`: summary first, then maps and tables."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hessblocks.conventions import AnyPath
from hessblocks.errors import duration
from hessblocks.figures import Figure, Panel, Series, number
from hessblocks.report import templates
from hessblocks.report.captions import with_error
from hessblocks.statistics import Average

COSTS = ("Changed together", "Forecast KL", "Measured KL", "Forecast trusted")
BILL = ("Change", "Forecast KL", "Diagonal", "Full form", "Loss, to first order",
        "Weight changed by", "Forecast trusted")  # fmt: skip
FILES = ("bill.csv", "together.csv", "allocation.csv", "check.csv")
LAYER = re.compile(r"(?:^|\.)\d+\.(.+?)(?:\.weight)?$")
"""Pattern of the text after the number of a layer in a parameter's name."""


def write_price_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a folder of `hessblocks price`.

    Args:
        folder: that the command wrote.

    Returns:
        The path of report.html.

    Raises:
        RunError: a file is missing, damaged or cannot be written.
    """
    return templates.write_summary_page(folder, "price", _priced)


def _priced(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    bits, figure = _over_bits(found), bits_map(found.get("shares", []))
    picture = folder / "figures" / "check.svg"
    heads = {name: tuple(map(templates.log10, row)) for name, row in found.get("heads", {}).items()}
    drawn = templates.layer_map({"Cost of each head, by layer": heads}, "log₁₀ nats")
    what = "rounding activations of" if "what" in found else "compressing"
    return {
        "front_title": f"{found['model']}, nats per token: {_costs(found['together'])}",
        "heading": f"What {what} {found['model']} costs",
        "heads": templates.drawn_picture(drawn, folder, "heads") if heads and drawn else [],
        "headline": price_headline(found),
        "front": templates.drawn_picture(bits, folder, "front") if bits else [],
        "allocation": templates.drawn_picture(figure, folder, "allocation") if figure else [],
        "check": [templates.inlined(picture.read_bytes())] if picture.is_file() else [],
        "costs": (COSTS, [cost_cells(row) for row in found["together"]]),
        "columns": BILL,
        "rows": list(map(_bill_cells, found["bill"])),
        "files": [name for name in FILES if (folder / name).exists()],
    }


def price_headline(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the cost of the allocation and of uniform bits, or of each edit of all matrices.

    Args:
        found: summary.json.

    Returns:
        Sentences.
    """
    rows = {row["name"]: row for row in found["together"]}
    shown, between = list(rows.values()), "; "
    alone = [f"One at a time: {found['check']}."] if "check" in found else []
    if "sentences" in found:
        return (*found["sentences"], *alone, *told_sentences(found))
    what = found.get("what", "matrices")
    first = f"Expected cost in nats per token of all {what} together: "
    first += "; ".join(f"{name}: {nats(row)}" for name, row in rows.items()) + "."
    if "uniform" in found:
        width, between = found["uniform"], " and "
        shown = [rows["allocation"], rows[f"all, {width}"]]
        asked = found.get("asked", found["bits"])
        short = f" of {asked:g} asked" if abs(asked - found["bits"]) > 0.05 else ""
        first = (
            f"At {found['bits']:.3g} bits{short} on average the allocation is expected to cost "
            f"{nats(shown[0])} nats per token; all matrices at {width} would cost "
            f"{nats(shown[1])}."
        )
    if shown[0]["measured"] is not None:
        measured = between.join(nats(row, "measured") for row in shown)
        first += f" Measured on other text: {measured}."
    if any(row["outside"] for row in shown):
        first += (
            " Changes so large are beyond what forecasts can tell: rather trust what is measured."
        )
    return (first, *alone, *told_sentences(found))


def told_sentences(found: Mapping[str, Any]) -> list[str]:
    """Write what a summary's numbers are of, such as bits that the model was stored in."""
    return [f"{words[0].upper()}{words[1:]}." for words in found.get("told", ())]


def cost_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Format the cells of a row of together.csv."""
    measured = "" if row["measured"] is None else nats(row, "measured")
    return row["name"], nats(row), measured, _trusted(row)


def nats(row: Mapping[str, Any], name: str = "forecast") -> str:
    """Format a number of a row with its standard error."""
    return with_error(Average(value=row[name], standard_error=row[f"{name}_error"], seeds=1))


def _trusted(row: Mapping[str, Any]) -> str:
    return f"no: {row['outside']}" if row["outside"] else "yes"


def cost_figure(
    lines: Mapping[str, tuple[Sequence[Mapping[str, Any]], str]], size: str, label: str
) -> Figure:
    """Draw KL, on a logarithmic axis, over sizes.

    Args:
        lines: name of a series → its rows and the field that holds their KL.
        size: field of the sizes.
        label: label of their axis; bytes are drawn in megabytes.

    Returns:
        The figure as data.
    """
    series = []
    for name, (rows, kind) in lines.items():
        positive = [row for row in rows if row[size] and (row[kind] or 0) > 0]
        series.append(
            Series(
                name=name,
                x=tuple(row[size] / (1e6 if size == "bytes" else 1) for row in positive),
                y=tuple(row[kind] for row in positive),
                error=tuple(row.get(f"{kind}_error", 0.0) for row in positive),
                line="allocations" in name,
            )
        )
    panel = Panel(
        title="KL divergence over size",
        x_label=label,
        y_label="KL divergence, nats per token",
        y_scale="log",
        series=tuple(line for line in series if line.x),
    )
    return Figure(title="", caption="", panels=(panel,), size=(8.0, 4.4), columns=1)


def _costs(rows: Sequence[Mapping[str, Any]]) -> str:
    """List what some rows cost, measured or by forecast."""
    costs = [row["forecast" if row["measured"] is None else "measured"] for row in rows]
    names = [row["name"].removeprefix("all, ") for row in rows]
    words = [f"{name} {cost:.2g}" for name, cost in zip(names, costs, strict=True)]
    return ", ".join(words[-4:])


def _over_bits(found: Mapping[str, Any]) -> Figure | None:
    """Draw the cost of the allocation and of uniform edits over bits; None without bits."""
    rows = [row for row in found["together"] if row.get("bits")]
    if len(rows) < 2 or "what" in found:
        return None
    plan = [row for row in rows if row["name"] == "allocation"]
    uniform = [row for row in rows if row["name"] != "allocation"]
    lines = {
        "all alike, forecast": (uniform, "forecast"),
        "all alike, measured": (uniform, "measured"),
        "allocation, forecast": (plan, "forecast"),
        "allocation, measured": (plan, "measured"),
    }
    return cost_figure(lines, "bits", "Bits of an entry, on average")


def _bill_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("diagonal", "full", "gradient")
    numbers = (number(row[name]) if name in row else templates.ABSENT for name in names)
    size = f"{row['relative_size']:.1%}"
    return row["name"], nats(row), *numbers, size, _trusted(row)


def bits_map(shares: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw a map of bits, kinds × layers; None if the names of matrices have no layers."""
    bits: dict[str, list[float]] = {}
    for row in shares:
        if found := LAYER.search(row["place"]):
            bits.setdefault(found[1], []).append(row["bits"])
    layers = max(map(len, bits.values()), default=0)
    kinds = {name: tuple(one) for name, one in bits.items() if len(one) == layers}
    return templates.layer_map({"Bits of an entry, by layer": kinds}, "Bits")


GONE = ("Layer", "Gone")
NUMBERS = ("", "Original", "Simplified")
REMOVALS = ("Part", "Layer", "KL", "Loss", "Parameters", "Operations a token", "Cache a token",
            "Nats for 1 %")  # fmt: skip


def write_simplify_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a folder of `hessblocks simplify`.

    Args:
        folder: that the command wrote.

    Returns:
        The path of report.html.

    Raises:
        RunError: a file is missing, damaged or cannot be written.
    """
    return templates.write_summary_page(folder, "simplify", _removed)


def _removed(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    figure = removal_map(found["removals"], found["depth"])
    return {
        "heading": f"What can be taken from {found['model']}",
        "headline": simplify_headline(found),
        "picture": templates.drawn_picture(figure, folder, "removals") if figure else [],
        "numbers": (NUMBERS, number_rows(found)),
        "gone": (GONE, [(str(row["layer"]), row["gone"]) for row in found.get("layers", [])]),
        "columns": REMOVALS,
        "rows": list(map(_removal_cells, found["cheapest"])),
        "kinds": _by_kind(found["removals"]),
    }


def simplify_headline(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Write what was saved, its cost before and after healing and its speed, or the cheapest.

    Args:
        found: summary.json.

    Returns:
        Sentences.
    """
    alone = [f"One at a time: {found['said']}."] if found["removals"] else []
    alone += [f"Of the model, {found['stored']}."] if found.get("stored") else []
    if "layers" not in found:
        return tuple(alone)
    before, after = found["before"], found["after"]
    text = found["texts"][0]
    healed = f", and {nats(text['healed'], 'kl')} after {found['updates']} updates of healing"
    costs = f"{nats(text['removed'], 'kl')} nats per token of KL"
    sentences = [
        f"{found['saved']:.1%} fewer parameters cost {costs}{healed if found['updates'] else ''}: "
        f"perplexity {text['perplexity']:.4g} before, {text['healed']['perplexity']:.4g} after. "
        f"Measured on {text['tokens']:,} tokens that nothing was chosen by.",
        f"Of the layers {found['layer_parameters']:.1%} of the parameters, "
        f"{found['operations']:.1%} of the operations per token and {found['cache']:.1%} of the "
        f"cache are gone. A prompt runs at {after['prompt'] / before['prompt']:.2f} times the "
        f"original's tokens a second, decoding at {after['decoding'] / before['decoding']:.2f}; "
        f"{after['bytes'] / 1e6:.4g} of {before['bytes'] / 1e6:.4g} MB are left.",
    ]
    if found["forecast"] is not None:
        sentences.append(
            f"The prices of single removals foretold {found['forecast']:.3g} nats, before refits "
            "towards the original's states."
        )
    if "seconds" in found:
        sentences.append(f"The refits took {duration(found['seconds'])} of processor time.")
    return (*sentences, *alone)


def number_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Format sizes, speeds and, for each text, perplexity and KL of both models."""
    if "before" not in found:
        return []
    names = {
        "parameters": ("parameters", ",.0f"),
        "layer_parameters": ("parameters of the layers", ",.0f"),
        "bytes": ("bytes of the weights", ",.0f"),
        "cache": ("cache entries a token", ",.0f"),
        "prompt": ("tokens a second, prompt", ".3g"),
        "decoding": ("tokens a second, decoding", ".3g"),
    }
    pair = (found["before"], found["after"])
    rows = [
        (words, format(pair[0][name], form), format(pair[1][name], form))
        for name, (words, form) in names.items()
    ]
    for one in found["texts"]:
        text = f"{one['text']}, {one['tokens']:,} tokens in windows of {one['window']}"
        rows += [
            (
                f"perplexity, {text}",
                f"{one['perplexity']:.4g}",
                f"{one['healed']['perplexity']:.4g}",
            ),
            (f"KL, {text}", "", nats(one["healed"], "kl")),
        ]
    return rows


def removal_map(rows: Sequence[Mapping[str, Any]], depth: int) -> Figure | None:
    """Draw two maps, kinds × layers, in log₁₀ nats: cost per removal, and per 1 % of parameters.

    Args:
        rows: rows with kind, layer, kl and nats_per_percent.
        depth: number of layers.

    Returns:
        The figure; None if no removal has a positive cost.
    """
    titles = {
        "kl": "What each removal costs, by layer",
        "nats_per_percent": "What it costs for each percent of the parameters",
    }
    maps = {}
    for name, title in titles.items():
        found = {(row["kind"], row["layer"]): templates.log10(row[name]) for row in rows}
        known = {kind for (kind, _), value in found.items() if not math.isnan(value)}
        maps[title] = {
            kind: tuple(found.get((kind, n), math.nan) for n in range(depth))
            for kind in _kinds(rows)
            if kind in known
        }
    return templates.layer_map(maps, "log₁₀ nats")


def _kinds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the kinds, in the order of the layer with most kinds."""
    counted = Counter(row["layer"] for row in rows)
    fullest = sorted(rows, key=lambda row: -counted[row["layer"]])
    return list(dict.fromkeys(row["kind"] for row in fullest))


def _removal_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["kind"],
        str(row["layer"]),
        nats(row, "kl"),
        nats(row, "loss"),
        f"{row['parameters']:,}",
        f"{row['operations']:,.0f}",
        f"{row['cache']:,}",
        f"{row['nats_per_percent']:.3g}",
    )


def _by_kind(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Make one row per kind: median and range of KL over layers, and what it saves."""
    found: list[tuple[str, ...]] = []
    for kind in _kinds(rows):
        own = [row for row in rows if row["kind"] == kind]
        kl = [row["kl"] for row in own]
        saved = sum(row["share"] for row in own) / len(own)
        found.append((kind, f"{median(kl):.3g}", f"{min(kl):.3g} to {max(kl):.3g}", f"{saved:.2%}"))
    return found
