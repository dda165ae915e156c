"""Choose bits for each weight: greedy steps along convex hulls of cost against bits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hessblocks.bill.changes import Change
from hessblocks.bill.edits import Edit
from hessblocks.bill.prices import Price
from hessblocks.errors import ArgumentError
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
"""Module of a layer of Llama, Mistral, Qwen or GPT-NeoX → llama.cpp's name of its weight."""
TYPES = (
    (2, "q2_k", 256),
    (3, "q3_k", 256),
    (4, "q4_{}", 32),
    (5, "q5_{}", 32),
    (6, "q6_k", 256),
    (8, "q8_0", 32),
    (16, "f16", 1),
)
"""llama.cpp's types: bits, name, and entries of a row in one block. {} is 0 for symmetric rounding,
1 for rounding between the smallest and the largest entry of a block."""
MODULE = re.compile(r"(?:^|(?<!coder)\.)layers\.(\d+)\.(.+)\.weight$")
"""Pattern of a weight's name; not below `encoder.` or `decoder.`, which have other tensors."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(Tabular):
    """Number of bits chosen for each place (a weight or a group)."""

    rows_alone = True
    choices: tuple[Price, ...]
    """Price of the chosen change of each place."""
    total: Price
    """Price of all choices together: forecast, mean bits, and whether the forecast is trusted."""
    lines: tuple[str, ...]
    """Line of `tensor_types` for each place; empty if llama.cpp has no name for the place."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen changes; `bill.check([allocation.names])` measures them together."""
        return tuple(price.name for price in self.choices)

    def tensor_types(self) -> list[str]:
        """Write the lines that `llama-quantize --tensor-type` reads, such as `blk.0.attn_q=q4_0`.

        llama.cpp offers fixed types only. Each weight gets the smallest type with at least the
        chosen bits whose blocks divide the weight's rows.

        Returns:
            A line for each weight. Two kinds have none: weights without a name in `TENSORS`, and
            weights of which only a part is rounded, since llama.cpp gives a whole tensor one type.
        """
        return [line for line in self.lines if line]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return for each place its bits, size, forecast with error, and llama.cpp's type."""
        return [
            {
                "place": price.place,
                "bits": price.bits,
                "size": price.size,
                "forecast": price.forecast.value,
                "forecast_error": price.forecast.standard_error,
                "tensor_type": line,
            }
            for price, line in zip(self.choices, self.lines, strict=True)
        ]

    def __str__(self) -> str:
        """Print mean bits, forecast, and how often each number of bits was chosen."""
        counted: dict[float | None, int] = {}
        for price in sorted(self.choices, key=lambda price: price.bits or 0):
            counted[price.bits] = counted.get(price.bits, 0) + 1
        counts = ", ".join(f"{count} at {bits}" for bits, count in counted.items())
        return f"{self.total.bits:.3g} bits on average ({counts}); {self.total}"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the bits of each place.

        Args:
            ax: axes of matplotlib to draw on; None: a new figure.

        Returns:
            The figure.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        bits = tuple(float(price.bits or 0) for price in self.choices)
        panel = Panel(
            title=f"Bits of each place, {self.total.bits:.3g} on average",
            x_label="Place, counted from 0",
            y_label="Bits an entry",
            series=(Series(name="bits", x=tuple(range(len(bits))), y=bits, line=False),),
        )
        return plot(panel, ax)


def allocate(
    prices: Sequence[Price], *, bits: float | None = None, nats: float | None = None
) -> tuple[Price, ...]:
    """Choose one price, and so a number of bits, for each place.

    Every place begins at its fewest bits. Its steps to more bits follow the convex hull of its
    forecasts. The steps of all places are sorted by the nats saved per bit of storage, the most
    first. With `nats`, steps are taken until the sum is at most `nats`. With `bits`, every step
    that fits is taken. This is repeated from each uniform width within `bits`, and the cheapest
    result is returned; so it costs at most as much as uniform bits.

    Args:
        prices: prices of changes that round, several for each place.
        bits: largest mean of bits over all entries.
        nats: largest sum of forecasts, in nats per token; a forecast below 0 counts as 0.

    Returns:
        The chosen price of each place.

    Raises:
        ArgumentError: both or neither of `bits` and `nats` are given, there are no prices, `bits`
            is below the fewest bits priced, or `nats` is below the least possible sum.

    Source: Everett (1963).
    """
    budgets = [budget for budget in (bits, nats) if budget is not None]
    if len(budgets) != 1 or math.isnan(budgets[0]):
        raise ArgumentError("allocate: expected either bits= or nats=, a number")
    places: dict[str, list[Price]] = {}
    for price in prices:
        places.setdefault(price.place, []).append(price)
    if not places:
        raise ArgumentError("allocate: expected changes of hb.rounded(bits=), found none")
    hulls = {place: list(_hull(some)) for place, some in places.items()}
    fewest = {place: hull[0] for place, hull in hulls.items()}
    pairs = [pair for hull in hulls.values() for pair in pairwise(hull)]
    steps = [after for _, after in sorted(pairs, key=lambda pair: _gain(*pair), reverse=True)]
    if bits is not None:
        least = _mean_bits(fewest)
        if least > bits:
            raise ArgumentError(f"bits: the fewest that were priced are {least:.3g} on average")
        filled = (_filled(start, steps, bits) for start in (fewest, *_uniform(places, bits)))
        return tuple(min(filled, key=_total).values())
    chosen, missing = dict(fewest), iter(steps)
    while _total(chosen) > budgets[0]:
        after = next(missing, None)
        if after is None:
            least = _total(chosen)
            raise ArgumentError(f"nats: the least within reach of the bits priced is {least:.3g}")
        chosen[after.place] = after
    return tuple(chosen.values())


def _uniform(places: Mapping[str, Sequence[Price]], most: float) -> Iterator[dict[str, Price]]:
    """Yield the choices with equal bits for all places, up to `most` bits."""
    for width in {price.bits or 0 for some in places.values() for price in some}:
        alike = {place: [p for p in some if p.bits == width] for place, some in places.items()}
        if width <= most and all(alike.values()):
            yield {place: min(some, key=_cost) for place, some in alike.items()}


def _filled(start: Mapping[str, Price], steps: Sequence[Price], most: float) -> dict[str, Price]:
    """Take the steps to more bits in order; skip steps that exceed a mean of `most` bits."""
    chosen = dict(start)
    entries = sum(price.size for price in start.values())
    used = sum(map(_stored, start.values()))  # whole numbers: sums are exact
    for after in steps:
        added = _stored(after) - _stored(chosen[after.place])
        if added > 0 and (used + added) / entries <= most:
            chosen[after.place] = after
            used += added
    return chosen


def _mean_bits(chosen: Mapping[str, Price]) -> float:
    return sum(map(_stored, chosen.values())) / sum(price.size for price in chosen.values())


def _stored(price: Price) -> float:
    return price.size * (price.bits or 0)


def _total(chosen: Mapping[str, Price]) -> float:
    return sum(map(_cost, chosen.values()))


def _cost(price: Price) -> float:
    return max(0.0, price.forecast.value)


def _hull(prices: Sequence[Price]) -> Iterator[Price]:
    """Yield the lower convex hull of cost over bits, from the fewest bits on."""
    here = min(prices, key=lambda price: (price.bits or 0, _cost(price)))
    while True:
        yield here
        better = [p for p in prices if _cost(p) < _cost(here) and (p.bits or 0) > (here.bits or 0)]
        if not better:
            return
        here = max(better, key=lambda price: (_gain(here, price), price.bits))


def _gain(a: Price, b: Price) -> float:
    """Compute the nats saved by a step from a to b, per added bit of storage."""
    return (_cost(a) - _cost(b)) / (((b.bits or 0) - (a.bits or 0)) * b.size)


def tensor_type(change: Change, entries: Mapping[str, int]) -> str:
    """Write the llama.cpp name and type of one weight.

    Args:
        change: change that rounds the weight.
        entries: number of entries of each parameter, by name.

    Returns:
        A line such as `blk.0.attn_q=q4_0`; empty if llama.cpp has no name for the weight, or if
        only a part of the weight is rounded.
    """
    names = list(change.new)
    found = MODULE.search(names[0]) if len(names) == 1 else None
    edit = change.new[names[0]]
    if not found or found[2] not in TENSORS or not isinstance(edit, Edit) or edit.bits is None:
        return ""
    if change.size != entries[names[0]]:
        return ""
    width = change.views[0].shape[-1]
    kind = next(name for bits, name, block in TYPES if bits >= edit.bits and width % block == 0)
    return f"blk.{found[1]}.{TENSORS[found[2]]}={kind.format(0 if edit.symmetric else 1)}"
