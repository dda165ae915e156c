"""Plan removals greedily: the cheapest for what it saves, measured anew after each step.

A price that was measured before a step is a guess after it. The guess with the lowest price is
measured again, until one that was just measured is the lowest (Minoux, 1978, lazy greedy).

Letters: S sequences to fit on, H held-out sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from jaxtyping import Int
from torch import Tensor

from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import Candidate, edited
from hessblocks.simplify.table import Row, candidates, check_removals
from hessblocks.storage import Store

Key = tuple[str, int]
"""Kind, and number of the layer in the model at the start."""
Fresh = dict[Key, tuple[Candidate, Cost]]
"""What was measured since the last step."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Removal that was made."""

    kind: str
    """What was taken."""
    layer: int
    """Number of its layer in the model at the start."""
    kl: float
    """KL divergence from the model at the start after it, nats per token."""
    kl_error: float
    """Its standard error over text."""
    alone: float
    """What it cost alone, in the table; of a part that goes in several steps, its first."""
    share: float
    """Share of the parameters saved so far."""


class Plan:
    """Model on its way, with its layers' numbers at the start."""

    def __init__(
        self,
        model: HessblocksForCausalLM,
        text: Int[Tensor, "S T"],
        held_out: Int[Tensor, "H T"],
        rows: Iterable[Row],
    ) -> None:
        """Begin at a model.

        Args:
            model: of blocks; it stays as it is.
            text: to refit weights on.
            held_out: to measure on.
            rows: the table of `measure_removals`, whose prices are the first guesses.

        Raises:
            ArgumentError: see `measure_removals`, or fewer than half of the removals cost more than
                two errors over text, so that there is nothing to choose by.
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
        self.steps: list[Step] = []
        self.numbers = list(range(model.config.depth))
        self._text, self._held = Pass(model, text), Held(model, held_out)
        self._total = self._size()
        self._alone: dict[Key, float] = {(r["kind"], r["layer"]): r["kl"] for r in rows}
        self._guesses: dict[Key, float] = {  # nats a parameter
            (row["kind"], row["layer"]): row["kl"] / row["parameters"]
            for row in rows
            if row["parameters"] > 0
        }

    @property
    def saved(self) -> float:
        """Share of the parameters that is gone."""
        return 1 - self._size() / self._total

    @property
    def touched(self) -> list[int]:
        """Numbers of the layers, in the model as it is, that changed or stand beside a gap."""
        changed = {step.layer for step in self.steps}
        gone = changed - {*self.numbers}
        beside = {max((n for n in self.numbers if n < one), default=-1) for one in gone}
        beside |= {min((n for n in self.numbers if n > one), default=-1) for one in gone}
        return [at for at, n in enumerate(self.numbers) if n in changed | beside]

    def take(self, key: Key, guesses: Iterable[Row] = ()) -> Step:
        """Make a removal, as it was chosen in an earlier call.

        Args:
            key: kind, and number of the layer at the start.
            guesses: prices that were measured before it was chosen, in nats a parameter.

        Returns:
            The step.

        Raises:
            ArgumentError: there is nothing of that kind any more.
        """
        found = self._measured(key)
        if found is None:
            raise ArgumentError(f"plan: {key[0]} of layer {key[1]} cannot be taken any more")
        self._guesses |= {(row["kind"], row["layer"]): row["price"] for row in guesses}
        return self._taken(key, *found)

    def run(self, save: float, store: Store | None = None) -> None:
        """Take what is cheapest until so much is saved.

        Args:
            save: share of the parameters.
            store: of an earlier call with the same arguments, to go on from.

        Raises:
            ArgumentError: no share, or so much cannot go; it says how much can.
        """
        if not 0 < save < 1:
            raise ArgumentError(f"save: expected a share between 0 and 1, got {save!r}")
        while (missing := save - self.saved) > 0:
            name = f"step {len(self.steps) + 1} to {save:g}"
            if store is not None and (record := store.get(name)) is not None:
                step, *guesses = record.rows
                self.take((str(step["kind"]), int(step["layer"])), map(dict, guesses))
                continue
            if (best := self._cheapest(missing * self._total)) is None:
                raise ArgumentError(
                    f"save: {save:.1%} of the parameters are more than can go; with the kinds that "
                    f"were asked for it is {self.saved:.1%}"
                )
            key, fresh = best
            made = asdict(self._taken(key, *fresh[key]))
            if store is not None:
                prices = [{"kind": k, "layer": n, "price": self._guesses[k, n]} for k, n in fresh]
                store.add(name, [made, *prices])

    def _cheapest(self, missing: float) -> tuple[Key, Fresh] | None:
        """Measure guesses again, the lowest first, until one that was measured is the lowest."""
        before = self.steps[-1].kl if self.steps else 0.0
        fresh: Fresh = {}
        while self._guesses:
            key = min(self._guesses, key=lambda one: self._guesses[one])
            if key in fresh:
                return key, fresh
            found = self._measured(key)
            if found is None or found[0].parameters <= 0:
                del self._guesses[key]
                continue
            fresh[key] = found
            one, cost = found
            self._guesses[key] = (cost.kl.value - before) / min(one.parameters, missing)
        return None

    def _measured(self, key: Key) -> tuple[Candidate, Cost] | None:
        kind, number = key
        if number not in self.numbers:
            return None
        at = self.numbers.index(number)
        found = next(candidates(self.model, self._text, [kind], [at]), None)
        if found is None:
            return None
        rest = list(self.model.model.layers[at + 1 :])
        return found, self._held.cost([*found.modules, *rest], at)

    def _taken(self, key: Key, one: Candidate, cost: Cost) -> Step:
        self.model = edited(self.model, one)
        for seen in (self._text, self._held):
            seen.follow(self.model, one.layer)
        if one.block is None:
            del self.numbers[one.layer]
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
