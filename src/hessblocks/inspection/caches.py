"""Cached keys and values as `hessblocks price --cache` prices them: grids, recipes, sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from torch import nn

from hessblocks.bill import Bill, Change, activation_changes, cache_changes
from hessblocks.settings import PricingSettings

Grid = tuple[Literal["token", "channel"], int]
GRIDS: tuple[Grid, ...] = (("token", 0), ("token", 1), ("channel", 0), ("channel", 1))
"""What shares a scale, and the number of first tokens that stay exact."""
Sets = Mapping[str, Sequence[str]]
"""Name of a setting of the whole model → names of its changes."""


def rounded_activations(model: nn.Module, settings: PricingSettings) -> dict[str, Change]:
    """Make the changes of `--cache`, head by head, and of `--activations`.

    Returns:
        Changes by name.

    Raises:
        ArgumentError: windows are shorter than a block of a channel.
    """
    changes: dict[str, Change] = {}
    bits = settings.cache
    for per, exact in GRIDS if bits else ():
        changes |= cache_changes(model, keys=bits, values=bits, per=per, exact=exact, heads=True)
    if settings.activations:
        changes |= activation_changes(model, bits=settings.activations)
    return changes


def recipes(bill: Bill, sets: Sets, bits: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """Choose the cheapest grids of keys and of values within each mean number of bits.

    One grid serves all layers: bits by layer saved nothing that was measurable (docs/cache.md).
    First tokens are rounded, since few runtimes leave them exact.

    Returns:
        Name of each recipe → names of its changes.
    """
    grids = (
        [name for name in sets if name.startswith(f"all, {kind}, ") and "exact" not in name]
        for kind in ("keys", "values")
    )
    pairs = {f"{k[5:]}; {v[5:]}": (*sets[k], *sets[v]) for k, v in product(*grids)}
    prices: dict[str, Any] = {pair: bill.sum(names) for pair, names in pairs.items()}
    recipes = {}
    for width in bits:
        if within := [pair for pair in pairs if prices[pair].bits <= width]:
            cheapest = min(within, key=lambda pair: prices[pair].forecast.value)
            recipes[f"recipe at {width} bits: {cheapest}"] = pairs[cheapest]
    return recipes


def head_map(bill: Bill, bits: int) -> dict[str, list[float | None]]:
    """Arrange forecasts of the cheaper grid by layer: kind and head → nats a token, or None."""
    nats: dict[str, dict[int, float]] = {}
    for kind, per in (("keys", "channel"), ("values", "token")):
        for price in bill.values():
            if price.how == f"{kind}, {bits} bits per {per}":
                module, _, head = price.place.rpartition(f" {kind} ")
                layer = int((re.findall(r"\.(\d+)\.", module) or [0])[0])
                nats.setdefault(f"{kind} per {per}, {head}", {})[layer] = price.forecast.value
    depth = 1 + max((layer for row in nats.values() for layer in row), default=0)
    return {name: [row.get(layer) for layer in range(depth)] for name, row in nats.items()}


def cache_sentences(
    rows: Mapping[str, Mapping[str, Any]], bits: Sequence[int], kind_of_cost: str
) -> Iterator[str]:
    """Say what grids cost against each other, what the first token costs, and recipes.

    Two costs differ if more than two joint errors apart; else nothing is said of their ratio.

    Args:
        rows: rows of together.csv.
        bits: bits of `--cache`.
        kind_of_cost: measured or forecast.
    """
    costs: dict[str, float] = {name: row[kind_of_cost] for name, row in rows.items()}

    def differ(*names: str) -> bool:
        errors = (rows[name][f"{kind_of_cost}_error"] for name in names)
        return costs[names[1]] - costs[names[0]] > 2 * math.hypot(*errors)

    for kind, width in product(("keys", "values"), bits):
        names = {per: f"all, {kind}, {width} bits per {per}" for per in ("token", "channel")}
        cheap, dear = sorted(names, key=lambda per: costs[names[per]])
        least, whole = costs[names[cheap]], names["token"]
        exact = f"{whole}, first token exact"
        if least > 0:
            ratio, share = costs[names[dear]] / least, 1 - costs[exact] / costs[whole]
            clear = differ(names[cheap], names[dear])
            times = f"{ratio:.2g} times as much" if clear else "as much, within errors,"
            part = f"carries {share:.0%}" if differ(exact, whole) else "is no clear part"
            yield (
                f"At {width} bits {kind} cost {least:.3g} nats ({kind_of_cost}) with a scale "
                f"per {cheap} and {times} with one per {dear}; "
                f"the first token {part} of their cost per token."
            )
    for name in costs:
        if name.startswith("recipe at"):
            words = "; ".join(runtime_words(name)) or "none of the runtimes' options says this"
            yield (
                f"By forecast the cheapest {name} ({costs[name]:.3g} nats, {kind_of_cost}). "
                f"Nearest: {words}."
            )


def runtime_words(recipe: str) -> Iterator[str]:
    """Write a recipe as options of transformers, llama.cpp and vLLM that can say it."""
    parts = [part.split(", ")[1].split() for part in recipe.partition(": ")[2].split("; ")]
    widths, per = [int(words[0]) for words in parts], [words[-1] for words in parts]
    alike, by_token = widths[0] if widths[0] == widths[1] else 0, set(per) == {"token"}
    axes = [1, 1] if alike == 8 else [-(grid == "channel") for grid in per]
    if alike in (2, 4) or (alike == 8 and by_token):  # HQQ cannot read 3 bits along a token again
        yield (
            f'transformers QuantizedCache("{"hqq" if alike == 8 else "quanto"}", config, '
            f"nbits={alike}, axis_key={axes[0]}, axis_value={axes[1]}), with scales per 64 entries"
        )
    types = {4: "q4_1", 5: "q5_1", 8: "q8_0"}
    if by_token and types.keys() >= {*widths}:
        k, v = (types[width] for width in widths)
        yield f"llama.cpp --cache-type-k {k} --cache-type-v {v}, with scales per 32 entries"
    if by_token and alike in (4, 8):
        yield f"vLLM --kv-cache-dtype int{alike}_per_token_head"
