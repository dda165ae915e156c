"""Format signal propagation through layers for the terminal, and as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from hessblocks.cli.terminal import plain_table
from hessblocks.report import SIGNAL_QUANTITIES, number

SHOWN = 8
"""Most layers of each model in the table; results.csv has all."""
SignalRows = Sequence[Mapping[str, Any]]
Layers = dict[Any, dict[str, float]]
"""Layer ("" for the inputs) → {quantity, followed by its role if it has one: value}."""


def by_model(rows: SignalRows) -> dict[str, Layers]:
    """Group rows by model and layer."""
    models: dict[str, Layers] = {}
    for row in rows:
        values = models.setdefault(row["model"], {}).setdefault(row["layer"], {})
        if row["value"] is not None:
            name = row["quantity"].replace("gradient_norm", "gradient")
            values[f"{name} {row['role']}".rstrip()] = row["value"]
    return models


def reasons(rows: SignalRows) -> dict[tuple[str, str], str]:
    """Find each (model, quantity) that lacks a value at any layer, with the reason."""
    return {(r["model"], r["quantity"]): r["method"] for r in rows if r["value"] is None}


def collapse(layers: Layers) -> int | None:
    """Find the first layer of rank collapse, where tokens become alike; None if there is none."""
    from hessblocks.signal import rank_collapse

    return rank_collapse([v["token_similarity"] for layer, v in layers.items() if layer != ""])


def described(rows: SignalRows) -> dict[str, Any]:
    """Convert all values to JSON, by model and layer; an infinite value is null."""
    reason = reasons(rows)
    return {
        model: {
            "rank_collapse_from_layer": collapse(layers),
            "not_measured": {key: cause for (name, key), cause in reason.items() if name == model},
            "layers": [
                {
                    "layer": None if layer == "" else layer,
                    **{name: v if math.isfinite(v) else None for name, v in values.items()},
                }
                for layer, values in layers.items()
            ],
        }
        for model, layers in by_model(rows).items()
    }


def lines(rows: SignalRows) -> Iterator[Table | str]:
    """Yield the table, its legend and a summary of each model."""
    from hessblocks.signal import COLLAPSED

    models = by_model(rows)
    measured = {name for layers in models.values() for values in layers.values() for name in values}
    columns = {name: name.replace("_", "\n") for name in SIGNAL_QUANTITIES if name in measured}
    yield _table(models, columns)
    yield (
        "token similarity: mean cosine between tokens, 1 is rank collapse; stable rank: 1 is rank "
        "collapse; norm: root mean square; entropy: of the attention rows (of the shaped matrix), "
        "nats, largest logit: before the softmax, second moment: spread of the inputs attended to, "
        "tr M₂, 0 leaves queries and keys no curvature; ≥: a lower bound; results.csv has each "
        "head and the gradients"
    )
    for (name, quantity), why in reasons(rows).items():
        yield f"{name}: no {quantity.replace('_', ' ')}: {why}"
    for name, layers in models.items():
        from_layer = collapse(layers)
        last = list(layers.values())[-1]["token_similarity"]
        if from_layer is None:
            yield f"{name}: no rank collapse (token similarity {last:.3f} after the last layer)"
        else:
            alike = f"token similarity above {COLLAPSED} from layer {from_layer} on"
            yield f"{name}: rank collapse, {alike}"


def _table(models: Mapping[str, Layers], columns: Mapping[str, str]) -> Table:
    """Make a table of `SHOWN` layers per model, one per row; `columns` maps names to headings."""
    rows = [
        (model, "inputs" if layer == "" else str(layer), *(_cell(values, name) for name in columns))
        for model, layers in models.items()
        for layer, values in _some(layers)
    ]
    return plain_table(("model", "layer", *columns.values()), rows)


def _some(layers: Layers) -> list[tuple[Any, dict[str, float]]]:
    """Choose the inputs and `SHOWN` evenly spaced layers, with the first and the last."""
    inputs, *rest = layers.items()
    count = min(SHOWN, len(rest))
    indices = sorted({round(k * (len(rest) - 1) / max(count - 1, 1)) for k in range(count)})
    return [inputs, *(rest[index] for index in indices)]


def _cell(values: Mapping[str, float], quantity: str) -> str:
    if (value := values.get(quantity)) is None:
        return ""
    if math.isinf(value):
        return "∞"
    return ("≥ " if quantity == "jacobian_condition" else "") + number(value)
