"""Choose a format or bits for each weight: greedy steps along convex hulls of cost over bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks import export
from hessblocks.bill.changes import Change
from hessblocks.bill.prices import Price
from hessblocks.curvature import plain_model
from hessblocks.errors import ArgumentError
from hessblocks.storage import Tabular
from hessblocks.tensor_formats import Format, as_rows


@dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(Tabular):
    """Edit chosen for each place (a weight or a group), and so its number of bits."""

    rows_alone = True
    choices: tuple[Price, ...]
    """Price of the chosen change of each place."""
    total: Price
    """Price of all choices together: forecast, mean bits, and whether the forecast is trusted."""
    changes: tuple[Change, ...]
    """The chosen changes."""
    rest: int
    """Bytes of the parameters that stay as they are."""
    model: nn.Module
    """The model whose weights are rounded."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen changes; `bill.check([allocation.names])` measures them together."""
        return tuple(price.name for price in self.choices)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, with those that stay as they are; of activations, per token."""
        return round(self.total.bytes or 0) + self.rest

    @property
    def bits(self) -> float:
        """Bits per weight of all tensors; of activations, per rounded entry."""
        if not any(change.new for change in self.changes):
            return self.total.bits or 0.0
        return 8 * self.bytes / sum(p.numel() for p in self.model.parameters())

    @property
    def formats(self) -> dict[str, tuple[Format, Float[Tensor, " width"] | None]]:
        """Parameter name → its format, and the mean squared inputs that errors are weighed by.

        Raises:
            ArgumentError: a change is of no storage format.
        """
        formats = {}
        for change in self.changes:
            edit = change.edit
            if edit is None or edit.format is None:
                raise ArgumentError(
                    f"allocation: {change.name!r} has no storage format; price hb.in_format(...)"
                )
            for name in change.new:
                formats[name] = edit.format, (edit.importance or {}).get(name)
        return formats

    def packed(self) -> dict[str, Any]:
        """Pack the weights as they are now: parameter name → what its format stores."""
        weights = dict(plain_model(self.model).named_parameters())
        return {
            name: chosen.pack(as_rows(weights[name]), importance)
            for name, (chosen, importance) in self.formats.items()
        }

    def save(self, path: str | Path, *, source: str = "", tokenizer: Any = None) -> None:
        """Write the quantised model, or the choices as a table.

        Args:
            path: a name that ends in .gguf; or in .csv, for the table; else a folder, of
                compressed-tensors or torchao as the formats are. A file is replaced.
            source: GGUF file that the model came from, whose header is copied; else it is made
                from configuration and tokeniser.
            tokenizer: tokeniser of the model.

        Raises:
            ArgumentError: formats are of another runtime, or llama.cpp's names are not known.
            RunError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix in (".csv", ".json", ".safetensors"):
            super().save(path)
            return
        self.write(path, self.packed(), source=source, tokenizer=tokenizer)

    def write(
        self, path: Path, packed: Mapping[str, Any], *, source: str = "", tokenizer: Any = None
    ) -> None:
        """Write the quantised model from what `packed` returned; see `save`."""
        model: Any = plain_model(self.model)
        formats = self.formats
        stored_as = {storage.name for storage, _ in formats.values()}
        runtimes = {name.partition(":")[0] for name in stored_as} - {"bf16"}
        kind = runtimes.pop() if len(runtimes) == 1 else ""
        if (path.suffix == ".gguf") != (kind == "gguf") or kind not in ("gguf", *export.FOLDERS):
            raise ArgumentError(
                f"path: {path} cannot hold {', '.join(sorted(stored_as))}; a .gguf file holds "
                f"gguf: formats and bf16, a folder {' or '.join(export.FOLDERS)} and bf16"
            )
        if kind != "gguf":
            widths = {
                name: int(chosen.name.rpartition(":")[2])
                for name, (chosen, _) in formats.items()
                if chosen.name.startswith(kind)
            }
            export.write_folder(path, model, tokenizer, packed, widths, kind)
            return
        header = export.header_of(source, model, tokenizer)
        names = export.gguf_tensors(model, header.architecture)
        kinds = {name: chosen.name.removeprefix("gguf:") for name, (chosen, _) in formats.items()}
        stored = {name: (packed[name], kind) for name, kind in kinds.items()}
        tensors = export.stored_tensors(model, names, stored)
        if header.architecture != "deci":  # which has the sizes of other layers
            tensors |= export.other_tensors(source, tensors)
        export.write_gguf(path, header, tensors)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return for each place its edit, bits, bytes, size, and forecast with error."""
        return [
            {
                "place": price.place,
                "how": price.how,
                "bits": price.bits,
                "bytes": price.bytes,
                "size": price.size,
                "forecast": price.forecast.value,
                "forecast_error": price.forecast.standard_error,
            }
            for price in self.choices
        ]

    def __str__(self) -> str:
        """Print mean bits, forecast, and how often each edit was chosen."""
        ranked = sorted(self.choices, key=lambda price: (price.bits or 0, price.how))
        counts = Counter(price.how for price in ranked)
        listed = ", ".join(f"{count} at {how}" for how, count in counts.items())
        return f"{self.total.bits:.3g} bits on average ({listed}); {self.total}"


def check_budget(**budgets: float | None) -> float:
    """Check that exactly one of several budgets is given.

    Returns:
        The budget.

    Raises:
        ArgumentError: none or several are given, or one is not a number.
    """
    given = {name: value for name, value in budgets.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name}: expected a number, got {value!r}")
    if len(given) != 1 or math.isnan(budget := next(iter(given.values()))):
        raise ArgumentError("allocate: give exactly one of bits=, bytes= and nats=, as a number")
    return budget


def allocate(
    prices: Sequence[Price],
    *,
    bits: float | None = None,
    bytes: float | None = None,
    nats: float | None = None,
) -> tuple[Price, ...]:
    """Choose one price, and so a number of bytes, for each place.

    Every place begins at its fewest bytes. Its steps to more bytes follow the convex hull of its
    forecasts. The steps of all places are sorted by the nats saved per byte, the most first. With
    `nats`, steps are taken until the sum is at most `nats`. With a size, every step that fits is
    taken. This is repeated from each edit within the size that all places have in common, and the
    cheapest result is returned; so it costs at most as much as one edit for all.

    Args:
        prices: prices of changes that round, several for each place.
        bits: largest mean of bits over all entries.
        bytes: largest sum of bytes.
        nats: largest sum of forecasts, in nats per token; a forecast below 0 counts as 0.

    Returns:
        The chosen price of each place.

    Raises:
        ArgumentError: none or several of `bits`, `bytes` and `nats` are given, there are no prices,
            a size is below the fewest bytes priced, or `nats` is below the least possible sum.

    Source: Everett (1963).
    """
    budget = check_budget(bits=bits, bytes=bytes, nats=nats)
    places: dict[str, list[Price]] = {}
    for price in prices:
        places.setdefault(price.place, []).append(price)
    if not places:
        raise ArgumentError("allocate: expected changes of hb.rounded(bits=), found none")
    hulls = {place: list(_hull(several)) for place, several in places.items()}
    fewest = {place: hull[0] for place, hull in hulls.items()}
    pairs = [pair for hull in hulls.values() for pair in pairwise(hull)]
    steps = [after for _, after in sorted(pairs, key=lambda pair: _gain(*pair), reverse=True)]
    if nats is None:
        entries, least = sum(price.size for price in fewest.values()), _stored(fewest)
        limit = budget if bits is None else bits * entries / 8
        if least > limit and bits is not None:
            raise ArgumentError(
                f"bits: expected at least {8 * least / entries:.3g}, the fewest that were priced"
            )
        if least > limit:
            raise ArgumentError(
                f"bytes: these weights take at least {least:,.0f} in the formats that were priced, "
                f"more than the {limit:,.0f} that are left for them"
            )
        filled = (_filled(start, steps, limit) for start in (fewest, *_uniform(places, limit)))
        return tuple(min(filled, key=_total).values())
    chosen, missing = dict(fewest), iter(steps)
    while _total(chosen) > budget:
        after = next(missing, None)
        if after is None:
            least = _total(chosen)
            raise ArgumentError(f"nats: expected at least {least:.3g}, that of the most bits")
        chosen[after.place] = after
    return tuple(chosen.values())


def _uniform(places: Mapping[str, Sequence[Price]], limit: float) -> Iterator[dict[str, Price]]:
    """Yield the choices with one edit for all places that have several, within `most` bytes."""
    for edit in dict.fromkeys(_edit(price) for several in places.values() for price in several):
        alike = {
            place: price
            for place, several in places.items()
            for price in several
            if _edit(price) == edit or len(several) == 1
        }
        if len(alike) == len(places) and _stored(alike) <= limit:
            yield alike


def _edit(price: Price) -> str:
    """Name an edit without the tensor, which `how` names where activations are rounded."""
    place = f"{price.place}, "
    return price.name.removeprefix(place) if price.name.startswith(place) else price.how


def _filled(start: Mapping[str, Price], steps: Sequence[Price], limit: float) -> dict[str, Price]:
    """Take the steps to more bytes in order; skip steps that exceed `most` bytes."""
    chosen, used = dict(start), _stored(start)
    for after in steps:
        added = _bytes(after) - _bytes(chosen[after.place])
        if added > 0 and used + added <= limit:
            chosen[after.place] = after
            used += added
    return chosen


def _stored(chosen: Mapping[str, Price]) -> float:
    return sum(map(_bytes, chosen.values()))  # multiples of 1/8: sums are exact


def _bytes(price: Price) -> float:
    return price.bytes or 0.0


def _total(chosen: Mapping[str, Price]) -> float:
    return sum(map(_cost, chosen.values()))


def _cost(price: Price) -> float:
    return max(0.0, price.forecast.value)


def _hull(prices: Sequence[Price]) -> Iterator[Price]:
    """Yield the lower convex hull of cost over bytes, from the fewest bytes on."""
    here = min(prices, key=lambda price: (_bytes(price), _cost(price)))
    while True:
        yield here
        better = [p for p in prices if _cost(p) < _cost(here) and _bytes(p) > _bytes(here)]
        if not better:
            return
        here = max(better, key=lambda price: (_gain(here, price), _bytes(price)))


def _gain(a: Price, b: Price) -> float:
    """Compute the nats saved by a step from a to b, per added byte."""
    return (_cost(a) - _cost(b)) / (_bytes(b) - _bytes(a))
