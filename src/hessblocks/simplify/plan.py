"""Plan what goes from each layer: equally many units everywhere, or by the prices of the table.

The price of a removal is the KL divergence that it adds, in nats per parameter saved. What several
removals cost is modelled, not measured: costs add up over layers and kinds, and those of units and
of groups of heads grow with the square of their number in a layer, as a quadratic loss does. Each
step takes the removal with the lowest price.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.change import LayerChange
from hessblocks.simplify.table import unit_step

MOST = 0.75
"""Largest share of a layer's units that goes, beyond which the modelled cost is a guess."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of removals."""

    changes: Mapping[int, LayerChange]
    """Layer → what goes from it; other layers stay whole."""
    forecast: float | None
    """Sum of the modelled costs, nats per token; None if nothing was priced."""

    def to_rows(self) -> list[dict[str, Any]]:
        """List what goes, one row a layer."""
        words = {"heads": "{} groups of heads", "mlp units": "{} MLP units"}
        rows = []
        for layer, change in sorted(self.changes.items()):
            gone = [words.get(kind, kind).format(n) for kind, n in change.numbers.items()]
            rows.append({"layer": layer, "gone": ", ".join(gone)})
        return rows


def even_plan(model: HessblocksForCausalLM, save: float) -> Plan:
    """Plan equally many MLP units in all layers, so that the model stays one of its family.

    Args:
        model: model of blocks.
        save: share of the parameters to save.

    Returns:
        The plan with the fewest units that save so much.

    Raises:
        ArgumentError: `save` is not between 0 and 1, the layers' MLPs differ, or `save` is more
            than units can.
    """
    goal = _goal(model, save)
    widths = {
        block.resolved_mlp_width if block.sub_blocks != "attention" else 0
        for block in model.config.blocks
    }
    units = widths.pop()
    if widths or not units:
        raise ArgumentError("--even: the layers have MLPs of different widths; leave --even out")
    mlps: list[Any] = [layer.mlp for layer in model.model.layers]
    unit = sum(_unit(mlp) for mlp in mlps)
    step = unit_step(units)
    left = int(units - goal / unit) // step * step
    if left < step:
        raise _too_much(model, save, unit * (units - step))
    change = LayerChange(units=units - left)
    return Plan(changes=dict.fromkeys(range(len(mlps)), change), forecast=None)


def priced_plan(
    model: HessblocksForCausalLM, rows: Iterable[Mapping[str, Any]], save: float
) -> Plan:
    """Plan the removals with the lowest modelled prices.

    Args:
        model: original model.
        rows: rows of the table of `measure_removals`.
        save: share of the parameters to save.

    Returns:
        The plan.

    Raises:
        ArgumentError: `save` is not between 0 and 1, or more than can go; or the table has too much
            noise to choose by: most removals cost less than two standard errors.
    """
    goal, rows = _goal(model, save), list(rows)
    clear = sum(row["kl"] >= 2 * row["kl_error"] for row in rows)
    if 2 * clear < len(rows):
        raise ArgumentError(
            f"held_out: {clear} of {len(rows)} removals cost more than twice their standard "
            "error, too few to choose by; give more sequences, or longer ones"
        )
    layers = {row["layer"]: _Layer(model, row["layer"], rows) for row in rows}
    saved, forecast = 0, 0.0
    while saved < goal:
        steps = [(*step, n) for n, layer in layers.items() for step in layer.steps()]
        if not (gaining := [step for step in steps if step[1] > 0]):
            raise _too_much(model, save, saved)
        # parameters beyond the goal are worth nothing
        best = min(gaining, key=lambda step: step[0] / min(step[1], goal - saved))
        cost, parameters, change, number = best
        saved, forecast = saved + parameters, forecast + cost
        layers[number].change = change
    changes = {n: layer.change for n, layer in layers.items() if layer.change != LayerChange()}
    attending = [n for n, block in enumerate(model.config.blocks) if block.attends]
    left = [changes.get(n, LayerChange()) for n in attending]
    if all(change.layer or change.attention != "kept" for change in left):
        raise ArgumentError(
            "save: this share would remove the attention of every layer; give a smaller one, or "
            "other --kinds"
        )
    return Plan(changes=changes, forecast=forecast)


class _Layer:
    """Modelled cost and saved parameters of a layer's changes."""

    def __init__(
        self, model: HessblocksForCausalLM, number: int, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        measured = {row["kind"]: row for row in rows if row["layer"] == number}
        self._costs = {kind: max(row["kl"], 0.0) for kind, row in measured.items()}
        self._saved = {kind: row["parameters"] for kind, row in measured.items()}
        self.change = LayerChange()
        block, module = model.config.blocks[number], model.model.layers[number]
        self._groups, self._units = block.resolved_key_value_heads, 0
        self._priced = dict[str, int]()
        if "mlp units" in measured:
            self._units = block.resolved_mlp_width
            self._saved["mlp units"] = _unit(module.mlp)
            self._priced["mlp units"] = measured["mlp units"]["parameters"] // _unit(module.mlp)
            self._step = unit_step(self._units)

    def steps(self) -> Iterator[tuple[float, int, LayerChange]]:
        """Yield the next changes, each with the cost and the parameters that it adds."""
        cost, saved = self._totals(self.change)
        for change in self._next():
            new_cost, parameters = self._totals(change)
            yield max(new_cost - cost, 0.0), parameters - saved, change

    def _next(self) -> Iterator[LayerChange]:
        now = self.change
        if now.layer:
            return
        if "layer" in self._costs:
            yield LayerChange(layer=True)
        if "attention" in self._costs and now.attention != "gone":
            yield replace(now, attention="gone", groups=0)
        if "linear map" in self._costs and now.attention == "kept":
            yield replace(now, attention="linear", groups=0)
        if "heads" in self._costs and now.attention == "kept" and now.groups + 1 < self._groups:
            yield replace(now, groups=now.groups + 1)
        if self._units:
            gone = now.units + ((self._units - now.units) % self._step or self._step)
            if gone <= MOST * self._units:
                yield replace(now, units=gone)

    def _totals(self, change: LayerChange) -> tuple[float, int]:
        """Compute the modelled cost and the saved parameters of a change."""
        parts = change.numbers.items()
        cost = sum(self._costs[kind] * (n / self._priced.get(kind, 1)) ** 2 for kind, n in parts)
        return cost, sum(self._saved[kind] * n for kind, n in parts)


def _goal(model: HessblocksForCausalLM, save: float) -> float:
    if not (isinstance(save, Real) and 0 < save < 1):
        raise ArgumentError(f"save: expected a share between 0 and 1, got {save!r}")
    return save * sum(parameter.numel() for parameter in model.parameters())


def _too_much(model: HessblocksForCausalLM, save: float, largest: float) -> ArgumentError:
    share = largest / sum(parameter.numel() for parameter in model.parameters())
    return ArgumentError(
        f"save: {save:.1%} of the parameters are more than can go; these kinds of removal save "
        f"{share:.1%} at most"
    )


def _unit(mlp: Any) -> int:
    """Count the parameters of an MLP's unit."""
    readers = [mlp.input, *([mlp.gate] if mlp.gate is not None else [])]
    inner = sum(reader.weight.shape[1] + (reader.bias is not None) for reader in readers)
    return int(inner + mlp.output.weight.shape[0])
