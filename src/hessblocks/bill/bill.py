"""Bill in nats: the expected KL divergence of each change of weights, with its error.

KL(θ, θ + Δ) = ½ ΔᵀH_oΔ to second order, with H_o the Gauss-Newton matrix of the loss, for every
loss that is the −log of a distribution. Letters: U pieces of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.bill.activations import ActivationPrice, activations_of, clash, draw_activations
from hessblocks.bill.allocation import Allocation, allocate, check_budget
from hessblocks.bill.changes import Change, New, change_each, checked_changes
from hessblocks.bill.diagonal import Diagonal
from hessblocks.bill.draws import Draws, draw
from hessblocks.bill.edits import in_format
from hessblocks.bill.measured import BillCheck, measure
from hessblocks.bill.prices import Price, ratio_estimate, weight_of_full
from hessblocks.bill.secant import FLIPS, chooses, secants, with_growth, without_ruling_pieces
from hessblocks.curvature import (
    Form,
    ParameterGroup,
    Problem,
    check_problem,
    checksums,
    exclusive,
    form_of,
    overlap,
    plain_model,
)
from hessblocks.errors import ArgumentError, check_name, check_whole, unknown_name
from hessblocks.linalg import Estimate, keeping
from hessblocks.malloc import return_freed_memory
from hessblocks.storage import Tabular
from hessblocks.tensor_formats import Format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = ("mixture", "diagonal", "moments")
FEWEST_SAMPLES = 2
"""Fewest samples for a standard error."""


class UnknownChangeError(ArgumentError, KeyError):
    """Error for an unknown change; also a KeyError, as `in` and `get` of a mapping need."""

    __str__ = Exception.__str__


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bill(Tabular, Mapping[str, Price]):
    """Mapping from changes to prices; all prices use the same sampled gradients.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> problem = hb.Problem(model, {"input_ids": torch.randint(20, (8, 8))})
        >>> bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=2), hb.rounded(bits=8)))
        >>> chosen = bill.allocate(bits=4.0)  # bits for each matrix
        >>> len(bill), len(chosen.choices), chosen.total.bits <= 4.0
        (12, 6, True)
        >>> len(bill.check(3).measured)  # three changes, made one at a time
        3
    """

    rows_alone = True
    problem: Problem
    """Model, batches and loss."""
    changes: Mapping[str, Change]
    """Name → change, in the given order."""
    draws: Draws
    """Products of sampled gradients and changes, from which all prices are computed."""
    relative_sizes: tuple[float, ...]
    """‖Δ‖ / ‖w‖ of each change; the largest over its weights."""
    secants: Mapping[str, str] = field(default_factory=dict)
    """Name of a change → how its divergence differs from a quadratic; see `Price.secant`."""
    fingerprint: tuple[float, ...] = field(init=False)
    """Checksums of the model's weights at the time of pricing."""
    around: tuple[Any, ...] = field(init=False)
    """All else that the loss depends on: the model's form, buffers and batches."""

    def __post_init__(self) -> None:
        """Note the model's state."""
        object.__setattr__(self, "fingerprint", checksums(self.problem.weights.values()))
        object.__setattr__(self, "around", _around(self.problem))

    @cached_property
    def _prices(self) -> dict[str, Price]:
        return {name: self._price([name]) for name in self.changes}

    def __getitem__(self, name: str) -> Price:
        """Return the price of a change."""
        if name not in self.changes:
            raise UnknownChangeError(unknown_name("change", str(name), self.changes))
        return self._prices[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the changes."""
        return iter(self.changes)

    def __len__(self) -> int:
        """Count the changes."""
        return len(self.changes)

    def with_secants(self) -> Bill:
        """Look at a few changes on the way to them; see `hessblocks.bill.secant.secants`."""
        return replace(self, secants=secants(self.problem, self.changes, self))

    def sum(self, names: Iterable[str] | None = None) -> Price:
        """Price several changes that are made together, such as the choices of an allocation.

        Args:
            names: names of changes without any common entry; None: all changes.

        Returns:
            The price. Its `diagonal` is the sum over changes. Its `full` also contains the cross
            terms Δ_iᵀH_oΔ_j, which `cross` shows separately.

        Raises:
            ArgumentError: there is no change, a name is unknown, or two changes share an entry.
        """
        chosen = list(self.changes) if names is None else _named(names)
        for name in chosen:
            check_name("change", name, self.changes)
        views = {name: self.changes[name].views for name in chosen}
        groups = [
            ParameterGroup(name=name, role="other", layer=None, views=cuts)
            for name, cuts in views.items()
        ]
        rounded = activations_of(self.changes[name] for name in chosen)
        if not groups or len(views) < len(chosen) or clash(rounded) or overlap(groups):
            raise ArgumentError(
                "changes: expected at least one, and no two that change the same entries; price "
                f"those that overlap separately; got {'; '.join(chosen) or 'none'}"
            )
        return self._price(chosen)

    def check(
        self, which: int | str | Sequence[str | tuple[str, ...]] = 20, held_out: Any = None
    ) -> BillCheck:
        """Make changes one at a time, and measure their KL divergence.

        The model's own weights are not modified: changed weights replace them during a pass.

        Args:
            which: number of changes, evenly spaced in the ranking of forecasts; or a name, or
                several names; the changes of a tuple of names are made together.
            held_out: other batches, or a problem of the same model; None: the data of the bill, on
                which forecasts look better.

        Returns:
            Forecasts and measurements; see `.to_rows()`, `.plot()`, `.within()`.

        Raises:
            ArgumentError: there is no change, a name is unknown, changes of a tuple share an entry,
                `held_out` is of another model or divided among processes, the model is sharded, it
                or its weights have changed since, a summed loss has other data, or there is a
                single row.
            RunError: a loss is not finite.

        Cost: one forward pass over the held-out data for each change, and one more.
        """
        chosen: Any = which
        if isinstance(which, int) and not isinstance(which, bool):
            chosen = self._spread(which)
        self.problem.check_whole()
        several = isinstance(chosen, Iterable) and not isinstance(chosen, str)
        sets = [_named(item) for item in (chosen if several else [chosen])]
        if not sets:
            raise ArgumentError(
                f"which: expected names of changes, or a number of them, got {which!r}"
            )
        forecasts = [self.sum(names) for names in sets]
        problem = self.problem if held_out is None else held_out
        if not isinstance(problem, Problem):
            priced = self.problem
            problem = Problem(priced.model, held_out, priced.loss, memory_limit=priced.memory_limit)
        if problem.model is not self.problem.model:
            raise ArgumentError("held_out: expected a problem of the bill's own model")
        if problem.processes.shard:
            raise ArgumentError("held_out: changes are measured in one process; leave shard out")
        if self.fingerprint != checksums(self.problem.weights.values()):
            raise ArgumentError("model: its weights have changed since the prices; price again")
        sums = [getattr(item.loss, "reduction", "") == "sum" for item in (problem, self.problem)]
        if held_out is not None and any(sums):
            raise ArgumentError(
                "held_out: a loss with reduction='sum' grows with the amount of data, so forecasts "
                "hold for the bill's own data alone; price a mean, or leave held_out out"
            )
        losses = [form_of(self.problem.model, p.loss) for p in (problem, self.problem)]
        if losses[0] != losses[1]:
            raise ArgumentError(
                f"held_out: expected the bill's own loss, {self.problem.loss}, got {problem.loss}"
            )
        if self.around != _around(self.problem):
            raise ArgumentError(
                "model: its buffers, hooks, settings or code, or the bill's batches have changed "
                "since the prices; price again"
            )
        changes = [[self.changes[name] for name in names] for names in sets]
        result = measure(problem, forecasts, changes, held_out=held_out is not None)
        # a pass may have changed state of the model, such as a hook's list
        object.__setattr__(self, "around", _around(self.problem))
        return result

    def together(
        self,
        names: Iterable[str],
        held_out: Any = None,
        new: Mapping[str, Float[Tensor, "..."]] | None = None,
    ) -> BillCheck:
        """Measure changes made together, as `check` does, computing each once, not once a pass.

        Args:
            names: names of the changes.
            held_out: see `check`.
            new: parameter → its new value, such as that in a file that was written; it is compared
                with what was priced. None: it is computed.

        Returns:
            Forecast and measurement.
        """
        computed = {}
        for name in names:
            change = self.changes[name]
            values = change.made(self.problem.parameters)
            if new is not None:
                values = ((key, new[key]) for key in change.new)
            computed[name] = replace(change, new=dict(values))
        return replace(self, changes={**self.changes, **computed}).check([(*computed,)], held_out)

    def _spread(self, count: int) -> list[str]:
        """Choose `count` changes, evenly spaced in the ranking of forecasts; none if below 1."""
        ranked = sorted(self, key=lambda name: self[name].forecast.value)
        count = min(count, len(ranked))
        return [ranked[(2 * n + 1) * len(ranked) // (2 * count)] for n in range(count)]

    def allocate(
        self,
        *,
        bits: float | None = None,
        bytes: float | None = None,
        nats: float | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Allocation:
        """Choose bits for each place: least cost within a size, or least size within a cost.

        Args:
            bits: largest mean of bits per entry; scales are counted by formats alone.
            bytes: largest size of all tensors, with those that no change rounds at 4 bytes an
                entry.
            nats: largest sum of costs, in nats per token.
            costs: name of a rounding change → cost to use instead of its forecast, such as a score
                of another tool; None: forecasts.

        Returns:
            The choice; see `.to_rows()`, `.save("bits.csv")`.

        Raises:
            ArgumentError: none or several of `bits`, `bytes` and `nats` are given, no change
                rounds, a cost is missing, or the budget is out of reach.

        Source: Everett (1963): steps along the convex hull of cost against size, the most useful
            first.
        """
        check_budget(bits=bits, bytes=bytes, nats=nats)
        if not isinstance(costs, Mapping | None):
            raise ArgumentError(f"costs: expected numbers by name of change, got {costs!r}")
        prices = [price for price in self.values() if price.bytes is not None]
        if costs is not None:
            prices = [_at_cost(price, costs) for price in prices]
        else:
            prices = _with_most_bits(prices, bits)
        rest = self.untouched(prices)
        budgets = {"bits": bits, "bytes": None if bytes is None else bytes - rest, "nats": nats}
        chosen = self.chosen([price.name for price in allocate(prices, **budgets)])
        # rounded activations cost more together than alone
        while nats and self.draws.growth is not None and costs is None:
            if (total := chosen.total.forecast.value) <= nats:
                break
            budgets["nats"] = 0.999 * (budgets["nats"] or 0.0) * nats / total
            chosen = self.chosen([price.name for price in allocate(prices, **budgets)])
        return chosen

    def untouched(self, prices: Iterable[Price]) -> int:
        """Count the bytes of unedited parameters, at 4 an entry; 0 if activations are rounded."""
        if activations_of(self.changes.values()):
            return 0
        edited = {name for price in prices for name in self.changes[price.name].new}
        parameters = plain_model(self.problem.model).named_parameters()
        return sum(4 * p.numel() for name, p in parameters if name not in edited)

    def chosen(self, names: Sequence[str]) -> Allocation:
        """Make an allocation of changes, one for each place."""
        prices = [self[name] for name in names]
        return Allocation(
            choices=tuple(prices),
            total=self.sum(names),
            changes=tuple(self.changes[name] for name in names),
            rest=self.untouched(prices),
            model=self.problem.model,
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per change; see `Price`."""
        return [row for price in self.values() for row in price.to_rows()]

    @property
    def ruling(self) -> str:
        """Which pieces of text count by their measured divergence, in words; empty if none does."""
        measured = self.draws.measured
        count = 0 if measured is None else int(measured.any(1).sum())
        where = f"{count} of {len(self.draws.shares)} pieces of text"
        return f"{where} cost so much that they count by their measured KL" * bool(count)

    def __str__(self) -> str:
        """Print the number of changes and of samples, and the most expensive change."""
        dearest = max(self.values(), key=lambda price: price.forecast.value)
        beyond = sum(not price.trusted for price in self.values())
        outside = f", {beyond} outside of the quadratic" if beyond else ""
        spent = f"{len(self.draws.pieces)} samples" + f" ({self.ruling})" * bool(self.ruling)
        return f"bill of {len(self)} changes, {spent}{outside}; most expensive: {dearest}"

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the forecasts by place, one series per edit.

        Args:
            ax: axes of matplotlib to draw on; None: a new figure.

        Returns:
            The figure.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        places = list(dict.fromkeys(price.place for price in self.values()))
        edits = dict.fromkeys(price.how for price in self.values())
        rows = {how: [p for p in self.values() if p.how == how] for how in edits}
        panel = Panel(
            title="What each change costs",
            x_label="Place, counted from 0",
            y_label="Forecast KL, nats per token",
            y_scale="log",
            series=tuple(
                Series(
                    name=how,
                    x=tuple(places.index(price.place) for price in prices),
                    y=tuple(price.forecast.value for price in prices),
                    error=tuple(price.forecast.standard_error for price in prices),
                    line=False,
                )
                for how, prices in rows.items()
            ),
        )
        return plot(panel, ax)

    def _price(self, names: Sequence[str]) -> Price:
        """Compute the price of changes made together, from the samples of all pieces of data."""
        chosen = [self.changes[name] for name in names]
        every = list(self.changes)
        columns = [every.index(name) for name in names]
        draws, only = self.draws, chosen[0] if len(chosen) == 1 else None
        kind, every_one = (ActivationPrice, any) if activations_of(chosen) else (Price, all)
        reached = every_one(
            self.relative_sizes[column] == 0 or bool(draws.together(draws.squares, [column]).any())
            for column in columns
        )
        diagonal = draws.by_piece(draws.together(draws.squares, columns)) / 2
        mixed = draws.by_piece(draws.together(draws.forecasts, columns)) / 2
        signs, share = draws.signs(columns), 0.0
        extra: dict[str, Estimate] = {}
        if draws.along.shape[1]:
            along = draws.along[:, columns]
            full = draws.by_piece(along.sum(1).square()) / 2
            each_alone = draws.by_piece(along.square().sum(1)) / 2
            share, random = 1.0, all(change.bytes is not None for change in chosen)
            if random:  # only rounding has random signs, so that the diagonal is a forecast too
                share = weight_of_full(float(diagonal.sum()), float(full.sum()), signs, len(along))
            mixed = (1 - share) * diagonal + share * full
            extra = {
                "full": self._estimate(full),
                "cross": self._estimate(full - each_alone, square=False),
                "gradient": self._estimate(draws.slopes[:, columns].sum(1), square=False),
            }
        growth, slope, missed = draws.grown(columns)
        forecast = self._estimate(mixed)
        error = math.hypot(slope * forecast.standard_error, (1 - share) * math.sqrt(signs), missed)
        forecast = replace(forecast, value=growth * forecast.value)
        sizes = [change.bytes for change in chosen]
        return kind(
            name=only.name if only else f"{len(chosen)} changes together",
            place=only.place if only else "several",
            how=only.how if only else "together",
            bytes=None if None in sizes else sum(filter(None, sizes)),
            size=sum(change.size for change in chosen),
            relative_size=max(self.relative_sizes[column] for column in columns),
            forecast=replace(forecast, standard_error=error if reached else math.nan),
            reached=reached,
            secant=next((self.secants[name] for name in names if name in self.secants), ""),
            full_share=share,
            diagonal=self._estimate(diagonal),
            **extra,
        )

    def _estimate(self, values: Float[Tensor, " U"], *, square: bool = True) -> Estimate:
        draws = self.draws
        return ratio_estimate(values, draws.shares, len(draws.pieces), square=square)


def _around(problem: Problem) -> tuple[Form, tuple[float, ...], str]:
    """List all that a loss depends on besides weights."""
    with exclusive(problem.model):
        form = form_of(problem.model, problem.loss)
        return form, checksums(problem.model.buffers()), problem.batches.digest()


def _named(names: Any) -> tuple[str, ...]:
    """Convert a name, or several names, to a tuple of names."""
    several = isinstance(names, Iterable) and not isinstance(names, str)
    listed = tuple(names if several else [names])
    if not all(isinstance(name, str) for name in listed):
        raise ArgumentError(f"changes: expected names of changes, got {names!r}")
    return listed


def _with_most_bits(prices: Sequence[Price], budget: float | None) -> list[Price]:
    """Leave the places that no gradient reaches nothing but the most bits that fit the budget."""
    lost = {price.place for price in prices if not price.reached}
    widths = sorted({price.bits or 0.0 for price in prices}, reverse=True)
    for width in widths if lost else ():
        left = [p for p in prices if p.place not in lost or p.bits == width]
        fewest = {p.place: p for p in sorted(left, key=lambda p: -(p.bits or 0.0))}
        entries = sum(price.size for price in fewest.values())
        used = sum(price.size * (price.bits or 0.0) for price in fewest.values())
        if lost <= {*fewest} and (budget is None or used <= budget * entries):
            return left
    return list(prices)


def _at_cost(price: Price, costs: Mapping[str, float]) -> Price:
    """Replace the forecast of a price by another cost."""
    stated, cost = costs.get(price.name, math.nan), math.nan
    with suppress(TypeError, ValueError):
        cost = float(stated)
    if not math.isfinite(cost):
        raise ArgumentError(f"costs: expected a number for {price.name!r}, got {stated!r}")
    return replace(price, forecast=replace(price.forecast, value=cost))


@keeping
def price(
    problem: Problem,
    changes: Mapping[str, Change | Mapping[str, New]] | Iterable[Change],
    samples: int = 32,
    seed: int = 0,
    *,
    form: str | None = None,
) -> Bill:
    """Forecast the KL divergence of weight changes, before they are made.

    Each sample is a gradient g of random signs in the logits, over one piece of the data, as in
    `curvature_map(method="sampled")`, with E g gᵀ = H_o. One gradient gives ½ (g·Δ)² and ½ Σ g²Δ²
    for every change. The standard error is computed over pieces, so that it covers the randomness
    of samples and of data.

    Args:
        problem: model, batches and loss; the loss must not be a callable. Many short rows give a
            better standard error over text than few long ones.
        changes: name → mapping from parameter names to new tensors, or to functions of the old
            tensors; or the result of `change_each`.
        samples: fewest sampled gradients. Each is on a whole number of rows, so that more rows may
            take up to twice as many: 32 samples are 63 for 63 rows, and 32 for 64.
        seed: seed of the signs.
        form: `mixture`, the default, computes the full form too, and weighs it against the diagonal
            where changes round. `diagonal`, the default if all changes are of formats
            (`in_format`), keeps the diagonal as a tensor and prices any number of roundings.
            `moments` prices rounding with error feedback, as GPTQ's, by the second moments of the
            inputs of linear layers; the text must be other than that which the rounding fitted.

    Returns:
        Prices by name, in nats per token for cross-entropies, else in units of the loss; see
        `.sum()`, `.check()`, `.allocate()`, `.to_rows()`, `.plot()`.

    Raises:
        ArgumentError: there are fewer than 2 samples, no changes or a single row, or processes
            divide the rows; a changed parameter does not exist, is frozen or tied to another; a new
            tensor has another shape or is not finite; or the loss has no known curvature.
        RunError: a loss or a gradient is not finite.

    Cost: one forward and two backward passes over the data if there are as many rows as samples,
        and four multiplications per change, entry and sample. By the other forms one backward pass,
        and two multiplications per change and entry; by moments a product with them for each row.
        For each role and edit two forward passes over an eighth of 32 rows; over all, if the model
        chooses, as routers of experts do. For activations one or two forward passes over eight
        pieces of text for keys, values, queries and inputs of each kind of modules, those of pieces
        that rule, and four calls of attention a piece for each grid of keys and queries.

    Source: the second-order expansion of KL: Amari (1998), Natural gradient works efficiently in
        learning, equation 2.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> problem = hb.Problem(model, {"input_ids": torch.randint(20, (8, 8))})
        >>> bill = hb.price(problem, hb.change_each(model, hb.rounded(bits=2), hb.rounded(bits=8)))
        >>> name = "model.layers.0.mlp.output.weight"
        >>> coarse, fine = bill[f"{name}, 2 bits"], bill[f"{name}, 8 bits"]  # in nats per token
        >>> coarse.forecast.value > 100 * fine.forecast.value
        True
    """
    check_problem(problem)
    check_whole(FEWEST_SAMPLES, samples=samples)
    check_whole(seed=seed)
    checked = checked_changes(problem, changes)
    named: dict[str, Change] = {change.name: change for change in checked}
    if activations_of(checked):
        if form not in (None, "diagonal"):
            raise ArgumentError("form: rounded activations are priced by 'diagonal' alone")
        draws, sizes, rows, untold = draw_activations(problem, checked, samples=samples, seed=seed)
        draws = without_ruling_pieces(problem, checked, draws, rows, seed)
        draws = with_growth(problem, checked, draws, rows)  # of forecasts that no piece rules
        untold |= dict.fromkeys(named, FLIPS) if chooses(problem) else {}
        return Bill(
            problem=problem, changes=named, draws=draws, relative_sizes=sizes, secants=untold
        )
    if form is None:
        form = "diagonal" if all(change.format for change in checked) else "mixture"
    check_name("form", form, FORMS)
    if form == "mixture":
        parameters = problem.whole_parameters
        sizes = tuple(change.relative_size(parameters) for change in checked)
        draws = draw(problem, checked, samples=samples, seed=seed)
    else:
        problem.check_whole()
        if form == "diagonal" and any(change.bytes is None for change in checked):
            raise ArgumentError("form: 'diagonal' prices roundings alone; use another form")
        names = dict.fromkeys(name for change in checked for name in change.new)
        moments = form == "moments"
        weighed, draws, sizes = Diagonal(
            problem, [*names], samples=samples, seed=seed, moments=moments
        ).price(checked)  # not kept: it holds tensors of all weights
        return_freed_memory()
        named = {change.name: change for change in weighed}
    return Bill(problem=problem, changes=named, draws=draws, relative_sizes=sizes).with_secants()


def quantise(
    model: nn.Module,
    data: Any,
    formats: Iterable[str | Format],
    *,
    bytes: float | None = None,
    bits: float | None = None,
    nats: float | None = None,
    samples: int = 32,
    seed: int = 0,
) -> Allocation:
    """Choose a storage format for each weight: least KL within a size, or least size within a KL.

    Embeddings and head are chosen for too. For several budgets call `hb.price` with
    `hb.change_each(model, *map(hb.in_format, formats))` once, and `bill.allocate` for each.

    Args:
        model: a model in float32.
        data: batches of text, or a problem of the model.
        formats: names in `hb.formats()`, or formats of one's own, of one runtime.
        bytes: largest size of all tensors, scales counted; what no format fits takes 4 bytes an
            entry.
        bits: the same in bits for each weight of the model.
        nats: largest forecast, in nats per token.
        samples: sampled gradients, each on other text.
        seed: seed of their signs.

    Returns:
        The choice; `.save("model.gguf", source=...)` writes it, `.total` has the forecast.

    Raises:
        ArgumentError: see `price` and `Bill.allocate`.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=64, heads=2, vocab_size=20, context=8)
        >>> data = {"input_ids": torch.randint(20, (8, 8))}
        >>> found = hb.quantise(model, data, ["mlx:2", "mlx:4", "mlx:8"], bits=6)
        >>> found.bits <= 6, {price.how for price in found.choices} <= {"mlx:2", "mlx:4", "mlx:8"}
        (True, True)
    """
    check_budget(bits=bits, bytes=bytes, nats=nats)
    problem = data if isinstance(data, Problem) else Problem(model, data)
    changes = change_each(model, *map(in_format, formats))
    if bits is not None:
        bytes = bits * sum(p.numel() for p in model.parameters()) / 8
    return price(problem, changes, samples, seed).allocate(bytes=bytes, nats=nats)
