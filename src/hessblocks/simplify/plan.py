"""Plan which parts of a model to remove, by lazy greedy search.

The price of a removal is the KL divergence that it adds, in nats per parameter saved. Each step
makes the removal with the lowest price. This changes all other prices, so that they are only
guesses afterwards. The lowest guess is measured again, until the lowest price is a measured one.

Source: Minoux (1978), lazy greedy search.

Letters: S sequences to fit on, H held-out sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from numbers import Real

from jaxtyping import Int
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import Candidate, edited
from hessblocks.simplify.table import Row, candidates, check_removals
from hessblocks.storage import Store

Key = tuple[str, int]
"""Name of a removal: its kind, and the number of its layer in the original model."""
Costs = dict[Key, tuple[Candidate, Cost]]
"""Candidates that were measured since the last step, each with its cost."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Removal that was made."""

    kind: str
    """Kind of the removal, a name of `KINDS`."""
    layer: int
    """Number of its layer in the original model."""
    kl: float
    """KL divergence from the original model after this step, nats per token."""
    kl_error: float
    """Standard error of `kl` over held-out sequences."""
    alone: float
    """KL divergence of this removal alone, from the table. Heads and MLP units are removed in
    several steps, which all have the value of the first."""
    share: float
    """Share of the parameters saved by all steps so far."""


class Plan:
    """Plan of removals: the steps so far, and the model after them."""

    def __init__(
        self,
        model: HessblocksForCausalLM,
        text: Int[Tensor, "S T"],
        held_out: Int[Tensor, "H T"],
        rows: Iterable[Row],
    ) -> None:
        """Begin at the original model.

        Args:
            model: original model, made of blocks; it stays as it is.
            text: sequences to refit weights on.
            held_out: other sequences, to measure KL divergence on.
            rows: rows of the table of `measure_removals`, whose prices are the first guesses.

        Raises:
            ArgumentError: an argument that `measure_removals` refuses, or a table with too much
                noise to choose by: most removals cost less than two standard errors.
        """
        check_removals(model, text, held_out)
        rows = list(rows)
        clear = sum(row["kl"] >= 2 * row["kl_error"] for row in rows)
        if 2 * clear < len(rows):
            raise ArgumentError(
                f"held_out: {clear} of {len(rows)} removals cost more than two errors over text, "
                f"too few to choose by; give more than {len(held_out)} sequences, or longer ones"
            )
        self.model = model
        """Model after the steps so far."""
        self.steps: list[Step] = []
        self.numbers = list(range(model.config.depth))
        """For each layer that is left, its number in the original model."""
        self._text, self._held_out = Pass(model, text), Held(model, held_out)
        self._original_size = self._size()
        self._alone: dict[Key, float] = {(r["kind"], r["layer"]): r["kl"] for r in rows}
        self._guesses: dict[Key, tuple[float, int]] = {
            (row["kind"], row["layer"]): (row["kl"], row["parameters"])
            for row in rows
            if row["parameters"] > 0
        }
        """Added KL divergence and saved parameters, as they were measured last."""

    @property
    def saved(self) -> float:
        """Share of the original parameters that is removed."""
        return 1 - self._size() / self._original_size

    @property
    def touched(self) -> list[int]:
        """Indices in `model` of layers to heal: changed ones, and neighbours of removed ones."""
        changed = {step.layer for step in self.steps}
        removed = changed - {*self.numbers}
        before = {max((n for n in self.numbers if n < gap), default=-1) for gap in removed}
        after = {min((n for n in self.numbers if n > gap), default=-1) for gap in removed}
        return [i for i, n in enumerate(self.numbers) if n in changed | before | after]

    def take(self, key: Key, guesses: Iterable[Row] = ()) -> Step:
        """Make a removal that an earlier call chose.

        Args:
            key: kind of the removal, and number of its layer in the original model.
            guesses: what the earlier call measured before this choice, as rows of kind, layer, kl
                (added nats per token) and parameters (saved).

        Returns:
            The step.

        Raises:
            ArgumentError: nothing of that kind is left in the layer, or the layer is gone.
        """
        measured = self._measure(key)
        if measured is None:
            raise ArgumentError(f"plan: {key[0]} of layer {key[1]} cannot be taken any more")
        self._guesses |= {(r["kind"], r["layer"]): (r["kl"], r["parameters"]) for r in guesses}
        return self._remove(key, *measured)

    def run(self, save: float, store: Store | None = None) -> None:
        """Make removals, the lowest price first, until a share of the parameters is saved.

        Args:
            save: share of the original parameters to save.
            store: store of an earlier call with the same arguments, to resume from.

        Raises:
            ArgumentError: `save` is not between 0 and 1, or more than can be removed; the message
                says how much can.
        """
        if not (isinstance(save, Real) and 0 < save < 1):
            raise ArgumentError(f"save: expected a share between 0 and 1, got {save!r}")
        while (missing := save - self.saved) > 0:
            # prices depend on the missing share, so that another `save` has other steps
            name = f"removal {len(self.steps) + 1} to {save!r}"
            if store is not None and (record := store.get(name)) is not None:
                step, *guesses = record.rows
                self.take((str(step["kind"]), int(step["layer"])), map(dict, guesses))
                continue
            if (cheapest := self._cheapest(missing * self._original_size)) is None:
                raise ArgumentError(
                    f"save: {save:.1%} of the parameters are more than can go; with the kinds that "
                    f"were asked for it is {self.saved:.1%}"
                )
            key, costs = cheapest
            row = asdict(self._remove(key, *costs[key]))
            if store is not None:
                found = ((*key, *self._guesses[key]) for key in costs)
                names = ("kind", "layer", "kl", "parameters")
                store.add(name, [row, *(dict(zip(names, one, strict=True)) for one in found)])

    def _cheapest(self, missing: float) -> tuple[Key, Costs] | None:
        """Find the removal of the lowest price, where `missing` parameters are still to be saved.

        Returns:
            The removal, and all costs that were measured to find it; None if no removal is left.
        """
        before = self.steps[-1].kl if self.steps else 0.0
        costs: Costs = {}

        def price(removal: Key) -> float:
            kl, parameters = self._guesses[removal]
            return kl / min(parameters, missing)  # parameters beyond the goal are worth nothing

        while self._guesses:
            key = min(self._guesses, key=price)
            if key in costs:
                return key, costs
            measured = self._measure(key)
            if measured is None or measured[0].parameters <= 0:
                del self._guesses[key]
                continue
            costs[key] = measured
            candidate, cost = measured
            self._guesses[key] = (cost.kl.value - before, candidate.parameters)
        return None

    def _measure(self, key: Key) -> tuple[Candidate, Cost] | None:
        """Build and measure a removal from the current model; None if it is not possible."""
        kind, number = key
        if number not in self.numbers:
            return None
        index = self.numbers.index(number)
        candidate = next(candidates(self.model, self._text, [kind], [index]), None)
        if candidate is None:
            return None
        rest = list(self.model.model.layers[index + 1 :])
        return candidate, self._held_out.cost([*candidate.modules, *rest], index)

    def _remove(self, key: Key, candidate: Candidate, cost: Cost) -> Step:
        self.model = edited(self.model, candidate)
        for states in (self._text, self._held_out):
            states.follow(self.model, candidate.layer)
        if candidate.block is None:  # the whole layer is gone
            del self.numbers[candidate.layer]
        step = Step(
            kind=key[0],
            layer=key[1],
            kl=cost.kl.value,
            kl_error=cost.kl.standard_error,
            alone=self._alone[key],
            share=self.saved,
        )
        self.steps.append(step)
        return step

    def _size(self) -> int:
        return sum(p.numel() for p in self.model.parameters())
