"""Changes that round activations, such as cached keys and values, and their diagonal prices.

With sampled gradients g = Jᵀ L ε by the tensors that are rounded, ½ Σ g²δ² has the mean
½ Σ diag(JᵀH_ℓJ) δ². Rounding errors δ of different entries count as independent. What coarse grids
do otherwise is in forecasts: queries and keys respond as their attention does, inputs take the mean
with ½ Σ (g·δ)² by tokens, and where errors of tokens add up, those of a channel are summed first.
One backward pass gives g of all layers. Letters: B sequences, G heads, S tokens, K width of a head,
D samples, J changes.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.bill.changes import Change
from hessblocks.bill.draws import Draws, Ledger, collect
from hessblocks.bill.grids import Grid, Kind, grids_of
from hessblocks.bill.prices import APART, Price, ratio_estimate
from hessblocks.bill.responses import responses, spread
from hessblocks.bill.tapping import attention_tensors, tapped
from hessblocks.curvature import Batch, Gradients, Problem, SampledPass, plain_model
from hessblocks.errors import ArgumentError, RunError, check_name, check_whole, unknown_name
from hessblocks.linalg import working_dtype

TIMES, LEAST = 3.0, 1e-6
"""A head chooses tokens, so that gradients know nothing, if a hundredth of the rounding moves its
output by so many times more or less than a tenth does, each over its share; or a tenth by a smaller
part of what the whole does, in squares."""
CHANNELS = 8
"""Independent squares that a sum over channels counts for; chosen, since a few channels rule."""
MATTERS = 0.01
"""Part of the moves of a change from which such heads matter."""
COARSE = 0.01
"""Finer rounding, by ‖δ‖ / ‖x‖, counts as infinitesimal."""
UNTOLD = "a head chooses tokens: small errors do not tell of larger ones"
FURTHER = 8
"""Further samples of a piece of text that seems to rule a forecast."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationChange(Change):
    """Change that rounds an activation during a pass; no weight is changed."""

    tap: str
    """Name of the module, and the tensor: queries, keys, values or inputs."""
    grid: Grid
    """How it is rounded."""
    entries: int
    """Entries of a token."""
    head: int | None = None
    """Head that is rounded; None: all of the tensor."""

    @property
    def size(self) -> int:
        """Number of entries of a token that are rounded."""
        return self.entries

    @property
    def heads(self) -> slice:
        """Heads that are rounded."""
        return slice(None) if self.head is None else slice(self.head, self.head + 1)

    def clashes(self, other: ActivationChange) -> bool:
        """Tell whether both round some entry."""
        return self.tap == other.tap and (
            self.head == other.head or None in (self.head, other.head)
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ActivationPrice(Price):
    """Expected KL divergence of rounding activations, by diagonal, responses and growth."""

    limits = 0.3, math.inf  # docs/cache.md has the measurements


def _change(
    tap: str, tensor: str, grid: Grid, entries: int, head: int | None = None
) -> ActivationChange:
    place = tap if head is None else f"{tap} head {head}"
    return ActivationChange(
        name=f"{place}, {grid.how}",
        place=place,
        how=f"{tensor}, {grid.how}",
        bytes=entries * grid.bits / 8,
        views=(),
        new={},
        tap=tap,
        grid=grid,
        entries=entries,
        head=head,
    )


def cache_changes(
    model: nn.Module,
    *,
    keys: Kind | Iterable[Kind] = (),
    values: Kind | Iterable[Kind] = (),
    queries: Kind | Iterable[Kind] = (),
    per: Literal["token", "channel"] = "token",
    exact: int = 0,
    heads: bool = False,
) -> dict[str, Change]:
    """Make one change for each layer (or head), tensor and grid: rounding of the KV cache.

    Keys are rounded after rotary positions, as caches hold them. Each token attends to rounded keys
    and values of all tokens, its own included.

    Args:
        model: a decoder whose attention goes through transformers' attention interface.
        keys: bits such as `(2, 3, 4)`, names of formats such as `"gguf:Q4_0"`, or `hb.Format`s.
        values: the same for values.
        queries: the same for queries.
        per: what shares a scale of b bits between its ends: a token's entries of a head, or a
            channel's entries of 32 tokens. Formats have scales along a token's head.
        exact: number of first tokens of each sequence that stay exact.
        heads: whether each head is a change of its own.

    Returns:
        Changes by name, such as `model.layers.0.self_attn keys, 3 bits per token`.

    Raises:
        ArgumentError: there is nothing to round, bits or a format do not fit, or the model's
            keys and values cannot be reached.

    Cost: a forward pass over two tokens.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> changes = hb.cache_changes(model, keys=(2, 4), values=4)
        >>> [change.how for change in changes.values()]
        ['keys, 2 bits per token', 'keys, 4 bits per token', 'values, 4 bits per token']
        >>> bill = hb.price(hb.Problem(model, {"input_ids": torch.randint(20, (8, 8))}), changes)
        >>> whole = bill.sum(name for name in changes if "4 bits" in name)  # keys and values
        >>> whole.bits, whole.trusted
        (4.0, True)
    """
    check_name("per", per, ("token", "channel"))
    check_whole(0, exact=exact)
    kinds = {"queries": queries, "keys": keys, "values": values}
    changes = []
    for tap, (count, width) in attention_tensors(model).items():
        tensor = tap.rpartition(" ")[2]
        for grid in grids_of(tensor, kinds[tensor], per, exact, width):
            for head in range(count) if heads else [None]:
                entries = width if heads else count * width
                changes.append(_change(tap, tensor, grid, entries, head))
    if not changes:
        raise ArgumentError("cache_changes: expected keys=, values= or queries=, such as keys=4")
    return {change.name: change for change in changes}


def activation_changes(
    model: nn.Module, *patterns: str, bits: Kind | Iterable[Kind] = 8
) -> dict[str, Change]:
    """Make one change for each linear module and grid: rounding of its inputs.

    Args:
        model: any model.
        patterns: patterns of modules' names, such as `"*.down_proj"`; none: all linear modules but
            the head, which a pattern may name.
        bits: bits of a symmetric grid with a scale per token, such as `(8, 4)`; or names of
            formats, or `hb.Format`s.

    Returns:
        Changes by name, such as `model.layers.0.mlp.down_proj inputs, 8 bits`.

    Raises:
        ArgumentError: no linear module has such a name, or bits or a format do not fit.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> list(hb.activation_changes(model, "*.mlp.output", bits=4))
        ['model.layers.0.mlp.output inputs, 4 bits']
    """
    model = plain_model(model)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    widths = {
        name: module.weight.shape[0 if type(module).__name__ == "Conv1D" else 1]
        for name, module in model.named_modules()
        if patterns or module is not head
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
        if not isinstance(module, nn.Embedding)
    }
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentError(
                f"patterns: expected names, got {pattern!r}; bits are named, bits=4"
            )
        if not fnmatch.filter(widths, pattern):
            raise unknown_name("module", pattern, widths)
    changes = []
    for name, width in widths.items():
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            for grid in grids_of("bits", bits, "inputs", 0, width):
                changes.append(_change(f"{name} inputs", "inputs", grid, width))
    if not changes:
        raise ArgumentError("activation_changes: expected linear modules and bits, found none")
    return {change.name: change for change in changes}


def activations_of(changes: Iterable[Change]) -> list[ActivationChange]:
    """Select the changes that round activations."""
    return [change for change in changes if isinstance(change, ActivationChange)]


def clash(changes: Iterable[ActivationChange]) -> bool:
    """Tell whether two of the changes round the same entries."""
    return any(a.clashes(b) for a, b in combinations(changes, 2))


def rounding(problem: Problem, changes: Sequence[Change]) -> AbstractContextManager[None]:
    """Round activations in the passes of a block."""
    rounded_changes = activations_of(changes)
    if not rounded_changes:
        return nullcontext()
    check_places(problem, rounded_changes)
    by_tap = _by_tap(rounded_changes)

    def rounded(tap: str, old: Tensor) -> Tensor:
        new = old
        for change in by_tap.get(tap, ()):
            if change.head is None:
                return change.grid.new(old)
            new = new.clone() if new is old else new
            new[:, change.heads] = change.grid.new(old[:, change.heads])
        return new

    return tapped(problem.model, rounded)


def _by_tap(changes: Iterable[ActivationChange]) -> dict[str, list[ActivationChange]]:
    by_tap: dict[str, list[ActivationChange]] = {}
    for change in changes:
        by_tap.setdefault(change.tap, []).append(change)
    return by_tap


def check_places(problem: Problem, changes: Iterable[ActivationChange]) -> None:
    """Check that tokens begin where grids that go by their place expect it.

    Raises:
        ArgumentError: a grid has blocks of tokens or exact first tokens, and a batch has padding,
            positions of its own or too few tokens.
    """
    edge = max((c for c in changes if c.grid.by_place), key=lambda c: c.grid.fewest, default=None)
    if edge is None:
        return
    name, fewest = edge.name, edge.grid.fewest
    for batch in problem.batches:
        if batch.inputs.ndim > 1 and batch.inputs.shape[1] < fewest:
            raise ArgumentError(
                f"batches: {name!r} needs windows of at least {fewest} tokens, and a batch has "
                f"{batch.inputs.shape[1]}; give longer windows"
            )
        mask = batch.keywords.get("attention_mask")
        padded = isinstance(mask, Tensor) and (mask.ndim != 2 or not mask.bool().all())
        if padded or batch.keywords.get("position_ids") is not None:
            raise ArgumentError(
                f"batches: {name!r} needs each token's position, and a batch has padding or "
                "position_ids; give full windows of text without them, or round per token"
            )


def draw_activations(
    problem: Problem, changes: Sequence[Change], *, samples: int, seed: int
) -> tuple[Draws, tuple[float, ...], list[Batch], dict[str, str]]:
    """Draw sampled gradients by the tensors that are rounded, and multiply them with all changes.

    Args:
        problem: model, batches and loss.
        changes: changes that round activations.
        samples: fewest samples.
        seed: seed of the signs.

    Returns:
        Draws without the full form; ‖δ‖ / ‖x‖ of each change; the rows of each pass; and, by name,
        why a forecast is not trusted.

    Raises:
        ArgumentError: a change is of weights, a tensor is not met or met twice in a pass, or see
            `collect`.
        RunError: a number is not finite.
    """
    rounded = activations_of(changes)
    if len(rounded) < len(changes):
        raise ArgumentError(
            "changes: expected activations alone or weights alone, since their gradients differ; "
            "price them apart"
        )
    problem.check_whole()
    check_places(problem, rounded)
    ledger = _Rounding(problem, rounded)
    collect(problem, [], ledger, samples=samples, seed=seed)
    return ledger.draws(), ledger.relative_sizes(), ledger.rows, ledger.untold


def further_squares(
    problem: Problem, changes: Sequence[ActivationChange], rows: Batch, draws: Draws, *, seed: int
) -> Float[Tensor, " J"]:
    """Average Σ g²δ² of some rows over samples that are none of the draws'; see `Draws.squares`."""
    ledger, first = _Rounding(problem, changes), len(draws.pieces)
    with ledger.watching(problem), problem.computing():
        passed = SampledPass(problem, rows, [])
        ledger.begin(passed)
        for number in range(FURTHER):
            sample = passed.sample(first + number, seed, keep=number + 1 < FURTHER)
            ledger.add(0, sample, slope=False, share=1.0)
        ledger.settle()
    return ledger.squared[0].mean(0)


class _Rounding(Ledger):
    """Products of gradients by activations with their rounding errors, pass by pass."""

    slopes = False
    fewest = most = 0  # gradients by weights that are held

    def __init__(self, problem: Problem, changes: Sequence[ActivationChange]) -> None:
        super().__init__()
        self._changes, self._problem = changes, problem
        self._columns = _by_tap(changes)
        self._column = {change.name: column for column, change in enumerate(changes)}
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}
        self._held: list[dict[str, Tensor]] = []
        self._parts: list[list[Tensor]] = [[] for _ in changes]  # of each head, for forecasts
        self._alike: list[list[Tensor]] = [[] for _ in changes]  # Σ (Σ gδ)² - Σ g²δ² by channels
        self._whole: list[list[Tensor]] = [[] for _ in changes]  # (Σ gδ)²
        self._ends: list[int] = []  # last piece of each pass
        self._met: set[str] = set()
        self._norms = torch.zeros(2, len(changes), dtype=torch.float64)
        self.rows: list[Batch] = []
        self.untold: dict[str, str] = {}  # changes that gradients know nothing of, and why

    def _leaf(self, tap: str, tensor: Tensor) -> Tensor:
        if tap not in self._columns:
            return tensor
        if tap in self._seen:
            raise ArgumentError(
                f"changes: {tap!r} is computed more than once in a pass, so that it cannot be "
                "priced"
            )
        leaf = torch.zeros_like(tensor, requires_grad=True)
        self._seen[tap] = tensor.detach(), leaf
        return tensor + leaf

    @contextmanager
    def watching(self, problem: Problem) -> Iterator[None]:
        """Add a zero tensor, by which to differentiate, to each tensor that is rounded."""
        with tapped(problem.model, self._leaf, self._seen.clear):
            yield

    def begin(self, passed: SampledPass) -> None:
        """Take the tensors of a pass, by which its samples differentiate."""
        self.settle()
        self._rows = [passed.rows]
        self._inputs = {tap: tensor for tap, (tensor, _) in self._seen.items()}
        passed.leaves = {tap: leaf for tap, (_, leaf) in self._seen.items()}

    def add(self, piece: int, gradients: Gradients, *, slope: bool, share: float) -> None:
        """Hold a sample until its pass ends, so that rounding is done once for all of them."""
        self.owners.append((piece, slope))
        self._held.append({tap: g for tap, g in gradients.items() if g is not None})

    def settle(self) -> None:
        """Multiply the samples of the last pass with all changes."""
        if not self._held:  # no token of the pass counts
            return
        squares = torch.zeros(len(self._held), len(self._changes), dtype=torch.float64)
        self._met |= self._inputs.keys()
        for tap, tensor in self._inputs.items():
            grids: dict[int, list[ActivationChange]] = {}
            for change in self._columns[tap]:
                grids.setdefault(id(change.grid), []).append(change)
            for alike in grids.values():
                delta = (alike[0].grid.new(tensor) - tensor).to(working_dtype(tensor.dtype))
                if not delta.isfinite().all():
                    raise RunError(f"price: {tap!r} is not finite; look at weights and batches")
                products = [delta * sample.get(tap, 0) for sample in self._held]
                diagonal = shaped = torch.stack([*map(_squares, products)])
                if tap.endswith(" inputs"):  # errors of a token's entries go together
                    tokens = [_squares(p.sum(-1, keepdim=True)) for p in products]
                    shaped = (diagonal + torch.stack(tokens)) / 2
                before, moved = _squares(tensor), _squares(delta)
                sums = torch.stack([*map(_over_tokens, products)])
                for change in alike:
                    column, heads = self._column[change.name], change.heads
                    squares[:, column] = diagonal[:, heads].sum(1)
                    pairs = sums[:, heads].square().sum((1, 2)) - diagonal[:, heads].sum(1)
                    self._alike[column].append(pairs)
                    self._whole[column].append(sums[:, heads].sum((1, 2)).square())
                    self._parts[column].append(shaped[:, heads])
                    self._norms[:, column] += torch.stack([moved[heads].sum(), before[heads].sum()])
        self.squared.append(squares)
        self.rows += self._rows
        self._ends.append(self.owners[-1][0])
        self._held = []

    def draws(self) -> Draws:
        self.settle()
        if unmet := self._columns.keys() - self._met:
            raise ArgumentError(f"changes: {min(unmet)!r} is unused in these batches; leave it out")
        self.pairs = [torch.zeros(0, len(self._changes), dtype=torch.float64)]
        draws = super().draws()
        grids = {tap: [*{c.grid: 0 for c in alike}] for tap, alike in self._columns.items()}
        shapes = {tap: tensor.shape[1::2] for tap, tensor in self._inputs.items()}
        some = spread(self.rows, self._problem.valid, 2)
        found = responses(self._problem, grids, shapes, self.rows[some])
        shaped = []
        columns = zip(self._changes, self._parts, self.relative_sizes(), strict=True)
        for change, parts, size in columns:
            part = torch.cat(parts)
            if (change.tap, change.grid) in found:
                full, small, tiny = found[change.tap, change.grid][..., change.heads]
                least, moved = small.sum(0), full.sum(0)
                chosen = (tiny.sum(0) < least / TIMES) | (tiny.sum(0) > least * TIMES)
                chosen |= least < LEAST * moved
                if moved[chosen].sum() > MATTERS * moved.sum():
                    self.untold[change.name] = UNTOLD
                known = ~chosen & (least > 0) & (size > COARSE)
                least = least.masked_fill(~known, math.inf)
                response = torch.where(known, moved / least, 1.0)
                total = draws.by_piece(part).sum(0)
                part *= response
                # adds up to 0; the spread over pieces has the error of the response by it
                apart = part.new_zeros(len(draws.shares), len(total))
                apart[self._ends[some]] = total * (full - response * small) / least
                part += apart[draws.pieces]
                shaped.append(part.sum(1))
            else:
                column, apart = self._column[change.name], part.sum(1)
                alike, whole = (torch.cat(x[column]) for x in (self._alike, self._whole))
                mixed = _mixed(draws, apart, apart + alike, CHANNELS)
                shaped.append(_mixed(draws, mixed, whole, 1))
        return replace(draws, shaped=torch.stack(shaped, 1))

    def relative_sizes(self) -> tuple[float, ...]:
        """Return ‖δ‖ / ‖x‖ of each change, over all passes."""
        return tuple((self._norms[0] / self._norms[1]).sqrt().nan_to_num(0.0).tolist())  # 0 / 0


def _over_tokens(x: Tensor) -> Float[Tensor, "G K"]:
    """Sum over tokens, for each head and channel."""
    wide = x if x.ndim == 4 else x.flatten(0, -2)[None, None]
    return wide.sum((0, 2), dtype=torch.float64).cpu()


def _squares(x: Tensor) -> Float[Tensor, " G"]:
    """Sum squares of each head; of a tensor without heads, of all its entries."""
    rows = x.transpose(0, 1).flatten(1) if x.ndim == 4 else x.flatten()[None]
    return rows.to(working_dtype(rows.dtype)).square().sum(1, dtype=torch.float64).cpu()


def _mixed(
    draws: Draws, apart: Float[Tensor, " D"], together: Float[Tensor, " D"], ways: int
) -> Float[Tensor, " D"]:
    """Take a form of the price with more pairs of entries, where it is larger by three errors.

    Args:
        draws: the draws, by whose pieces forms are compared.
        apart: a form.
        together: one with more pairs.
        ways: number of independent squares in a sample of it.

    Returns:
        (1 − w) · apart + w · together with the weight w of `weight_of_full`. The noise is the
        spread of their difference over pieces, or that of sums of so many squares if that is more:
        low sums have a low spread.
    """
    change, each = draws.by_piece(together - apart), draws.by_piece(apart).square()
    spread = ratio_estimate(change, draws.shares, len(apart), square=False).standard_error
    noise = max(spread**2, float((2 * each / draws.pieces.bincount()).sum()) / ways)
    excess = max(0.0, max(0.0, float(change.sum())) ** 2 - APART**2 * noise)
    share = excess / (excess + noise) if excess else 0.0
    return (1 - share) * apart + share * together
