"""Look whether the divergence of a change grows as a quadratic on the way to it.

A quadratic at the weights knows neither edges nor flats on the way. A router that chooses experts
(top-k) is an edge: for small t the divergence of tΔ grows like t, not like t². Letters: Δ change, t
share of it, K(t) measured divergence of tΔ, N windows of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hessblocks.bill.activations import (
    ActivationChange,
    ActivationPrice,
    activations_of,
    clash,
    further_squares,
)
from hessblocks.bill.changes import Change, New
from hessblocks.bill.draws import Draws
from hessblocks.bill.measured import DivergenceFrom, measure
from hessblocks.bill.prices import FEWEST_PIECES
from hessblocks.bill.responses import LOOKED_AT, spread
from hessblocks.curvature import Batch, Problem, make_plan
from hessblocks.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from hessblocks.bill.prices import Price

SHARES = 1.0, 0.25
"""Shares t of a change at which its divergence is measured."""
ROUGH = 8.0
"""Relative size of a change, in units of ε, below which weights cannot hold a share of it."""
BEYOND = 4.0
"""The same where the model makes choices: what flips there seldom flips at t = 1 on other text."""
FAR = 2.0
"""Largest factor between K(t) / t² and K(1) on a part of the text."""
FAR_WITH_CHOICES = 1.4
"""The same, and between forecast and K(1), on the whole text, where the model makes choices."""
PASSES = 4
"""Passes over the text; each over a 32nd of it, or over a fourth where the model makes choices."""
FLIPS = "the model makes choices, as routers do, which no forecast of rounded activations knows"
NOT_MEASURED = "the way to it could not be measured"
TINY = 0.1
"""Share of a rounding at which its divergence is measured on a piece that rules a forecast."""
NOT_FINITE = "price: a divergence is not finite; look at the changes"
LEAST = 1e-9
"""Divergence in nats per token below which rounding errors of float32 may decide."""
LEAST_WITH_CHOICES = 5e-5
"""The same in a model that chooses, where one choice that flips on other text may decide."""
CHOICES = ("topk", "sort", "argmax", "argmin", "kthvalue", "round", "multinomial", "bucketize")
"""Operations whose result jumps with their input."""
COMPARISONS = ("eq", "ne", "ge", "le", "gt", "lt", "isclose")
"""Operations that find where the largest entry is, of which the value alone does not jump."""
RULING = 4.0
"""A piece of text rules a forecast if it costs so many times what the median piece does."""
STEPS = 0.0025, 0.03, 0.12, 0.25, 0.5, 1.0
"""Squares of the shares of a change of the logits at which the loss is measured."""
_NUMBER = re.compile(r"\d+")


class _Choices(TorchDispatchMode):
    """Note whether an operation of `CHOICES` takes fewer entries than there are.

    `max` and `min` along an axis count where their indices are used, or their values compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self._largest: dict[int, Any] = {}  # holds them, or another tensor would get the number
        self._indices: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        values = arguments[0] if arguments else None
        result = func(*arguments, **(keywords or {}))
        inputs = {*map(id, tree_leaves((arguments, keywords)))}
        compared = inputs & {*self._largest}
        self.seen |= bool(inputs & {*self._indices} or (compared and name in COMPARISONS))
        if compared and func.is_view:
            self._largest |= {id(view): view for view in tree_leaves(result)}
        if isinstance(values, torch.Tensor) and values.is_floating_point():
            if name in ("max", "min") and func._overloadname == "dim":
                self._largest[id(result[0])], self._indices[id(result[1])] = result
            elif name in CHOICES:
                dim = arguments[2] if len(arguments) > 2 else -1
                self.seen |= not (name == "topk" and arguments[1] == values.shape[dim])
        return result


def chooses(problem: Problem) -> bool:
    """Tell whether a forward pass of the model chooses by numbers that it computes, as routers do.

    Args:
        problem: model and data; a pass over its first rows is made.

    Returns:
        True if an operation of `CHOICES` ran on computed numbers, or one found the largest entry.
    """
    with problem.computing(), torch.no_grad():
        batch = next(iter(make_plan(problem, twice=False, most_rows=1).passes))
        with _Choices() as mode:
            problem.forward(batch, problem.parameters, twice=False)
    return bool(mode.seen)


def secants(
    problem: Problem, changes: Mapping[str, Change], prices: Mapping[str, Price]
) -> dict[str, str]:
    """Measure one change for each role and edit at t = 1/4 and 1, and compare with a quadratic.

    Args:
        problem: model, loss and data of the prices.
        changes: changes by name.
        prices: their prices; only trusted ones are looked at.

    Returns:
        Name → why its forecast is not trusted, for each change whose role and edit are those of a
        change that grows otherwise.

    Cost: two forward passes for each role and edit, over a few rows; over all rows, if the model
        makes choices. Of storage formats the coarsest of a role, and a finer one where it fails.
    """
    queues: dict[tuple[str, str], dict[str, list[str]]] = {}
    trusted = [name for name in changes if prices[name].trusted and prices[name].relative_size]
    for name in sorted(trusted, key=lambda name: -prices[name].relative_size):
        change = changes[name]
        kind = _NUMBER.sub("N", change.place), "" if change.format else change.how
        queues.setdefault(kind, {}).setdefault(change.how, []).append(name)
    if not queues:
        return {}
    choosing = chooses(problem)
    unmeasured = dict.fromkeys(trusted, NOT_MEASURED)
    if problem.sharded or problem.processes.shard:  # no process has all weights or all rows
        return unmeasured if choosing else {}
    every = (*SHARES, BEYOND) if choosing else SHARES
    eps = max(torch.finfo(p.dtype).eps for p in problem.parameters.values())
    least = {n: 0.0 if prices[n].relative_size > ROUGH * eps else 1.0 for n in trusted}
    shares = {name: [t for t in every if t >= least[name]] for name in trusted}
    more = {"pieces": PASSES} if choosing else {"most_passes": PASSES}
    outside: dict[str, str] = {}
    while queues:
        alike = [edits.pop(next(iter(edits))) for edits in queues.values()]
        firsts = [names[0] for names in alike]
        several = [prices[name] for name in firsts for _ in shares[name]]
        try:
            sets = [[p] for n in firsts for p in _parts(problem, changes[n], shares[n])]
            found = measure(problem, several, sets, held_out=False, **more).measured
        except (ArgumentError, RunError):  # of a change that is random, or leaves the numbers
            return unmeasured
        passed = []
        for kind, names in zip(queues, alike, strict=True):
            tried = shares[names[0]]
            measured, found = found[: len(tried)], found[len(tried) :]
            scaled = {t: m.value / t**2 for t, m in zip(tried, measured, strict=True)}
            rounds = changes[names[0]].format is not None
            reason = _reason(prices[names[0]].forecast.value, scaled, choosing, rounds)
            outside |= dict.fromkeys(names, reason) if reason else {}
            passed += [] if reason or choosing else [kind]  # finer formats grow as coarser ones do
        queues = {kind: left for kind, left in queues.items() if left and kind not in passed}
    return outside


def without_ruling_pieces(
    problem: Problem, changes: Sequence[Change], draws: Draws, rows: Sequence[Batch], seed: int
) -> Draws:
    """Replace the products of pieces that rule a forecast by the divergence measured there.

    Near a flip, as of a first token that just does or does not become an attention sink, the
    curvature is large and holds for tiny steps alone: a forecast may be 30 times the divergence.
    A piece rules the forecast of a kind of changes (by role and edit) if it costs four times the
    median by its samples and by further ones (what is large by chance balances what is small by
    chance, and stays), and no quadratic holds there: the cost is beyond trust, or a tenth of the
    rounding costs over twice its share. The divergence is measured with all changes of a kind
    together, and divided over them by the further samples.

    Args:
        problem: model, loss and data of the draws.
        changes: changes of the draws that round activations.
        draws: their products; only the diagonal's are replaced.
        rows: rows of each pass; if passes have several pieces, nothing is sought.
        seed: seed of the draws.

    Returns:
        The draws, with `measured`.

    Raises:
        RunError: a divergence is not finite.

    Cost: a forward and eight backward passes over each piece that seems to rule; one or two forward
        passes for each kind whose forecast it rules.
    """
    is_measured = torch.zeros(len(draws.shares), len(changes), dtype=torch.bool)
    if len(rows) != len(draws.shares):
        return replace(draws, measured=is_measured)
    rounded, alike = activations_of(changes), dict[tuple[str, str], list[int]]()
    for column, change in enumerate(rounded):
        alike.setdefault((_NUMBER.sub("N", change.place), change.how), []).append(column)
    suspects: dict[int, list[tuple[list[int], float]]] = {}
    for columns in alike.values():
        costs = draws.by_piece(draws.together(draws.squares, columns)) / 2 / draws.shares
        least = RULING * float(costs.median())
        if least and not clash(rounded[c] for c in columns):  # or one change has two names
            for piece in (costs > least).nonzero()[:, 0].tolist():
                suspects.setdefault(piece, []).append((columns, least))
    squares, shaped = draws.squares.clone(), draws.forecasts.clone()
    for piece, kinds in suspects.items():
        further = further_squares(problem, rounded, rows[piece], draws, seed=seed)
        with problem.computing(), torch.no_grad():
            before = DivergenceFrom(problem, rows[piece], problem.parameters, 1)
            for columns, least in kinds:
                part, chosen = further[columns] / 2, [rounded[c] for c in columns]
                quadratic = float(part.sum())
                if quadratic <= least * draws.shares[piece]:
                    continue
                measured = float(_costs(before, chosen, 1.0)) / problem.valid
                beyond = quadratic > ActivationPrice.limits[0] * draws.shares[piece]
                far = FAR * measured
                flips = quadratic > far and _costs(before, chosen, TINY) / problem.valid > far
                if beyond or flips:
                    samples = (draws.pieces == piece).nonzero()
                    for values in (squares, shaped):
                        values[samples, torch.tensor(columns)] = part * (2 * measured / quadratic)
                    is_measured[piece, columns] = True
    if not shaped.isfinite().all():
        raise RunError(NOT_FINITE)
    return replace(draws, squares=squares, shaped=shaped, measured=is_measured)


def growth_passes(changes: Iterable[Change], pieces: int, tokens: float) -> float:
    """Count the passes over the text that `with_growth` takes at most."""
    tensors = {_NUMBER.sub("N", change.tap) for change in activations_of(changes)}
    looked_at = range(pieces)[spread(range(pieces), tokens, FEWEST_PIECES)]
    return (1 + 2 * len(tensors)) * len(looked_at) / pieces if tensors else 0.0


def with_growth(
    problem: Problem, changes: Sequence[Change], draws: Draws, rows: Sequence[Batch]
) -> Draws:
    """Measure how the divergence leaves its quadratic as forecasts grow.

    For each tensor (keys, inputs of a kind of modules, ...) the most expensive edit of all layers
    rounds a few pieces. Shares s of its change of the logits stand for cheaper roundings: log Σ exp
    has heavier tails than a quadratic, so that cross-entropies grow faster. Beyond trust the change
    of the logits saturates too: a tenth of the same rounding, with the same signs, tells by how
    much, and less so for cheaper roundings; what forecasts have of it by `responses` is left out.
    How far the quadratic there is from the forecast's, as where errors are not independent, is in
    the error, in proportion to the quadratic.

    Args:
        problem: model, loss and data of the draws.
        changes: changes of the draws that round activations.
        draws: their products.
        rows: rows of each pass.

    Returns:
        The draws, with `growth`.

    Raises:
        RunError: a divergence is not finite.

    Cost: a forward pass over eight pieces (four long ones) for each tensor, another one where the
        most expensive edit is beyond trust, and one more.
    """
    rounded, alike = activations_of(changes), dict[str, dict[str, list[int]]]()
    tensors = [_NUMBER.sub("N", change.tap) for change in rounded]
    for column, change in enumerate(rounded):
        columns = alike.setdefault(tensors[column], {}).setdefault(change.how, [])
        if not any(change.clashes(rounded[c]) for c in columns):  # heads and the whole count once
            columns.append(column)
    plain, forecasts = (draws.by_piece(x).sum(0) for x in (draws.squares, draws.forecasts))
    dearest = [
        max(edits.values(), key=lambda columns: float(forecasts[columns].sum()))
        for edits in alike.values()
    ]
    some, measured = spread(rows, problem.valid, FEWEST_PIECES), draws.measured
    alone = [n for n in range(len(rows)) if measured is None or not measured[n].any()]
    enough = len(alone) > some.step * FEWEST_PIECES
    pieces = (alone if enough else [*range(len(rows))])[some]
    trusted, counted, several = ActivationPrice.limits[0], 0.0, list[Tensor]()
    beyond = [float(forecasts[columns].sum()) / 2 > trusted for columns in dearest]
    most_parts = LOOKED_AT if len(pieces) == 1 else 1
    with problem.computing(), torch.no_grad():
        for piece in pieces:
            before = DivergenceFrom(problem, rows[piece], problem.parameters, most_parts)
            counted += sum(before.counts)
            costs = []
            for columns, far in zip(dearest, beyond, strict=True):
                chosen = [rounded[c] for c in columns]
                whole = _costs(before, chosen, 1.0, STEPS)
                tenth = _costs(before, chosen, TINY, STEPS[:1]) if far else whole[:, :1]
                costs.append(torch.cat([tenth, whole], 1))
            several.append(torch.stack(costs, 1))
    if not (windows := torch.cat(several)).isfinite().all():
        raise RunError(NOT_FINITE)
    steps = torch.tensor(STEPS, dtype=torch.float64)
    curves = dict.fromkeys(tensors, torch.stack([steps, steps, 0 * steps]))
    windows /= counted or 1.0
    for row, (tensor, columns) in enumerate(zip(alike, dearest, strict=True)):
        total = windows[:, row].sum(0)
        left = total - windows[:, row]  # without one window each: jackknife
        (tenth, first), total = total[:2], total[1:]
        quadratics = first * steps / STEPS[0]
        if first > LEAST * STEPS[0]:
            growth = _jackknifed(left[:, 1:] / left[:, 1:2]) * first
            reached = first / tenth
            if beyond[row] and not tensor.endswith(" inputs"):  # `responses` has a part of it
                reached /= forecasts[columns].sum() / plain[columns].sum()
            reached = reached.clamp(0, 1)  # what grows instead is in `missed`
            error = _jackknifed(left[:, 1] / left[:, 0]).nan_to_num(0.0, 0.0)
            # q = x / √(1 − (1 − r²) s²) inverts x = q / √(1 + a q²), which saturates
            drawn = quadratics / (1 - (1 - reached**2) * steps**2).sqrt()
            missed = 1 - 2 * first / reached / STEPS[0] / forecasts[columns].sum()
            beside = torch.hypot(error / reached, missed) * steps * total
            curves[tensor] = torch.stack([drawn, total, growth.hypot(beside)]).nan_to_num()
    return replace(draws, growth=torch.stack([curves[tensor] for tensor in tensors]))


def _reason(forecast: float, scaled: Mapping[float, float], choosing: bool, rounds: bool) -> str:
    """Say how K(t) / t² differs from a constant or the forecast; empty if it does not."""
    full, limit = scaled[1.0], FAR_WITH_CHOICES if choosing else FAR
    if full < LEAST and not choosing:
        return ""
    for t, value in scaled.items():
        if not full / limit <= value <= full * limit:
            times = f"{value / full:.2g} times" if full else "not"
            return f"KL of {t:g} of the change is {times} what a quadratic has"
    if choosing and full < LEAST_WITH_CHOICES:
        return f"one choice that flips on other text may cost more than its {full:.2g} nats"
    if choosing and not full / limit <= forecast <= full * limit:
        return f"the model makes choices, and its KL was {full:.2g} nats on the same text"
    if rounds and full > limit * forecast:
        return f"its KL was {full / forecast:.2g} times the forecast on the same text"
    return ""


def _parts(problem: Problem, change: Change, shares: Sequence[float]) -> Iterator[Change]:
    """Make shares of a change; of a storage format, packing once for all passes."""
    if change.format:
        change = replace(change, new=dict(change.made(problem.parameters)))

    def part(name: str, value: New, t: float) -> New:
        single = replace(change, new={name: value})
        return lambda old: torch.lerp(old, dict(single.made({name: old}))[name], t)

    for t in shares:
        new = {name: part(name, value, t) for name, value in change.new.items()}
        yield change if t == 1.0 else replace(change, new=new, noted={})


def _costs(
    before: DivergenceFrom,
    changes: Iterable[ActivationChange],
    t: float,
    steps: Sequence[float] = (1.0,),
) -> Tensor:
    """Measure the share t of roundings, over t²: each part of a piece at squares of shares."""
    parts, shares = [_rounded(change, t) for change in changes], [step**0.5 for step in steps]
    sums = before.divergences(before.problem.parameters, parts, shares)
    return torch.tensor(sums, dtype=torch.float64).view(-1, len(steps)) / t**2


def _rounded(change: ActivationChange, t: float) -> ActivationChange:
    """Make the share t of a rounding."""
    levels = change.grid.levels
    return replace(change, grid=replace(change.grid, levels=lambda x: torch.lerp(x, levels(x), t)))


def _jackknifed(left_out: Float[Tensor, "N ..."]) -> Float[Tensor, "..."]:
    """Compute the standard error of a statistic from its values without one window each."""
    return (left_out.var(0, correction=0) * (len(left_out) - 1)).sqrt()
