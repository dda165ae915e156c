"""Measure what every removal costs and saves, beside what curvature forecasts.

Letters: S sequences to fit on, H held-out sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxtyping import Int
from torch import Tensor

from hessblocks.blocks import Shared, UnfitPartsError
from hessblocks.curvature import Problem, price
from hessblocks.errors import ArgumentError, check_name
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.kinds import KINDS
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import Candidate, Place, check_layers, edited
from hessblocks.storage import Store, Tabular

Row = dict[str, Any]
LEAST_SAVED = 1e-4
"""Share of the parameters below which nats for a percent say nothing."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Removals(Tabular):
    """What each removal costs and saves, alone."""

    rows_alone = True
    rows: tuple[Row, ...]
    """A row for each."""

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
            try:
                found = KINDS[kind](place)
            except UnfitPartsError:  # the layer would be none
                continue
            if found is not None:
                yield found


def shares(model: HessblocksForCausalLM) -> bool:
    """Tell whether a layer uses the first one's weights."""
    parts = (block.attention for block in model.config.blocks)
    return any(isinstance(w, Shared) for part in parts for w in (part.query, part.key, part.value))


def measure_removals(
    model: HessblocksForCausalLM,
    text: Int[Tensor, "S T"],
    held_out: Int[Tensor, "H T"],
    *,
    kinds: Collection[str] = (),
    samples: int = 32,
    seed: int = 0,
    store: Store | None = None,
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
        store: of an earlier call with the same arguments, to go on from; `samples` may differ.
        done: told of each layer that is done, and how many there are.

    Returns:
        The table.

    Raises:
        ArgumentError: a model that is none of blocks, an unknown kind, one sample, or texts that
            are no token ids or too short.

    Cost: for each removal a pass over the held-out text from its layer on; for each layer one of
        the attention for each replaced weight, and the solution of its normal equations.
    """
    check_removals(model, text, held_out, kinds)
    if samples < 2 and samples:
        raise ArgumentError(f"samples: expected 0, or at least 2 for an error bar, got {samples}")
    measuring = _Measuring(model, text, held_out, kinds)
    depth, rows = model.config.depth, list[Mapping[str, Any]]()
    for layer in range(depth):
        rows += kept(store, f"layer {layer}", partial(measuring.rows, layer))
        if done is not None:
            done(layer + 1, depth)
    priced: Sequence[Mapping[str, Any]] = []
    if samples:
        priced = kept(store, f"forecasts of {samples}", partial(measuring.forecasts, samples, seed))
    forecasts = {(row["kind"], row["layer"]): row for row in priced}
    unpriced = {"forecast": None, "forecast_error": None, "outside": ""}
    return Removals(
        rows=tuple({**r, **forecasts.get((r["kind"], r["layer"]), unpriced)} for r in rows)
    )


def kept(
    store: Store | None, key: str, make: Callable[[], Sequence[Row]]
) -> Sequence[Mapping[str, Any]]:
    """Look rows up in a store, or make and store them.

    Returns:
        The rows.
    """
    if store is None:
        return make()
    record = store.get(key) or store.add(key, make())
    return record.rows


class _Measuring:
    """Removals of a model, layer by layer, and the changes of weights that some of them are."""

    def __init__(
        self, model: HessblocksForCausalLM, text: Tensor, held_out: Tensor, kinds: Collection[str]
    ) -> None:
        self.model, self.kinds = model, kinds
        self._text, self._held = Pass(model, text), Held(model, held_out)
        self._total = sum(parameter.numel() for parameter in model.parameters())
        self._changes: dict[int, dict[str, Mapping[str, Any]]] = {}

    def rows(self, layer: int) -> list[Row]:
        """Measure all of a layer."""
        rest, rows = list(self.model.model.layers[layer + 1 :]), list[Row]()
        for one in self._candidates(layer):
            cost = self._held.cost([*one.modules, *rest], layer)
            rows.append(_row(one, cost, self._total))
        return rows

    def forecasts(self, samples: int, seed: int) -> list[Row]:
        """Forecast those that are changes of weights, all with the same gradients."""
        changes: dict[str, Mapping[str, Any]] = {}
        for layer in range(self.model.config.depth):
            if layer not in self._changes:  # measured in an earlier call
                list(self._candidates(layer))
            changes |= self._changes[layer]
        if not changes:
            return []
        trained = edited(self.model)  # whose parameters are, also where the model's are frozen
        bill = price(Problem(trained, {"input_ids": self._text.tokens}), changes, samples, seed)
        return [
            {
                "kind": name.rpartition(", ")[0],
                "layer": int(name.rpartition(", ")[2]),
                "forecast": one.forecast.value,
                "forecast_error": one.forecast.standard_error,
                "outside": one.outside,
            }
            for name, one in bill.items()
        ]

    def _candidates(self, layer: int) -> Iterator[Candidate]:
        own = self._changes.setdefault(layer, {})
        for one in candidates(self.model, self._text, self.kinds, [layer]):
            if one.change:
                own[f"{one.kind}, {layer}"] = one.change
            yield one


def _row(one: Candidate, cost: Cost, total: int) -> Row:
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
    }


def check_kinds(kinds: Collection[str]) -> None:
    """Refuse an unknown kind.

    Raises:
        ArgumentError: the known ones are listed.
    """
    for kind in kinds:
        check_name("kind", kind, KINDS)


def check_removals(
    model: Any, text: Int[Tensor, "S T"], held_out: Int[Tensor, "H T"], kinds: Collection[str] = ()
) -> None:
    """Refuse what cannot be measured.

    Raises:
        ArgumentError: see `measure_removals`.
    """
    check_layers(model)
    check_kinds(kinds)
    for name, tokens in (("text", text), ("held_out", held_out)):
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] < 2:
            said = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ArgumentError(
                f"{name}: expected token ids of shape (sequences, tokens), 2 tokens or more, got "
                f"{said}"
            )
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
