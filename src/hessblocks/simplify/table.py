"""Measure what every removal costs and saves, beside what curvature forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Int
from torch import Tensor

from hessblocks.blocks import Shared
from hessblocks.curvature import Price, Problem, price
from hessblocks.errors import ArgumentError, check_name
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.kinds import KINDS
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import Candidate, Place, check_layers
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
LEAST_SAVED = 1e-3
"""Share of the parameters below which nats for a percent say nothing."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Removals(Tabular):
    """What each removal costs and saves, alone."""

    rows_alone = True
    rows: tuple[Row, ...]
    """A row for each; see `row_of`."""

    def to_rows(self) -> list[Row]:
        """List the rows: kind, layer, KL and loss with errors, what is saved, the forecast."""
        return [dict(row) for row in self.rows]

    def __str__(self) -> str:
        """Say how many there are, the cheapest, and how far forecasts are trusted."""
        priced = [row for row in self.rows if row["forecast"] is not None]
        inside = [row for row in priced if not row["outside"]]
        saving = [row for row in self.rows if row["nats_per_percent"] is not None]
        text = f"{len(self.rows)} removals"
        if saving:
            best = min(saving, key=lambda row: row["nats_per_percent"])
            text += (
                f"; cheapest for what it saves: {best['kind']} of layer {best['layer']}, "
                f"{best['kl']:.3g} ± {best['kl_error']:.1g} nats for {best['share']:.2%}"
            )
        if priced:
            text += f"; {len(inside)} of {len(priced)} forecasts within what a quadratic can tell"
        if unclear := sum(row["kl"] < 2 * row["kl_error"] for row in self.rows):
            text += f"; {unclear} cost less than two errors over text"
        return text

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw nats for each percent of the parameters saved, layers by kinds, as log₁₀.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import plot

        return plot(heatmap(self.rows), ax)


def heatmap(rows: Sequence[Row]) -> Any:
    """Build the map of log₁₀ nats a percent, kinds by layers; empty where nothing is saved."""
    from hessblocks.figures import Heatmap

    layers = sorted({row["layer"] for row in rows})
    found = {(row["kind"], row["layer"]): row["nats_per_percent"] for row in rows}
    kinds = [kind for kind in KINDS if any(found.get((kind, one)) for one in layers)]
    values = [[_log(found.get((kind, layer))) for layer in layers] for kind in kinds]
    return Heatmap(
        title="Layers from left to right, the first is 0",
        values=tuple(map(tuple, values)),
        label="log₁₀ of nats for 1 % of the parameters",
        rows=tuple(kinds),
        columns=tuple(map(str, layers)),
    )


def _log(value: float | None) -> float:
    return math.log10(value) if value and value > 0 else math.nan


def candidates(
    model: HessblocksForCausalLM,
    text: Pass,
    kinds: Collection[str] = (),
    layers: Collection[int] = (),
) -> Iterator[Candidate]:
    """Make what can be taken away, layer by layer.

    Args:
        model: of blocks.
        text: its states on the text that weights are refitted on.
        kinds: names of `KINDS`; empty: all.
        layers: their numbers; empty: all.

    Yields:
        Each candidate; none for the first layer where others use its weights.
    """
    for index in layers or range(model.config.depth):
        place = Place(model=model, index=index, text=text)
        if index == 0 and shares(model):
            continue
        for kind in kinds or KINDS:
            if (found := KINDS[kind](place)) is not None:
                yield found


def shares(model: HessblocksForCausalLM) -> bool:
    """Tell whether a layer uses the first one's weights."""
    parts = (block.attention for block in model.config.blocks)
    return any(isinstance(w, Shared) for part in parts for w in (part.query, part.key, part.value))


def measure_removals(
    model: HessblocksForCausalLM,
    text: Int[Tensor, "S T"],
    held_out: Int[Tensor, "S T"],
    *,
    kinds: Collection[str] = (),
    samples: int = 32,
    seed: int = 0,
    done: Callable[[int, int], None] | None = None,
) -> Removals:
    """Measure what each removal costs alone, and forecast those that are changes of weights.

    Args:
        model: of blocks, such as `hb.from_pretrained_blocks` makes; it stays as it is.
        text: tokens that scales and weights are fitted to, and that forecasts are made of; more
            tokens than the model is wide.
        held_out: other tokens, at least 4 sequences, of the same length, to measure on.
        kinds: names of `KINDS`; empty: all.
        samples: of the forecast by `hb.price`; 0: no forecast.
        seed: of the samples.
        done: told of each layer that is done, and how many there are.

    Returns:
        The table.

    Raises:
        ArgumentError: a model that is none of blocks, an unknown kind, or too few tokens.

    Cost: for each removal a pass over the held-out text from its layer on; for each layer one of
        the attention for each replaced weight, and the solution of its normal equations.
    """
    check_removals(model, text, held_out, kinds)
    held, fitted = Held(model, held_out), Pass(model, text)
    total, depth = sum(p.numel() for p in model.parameters()), model.config.depth
    found: list[tuple[Candidate, Cost]] = []
    changes: dict[str, Mapping[str, Any]] = {}
    for layer in range(depth):
        for one in candidates(model, fitted, kinds, [layer]):
            rest = list(model.model.layers[layer + 1 :])
            found.append((one, held.cost([*one.modules, *rest], layer)))
            if one.change:
                changes[f"{one.kind}, {layer}"] = one.change
        if done is not None:
            done(layer + 1, depth)
    prices: Mapping[str, Price] = {}
    if samples and changes:
        prices = price(Problem(model, {"input_ids": text}), changes, samples, seed)
    rows = (row_of(one, cost, total, prices.get(f"{one.kind}, {one.layer}")) for one, cost in found)
    return Removals(rows=tuple(rows))


def row_of(one: Candidate, cost: Cost, total: int, priced: Price | None) -> Row:
    """Write a row: what is taken, what it costs and saves, and the forecast where there is one."""
    share = one.parameters / total
    return {
        "kind": one.kind,
        "layer": one.layer,
        "kl": cost.kl.value,
        "kl_error": cost.kl.standard_error,
        "loss": cost.loss.value,
        "loss_error": cost.loss.standard_error,
        "parameters": one.parameters,
        "share": share,
        "operations": one.operations,
        "cache": one.cache,
        "nats_per_percent": cost.kl.value / (100 * share) if share > LEAST_SAVED else None,
        "forecast": None if priced is None else priced.forecast.value,
        "forecast_error": None if priced is None else priced.forecast.standard_error,
        "outside": "" if priced is None else priced.outside,
    }


def check_removals(model: Any, text: Tensor, held_out: Tensor, kinds: Collection[str] = ()) -> None:
    """Refuse what cannot be measured.

    Raises:
        ArgumentError: see `measure_removals`.
    """
    check_layers(model)
    for kind in kinds:
        check_name("kind", kind, KINDS)
    if text.numel() <= (width := model.config.hidden_size):
        raise ArgumentError(
            f"text: {text.numel()} tokens are too few to fit weights of {width} inputs; give more"
        )
    if len(held_out) < FEWEST:
        raise ArgumentError(
            f"held_out: {len(held_out)} sequences are too few for an error over text; give at "
            f"least {FEWEST}"
        )


FEWEST = 4
"""Sequences of which there is an error over text."""
