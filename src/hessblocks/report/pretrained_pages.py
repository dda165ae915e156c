"""Pages of `hessblocks price`, `quantise` and `simplify`: summary first, then maps and tables."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from hessblocks.errors import duration
from hessblocks.figures import Figure, Panel, Series
from hessblocks.report import templates
from hessblocks.report.captions import with_error
from hessblocks.report.templates import ABSENT, drawn_picture, layer_map, summary_page
from hessblocks.statistics import Average

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Heading → its cell in a row."""
LAYER = re.compile(r"(?:^|\.)\d+\.(.+?)(?:\.weight)?$")
"""Pattern of the text after the number of a layer in a parameter's name."""


def nats(row: Row, name: str = "forecast") -> str:
    """Format a number of a row with its standard error."""
    error = math.nan if row[f"{name}_error"] is None else row[f"{name}_error"]  # of no gradient
    return with_error(Average(value=row[name], standard_error=error, seeds=1))


def _trusted(row: Row) -> str:
    return f"no: {row['outside']}" if row["outside"] else "yes"


def told_sentences(summary: Row) -> list[str]:
    """Write what a summary's numbers are of, such as bits that the model was stored in."""
    return [f"{words[0].upper()}{words[1:]}." for words in summary.get("told", ())]


def cost_figure(
    lines: Mapping[str, tuple[Sequence[Row], str]], size: str, label: str, *, log: bool = True
) -> Figure:
    """Draw KL over sizes.

    Args:
        lines: name of a series → its rows and the field that holds their KL.
        size: field of the sizes.
        label: label of their axis; bytes are drawn in megabytes.
        log: whether the axis of the KL is logarithmic, which leaves out what costs nothing.

    Returns:
        The figure as data.
    """
    series = []
    for name, (rows, kind) in lines.items():
        shown = [row for row in rows if row[size] and ((row[kind] or 0) > 0 or not log)]
        series.append(
            Series(
                name=name,
                x=tuple(row[size] / (1e6 if size == "bytes" else 1) for row in shown),
                y=tuple(row[kind] for row in shown),
                error=tuple(row.get(f"{kind}_error") or 0.0 for row in shown),
                line="allocations" in name,
            )
        )
    panel = Panel(
        title="KL divergence",
        x_label=label,
        y_label="KL divergence, nats per token",
        y_scale="log" if log else "linear",
        series=tuple(line for line in series if line.x),
    )
    return Figure(title="", caption="", panels=(panel,), size=(8.0, 4.4), columns=1)


def bits_map(shares: Iterable[Row]) -> Figure | None:
    """Draw a map of bits, kinds × layers; None without layers, or where all bits are equal."""
    bits: dict[str, list[float]] = {}
    for row in shares:
        if match := LAYER.search(row["place"]):
            bits.setdefault(match[1], []).append(row["bits"])
    layers = max(map(len, bits.values()), default=0)
    kinds = {name: tuple(values) for name, values in bits.items() if len(values) == layers}
    if len(set().union(*kinds.values())) < 2:
        return None
    return layer_map({"Bits of an entry, by layer": kinds}, "Bits")


COSTS: Columns = {
    "Changed together": itemgetter("name"),
    "Forecast KL": nats,
    "Measured KL": lambda row: "" if row["measured"] is None else nats(row, "measured"),
    "Forecast trusted": _trusted,
}
BILL: Columns = {
    "Change": itemgetter("name"),
    "Forecast KL": nats,
    "Changed by": lambda row: f"{row['relative_size']:.1%}",
    "Forecast trusted": _trusted,
}


def _priced(folder: Path, summary: Row) -> dict[str, Any]:
    picture = folder / "figures" / "check.svg"
    heads = summary.get("heads", {})
    logarithms = {name: tuple(map(templates.log10, row)) for name, row in heads.items()}
    by_layer = layer_map({"Cost of each head, by layer": logarithms}, "log₁₀ nats")
    costs = [(cost or 0, name, n) for name, row in heads.items() for n, cost in enumerate(row)]
    cost, name, layer = max(costs, default=(0, "", 0))
    allocation = bits_map(summary.get("shares", []))
    priced = f"rounding {summary['what']} of" if "what" in summary else "compressing"
    return {
        "front_title": f"{summary['model']}, nats per token: {_costs(summary['together'])}",
        "heading": f"What {priced} {summary['model']} costs",
        "heads": drawn_picture(by_layer, folder, "heads"),
        "heads_title": f"Most expensive here: {name} of layer {layer}, {cost:.2g} nats per token",
        "front": drawn_picture(_over_bits(summary), folder, "front"),
        "allocation": drawn_picture(allocation, folder, "allocation"),
        "check": [templates.inlined(picture.read_bytes())] if picture.is_file() else [],
        "bill": templates.table(BILL, summary["bill"]),
    }


def price_headline(summary: Row) -> tuple[str, ...]:
    """Write the cost of the allocation and of uniform bits, or of each edit, and what is dearest.

    Args:
        summary: summary.json.

    Returns:
        Sentences.
    """
    rows = {row["name"]: row for row in summary["together"]}
    shown, between = list(rows.values()), "; "
    single = [f"One at a time: {summary['check']}."] if "check" in summary else []
    if "sentences" in summary:
        return (*summary["sentences"], *single, *told_sentences(summary))
    first = f"Expected cost in nats per token of all {summary.get('what', 'matrices')} together: "
    first += "; ".join(f"{name}: {nats(row)}" for name, row in rows.items()) + "."
    if summary.get("form") == "moments":
        first = f"The copy is expected to cost {nats(shown[0])} nats per token."
    if summary.get("asked"):
        between, bits = ", ", summary["bits"]
        alike = [row for row in shown if row["name"] != "allocation" and row.get("bits")]
        shown = [rows["allocation"], *sorted(alike, key=lambda row: abs(row["bits"] - bits))[:2]]
        costs = [f"{nats(row)} at {row['name'].removeprefix('all, ')}" for row in shown[1:]]
        short = f" of {summary['asked']:g} asked" if abs(summary["asked"] - bits) > 0.05 else ""
        first = (
            f"At {bits:.3g} bits{short} on average the allocation is expected to cost "
            f"{nats(shown[0])} nats per token; all matrices would cost {', '.join(costs)}."
        )
    if shown[0]["measured"] is not None:
        first += f" Measured on other text: {between.join(nats(r, 'measured') for r in shown)}."
    if any(row["outside"].startswith(("forecast", "weight")) for row in shown):
        first += (
            " Changes so large are beyond what forecasts can tell: rather trust what is measured."
        )
    how = summary["bill"][0]["how"]
    dearest = (
        f"{row['place'].removeprefix('model.').removesuffix('.weight')} {nats(row)}"
        for row in [row for row in summary["bill"] if row["how"] == how][:2]
    )
    alone = f"Dearest alone, {how}: {', '.join(dearest)}."
    return (first, alone, *single, *told_sentences(summary))


def _costs(rows: Sequence[Row]) -> str:
    """List what some rows cost, measured or by forecast."""
    words = []
    for row in rows[-4:]:
        cost = row["forecast" if row["measured"] is None else "measured"]
        words.append(f"{row['name'].removeprefix('all, ')} {cost:.2g}")
    return ", ".join(words)


def _over_bits(summary: Row) -> Figure | None:
    """Draw the cost of the allocation and of uniform edits over bits; None without bits."""
    rows = [row for row in summary["together"] if row.get("bits")]
    if len(rows) < 2 or "what" in summary:
        return None
    groups: dict[str, list[Row]] = {"all alike": [], "allocation": []}
    for row in rows:
        groups["allocation" if row["name"] == "allocation" else "all alike"].append(row)
    pairs = product(groups, ("forecast", "measured"))
    lines = {f"{name}, {kind}": (groups[name], kind) for name, kind in pairs}
    return cost_figure(lines, "bits", "Bits of an entry, on average")


PRICE = summary_page(
    "price",
    files=("bill.csv", "together.csv", "allocation.csv", "check.csv"),
    headline=price_headline,
    table=lambda summary: templates.table(
        COSTS, sorted(summary["together"], key=lambda row: row["name"] != "allocation")
    ),
    content=_priced,
)


def _factor(row: Row) -> str:
    """Format the factor of the perplexity, measured or by forecast."""
    return f"× {math.exp(row['forecast' if row['measured'] is None else 'measured']):.3f}"


def _size(count: float) -> str:
    return f"{count / 1e6:.4g} MB"


QUANTISED: Columns = {
    "File": itemgetter("name"),
    "Tensors": lambda row: _size(row["bytes"]),
    "Bits a weight": lambda row: f"{row['bits']:.3g}",
    "Forecast KL": nats,
    "Measured KL": lambda row: ABSENT if row["measured"] is None else nats(row, "measured"),
    "Perplexity": _factor,
}


def _quantised(folder: Path, summary: Row) -> dict[str, Any]:
    file, *mixes = summary["files"]
    lines = {
        "allocations, forecast": (summary["front"], "forecast"),
        "standard mixes, forecast": (mixes, "forecast"),
        "standard mixes, measured": (mixes, "measured"),
        "this file, measured": ([file], "measured"),
    }
    front = cost_figure(lines, "bytes", "Tensors of the file, MB")
    measured = [row for row in mixes if row["measured"] is not None]
    return {
        "heading": f"{summary['model']} as {Path(summary['file']).name}",
        "front_title": f"{_size(file['bytes'])}, nats per token: {_costs([file, *measured])}",
        "front": drawn_picture(front, folder, "front"),
        "shares": drawn_picture(bits_map(summary["shares"]), folder, "allocation"),
    }


def quantise_headline(summary: Row) -> tuple[str, ...]:
    """Write the size and cost of the file, of standard mixes beside it, and its formats.

    Args:
        summary: summary.json.

    Returns:
        Sentences.
    """
    file, *mixes = summary["files"]
    measured = [row for row in mixes if row["measured"] is not None]
    beside = "; ".join(
        f"{row['name']} ({_size(row['bytes'])}, equal importances): {_cost(row)}, of which this "
        f"file has {file['measured'] / max(row['measured'], 1e-300):.2f}"
        for row in measured
    )
    others: Counter[str] = Counter(summary["counts"])
    others.subtract([summary["table"]])
    counts = ", ".join(f"{count} at {name}" for name, count in others.most_common() if count > 0)
    runtime = "llama.cpp" if summary["to"] == "gguf" else summary["to"]
    sentences = [
        f"{summary['file']}: {_size(summary['size'])}, tensors {_size(file['bytes'])} "
        f"({file['bits']:.3g} bits a weight): forecast {nats(file)} nats a token, measured "
        f"{_cost(file)}.",
        f"Standard files of {runtime} beside it (sizes of the tensors), measured: {beside}.",
        f"Embedding {summary['table'] or 'as it was'}; other weights: {counts}.",
    ]
    errors = math.hypot(file["forecast_error"] or 0.0, file["measured_error"])
    if file["measured"] > max(1.25 * file["forecast"], file["forecast"] + 2 * errors):
        ratio = file["measured"] / max(file["forecast"], 1e-300)
        sentences.insert(1, f"Trust what is measured: it is {ratio:.2g} times the forecast.")
    if original := summary.get("original"):
        total = file["forecast"] + original["model"]
        sentences.append(
            f"Against {original['name']}, from which {summary['model']} was made: forecast "
            f"{total:.2g} nats a token ({nats(original, 'model')} measured without this rounding, "
            f"and {nats(file)}), measured {_cost(original)}."
        )
    if "siblings" in summary:
        sentences.append(
            "Weights that runtimes fuse have one format; one for each would save "
            f"{summary['siblings']:.2g} nats by the forecast."
        )
    return (*sentences, *told_sentences(summary))


def _nearest(file: Row, *mixes: Row) -> list[Row]:
    """Sort mixes by how near their sizes are to the file's, of equal ones measured ones first."""
    gaps = [(abs(row["bytes"] - file["bytes"]), row["measured"] is None) for row in mixes]
    return [file, *(mixes[n] for n in sorted(range(len(mixes)), key=gaps.__getitem__))]


def _cost(row: Row) -> str:
    return f"{nats(row, 'measured')} (perplexity {_factor(row)})"


QUANTISE = summary_page(
    "quantise",
    files=("files.csv", "bill.csv", "allocation.csv", "types.txt"),
    headline=quantise_headline,
    table=lambda summary: templates.table(QUANTISED, _nearest(*summary["files"])),
    content=_quantised,
)

REMOVALS: Columns = {
    "Part": itemgetter("kind"),
    "Layer": lambda row: str(row["layer"]),
    "KL": lambda row: nats(row, "kl"),
    "Loss": lambda row: nats(row, "loss"),
    "Parameters": lambda row: f"{row['parameters']:,}",
    "Nats for 1 %": lambda row: f"{row['nats_per_percent']:.3g}",
}
SIZES = {
    "parameters": ("parameters", ",.0f"),
    "cache": ("cache entries a token", ",.0f"),
    "prompt": ("tokens a second, prompt", ",.0f"),
    "decoding": ("tokens a second, decoding", ",.1f"),
}
"""Size or speed → its name and format."""


def _removed(folder: Path, summary: Row) -> dict[str, Any]:
    removals = summary["removals"]
    return {
        "heading": f"What can be taken from {summary['model']}",
        **_front(folder, summary),
        "picture": drawn_picture(removal_map(removals, summary["depth"]), folder, "removals"),
        "layers": [(str(row["layer"]), row["gone"]) for row in summary.get("layers", [])],
        "cheapest": templates.table(REMOVALS, summary["cheapest"]),
    }


def _front(folder: Path, summary: Row) -> dict[str, Any]:
    """Draw the cost of the simplified model over its speed; nothing if there is none."""
    if "after" not in summary:
        return {"front": []}
    text, faster = summary["texts"][0], []
    lines = {"original": ([{"speed": 1.0, "kl": 0.0}], "kl")}
    for kind in ("prompt", "decoding"):
        speed = summary["after"][kind] / summary["before"][kind]
        faster.append(f"{kind} at {speed:.2f}")
        for state in ("refitted", "healed")[: 1 + bool(summary["updates"])]:
            model = text["removed" if state == "refitted" else state]
            lines[f"{kind}, {state}"] = ([{**model, "speed": speed}], "kl")
    figure = cost_figure(lines, "speed", "Tokens a second, times the original's", log=False)
    cost = nats(text[summary["kept"]], "kl")
    title = f"{summary['saved']:.1%} fewer parameters: {cost} nats per token"
    title += f", {', '.join(faster)} times the speed"
    return {"front_title": title, "front": drawn_picture(figure, folder, "front")}


def simplify_headline(summary: Row) -> tuple[str, ...]:
    """Write what was saved, its cost before and after healing and its speed, or the cheapest.

    Args:
        summary: summary.json.

    Returns:
        Sentences.
    """
    single = [f"One at a time: {summary['said']}."] if summary["removals"] else []
    single += [f"Of the model, {summary['stored']}."] if summary.get("stored") else []
    if "layers" not in summary:
        return tuple(single)
    before, after = summary["before"], summary["after"]
    text = summary["texts"][0]
    kept, healed = text[summary["kept"]], ""
    if updates := summary["updates"]:
        why = (
            "healing made it worse on the text that removals are chosen by, so the model before it "
            "was saved"
            if kept is text["removed"]
            else "saved: the better on the text that removals are chosen by"
        )
        healed = f", and {nats(text['healed'], 'kl')} after {updates} updates of healing ({why})"
    costs = f"{nats(text['removed'], 'kl')} nats per token of KL{healed}"
    short = ""
    if (step := summary.get("step")) and summary["saved"] - summary["asked"] > 0.005:
        widths = f"multiples of {step}" if step > 1 else "whole"
        short = f" ({100 * summary['asked']:.3g} % asked; widths stay {widths})"
    sentences = [
        f"{summary['saved']:.1%} fewer parameters{short} cost {costs}: "
        f"perplexity {text['perplexity']:.4g} before, {kept['perplexity']:.4g} after. "
        f"Measured on {text['tokens']:,} tokens that nothing was chosen by.",
        f"Of the layers {summary['layer_parameters']:.1%} of the parameters, "
        f"{summary['operations']:.1%} of the operations per token and {summary['cache']:.1%} of "
        f"the cache are gone. A prompt runs at {after['prompt'] / before['prompt']:.2f} times the "
        f"original's tokens a second, decoding at {after['decoding'] / before['decoding']:.2f}; "
        f"{after['bytes'] / 1e6:.4g} of {before['bytes'] / 1e6:.4g} MB are left.",
    ]
    if summary["forecast"] is not None:
        sentences.append(
            f"The prices of single removals foretold {summary['forecast']:.3g} nats, before refits "
            "towards the original's states."
        )
    if "seconds" in summary:
        sentences.append(f"The refits took {duration(summary['seconds'])} of processor time.")
    return (*sentences, *single)


def _before_and_after(summary: Row) -> templates.Table:
    """Tabulate sizes, speeds and, for each text, perplexity and KL of both models."""
    rows: list[tuple[str, ...]] = []
    if "before" in summary:
        rows = [
            (words, *(format(summary[model][name], form) for model in ("before", "after")))
            for name, (words, form) in SIZES.items()
        ]
    for text in summary["texts"] if rows else ():
        words = f"{text['text']}, {text['tokens']:,} tokens in windows of {text['window']}"
        kept = text[summary["kept"]]
        perplexities = (f"{model['perplexity']:.4g}" for model in (text, kept))
        rows += [(f"perplexity, {words}", *perplexities), (f"KL, {words}", "", nats(kept, "kl"))]
    return ("", "Original", "Simplified"), rows


def removal_map(rows: Sequence[Row], depth: int) -> Figure | None:
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
        values = {(row["kind"], row["layer"]): templates.log10(row[name]) for row in rows}
        drawn = {kind for (kind, _), value in values.items() if not math.isnan(value)}
        maps[title] = {
            kind: tuple(values.get((kind, n), math.nan) for n in range(depth))
            for kind in _kinds(rows)
            if kind in drawn
        }
    return layer_map(maps, "log₁₀ nats")


def _kinds(rows: Sequence[Row]) -> list[str]:
    """List the kinds, in the order of the layer with most kinds."""
    counted = Counter(row["layer"] for row in rows)
    fullest = sorted(rows, key=lambda row: -counted[row["layer"]])
    return list(dict.fromkeys(row["kind"] for row in fullest))


SIMPLIFY = summary_page(
    "simplify",
    files=("removals.csv",),
    headline=simplify_headline,
    table=_before_and_after,
    content=_removed,
)
