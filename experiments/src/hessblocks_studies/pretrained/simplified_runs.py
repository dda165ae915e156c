"""Find the longest run of layers that can be skipless, norm-free or parallel at once.

The rule: PLAN.md beside this file, section `simplified-runs`.

Letters: S sequences, T tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hessblocks.linalg import Estimate
from hessblocks.simplify import heal
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.data import SMOLLM2
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary
from hessblocks_studies.pretrained.pretrained_ground import TINY, Ground, ground

SINK = 4.0
"""Tokens whose states are so many times as large as the median are sinks: they stay as they are."""
LIMIT = 0.1
"""Largest KL divergence of a run on the choosing text, nats per token."""
UPDATES: Mapping[Scale, tuple[int, ...]] = {
    "smoke": (0, 1),
    "laptop": (0, 30),
    "paper": (0, 30, 300),
}
"""Scale → updates of healing after which a run grows; before 0 nothing is trained."""
ALONE, GROWING = "KL alone", "KL while the run grows"
RUN, OTHER, FIXED = "KL of the run", "KL of the run, judging", "KL, fixed run"
SKIPS, NORMS = "attention skip", "attention norm"
JUDGED_RUN = (12, 27)
"""First and last layer of the run whose attention skips are judged."""
EACH, TOGETHER, ENOUGH = 0.02, 0.05, 20
"""Most nats of a skip, of all skips of the run and of a norm; layers that must keep to the last."""


def sizes(x: Float[Tensor, "S T D"]) -> Float[Tensor, "S T 1"]:
    """Compute the root mean square of each token's state."""
    return x.square().mean(-1, keepdim=True).sqrt()


def sinks(x: Float[Tensor, "S T D"]) -> Bool[Tensor, "S T 1"]:
    """Find the tokens whose states are far larger than the median."""
    size = sizes(x)
    return size > SINK * size.median()


class FoldedSkip(nn.Module):
    """α x / rms(x) + branch: what αI of shaped attention carries in place of a skip."""

    def __init__(self, x: Float[Tensor, "S T D"]) -> None:
        super().__init__()
        self.alpha = nn.Parameter(sizes(x)[~sinks(x)].median())

    def forward(
        self, branch: Float[Tensor, "S T D"], x: Float[Tensor, "S T D"]
    ) -> Float[Tensor, "S T D"]:
        """Add the branch; sinks keep their skip."""
        return torch.where(sinks(x), x, self.alpha * x / sizes(x)) + branch


class ConstantNorm(nn.Module):
    """Constant scale in place of a norm: the median of 1 / rms(x) over ordinary tokens."""

    def __init__(self, norm: Any, x: Float[Tensor, "S T D"]) -> None:
        super().__init__()
        self.norm = norm
        self.scale = nn.Parameter((1 / sizes(x))[~sinks(x)].median())

    def forward(self, x: Float[Tensor, "S T D"]) -> Float[Tensor, "S T D"]:
        """Scale the tokens; sinks keep their norm."""
        return torch.where(sinks(x), self.norm(x), self.scale * x * self.norm.weight)


def _skipless(layer: Any, _: Any, x: Tensor, __: Any) -> None:
    layer.attention_branch = FoldedSkip(x)


def _constant(layer: Any, _: Any, x: Tensor, __: Any) -> None:
    layer.attention_norm = ConstantNorm(layer.attention_norm, x)


def _constant_before_mlp(layer: Any, original: Any, x: Tensor, context: Any) -> None:
    attended = original.attention(original.attention_norm(x), context)
    layer.mlp_norm = ConstantNorm(layer.mlp_norm, original.attention_branch(attended, x))


def _parallel(layer: Any, *_: Any) -> None:
    layer.parallel = True


Change = Callable[[Any, Any, Float[Tensor, "S T D"], Any], None]
KINDS: Mapping[str, Change] = {
    SKIPS: _skipless,
    NORMS: _constant,
    "MLP norm": _constant_before_mlp,
    "parallel": _parallel,
}
"""Kind → change of a layer, given the original's layer, the original's states before it, and their
masks and positions."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a point: one kind of change, told after one healing."""

    kind: str
    """Name in `KINDS`."""
    model: str
    """Package of the model, or `TINY`."""
    updates: tuple[int, ...]
    """Updates of healing after which the run grows; the last are told."""


def settings(scale: Scale, seeds: int | None) -> list[RunSettings]:
    """List the kinds, untrained ones first; only the order of the healing's windows is random."""
    model, updates = TINY if scale == "smoke" else SMOLLM2, UPDATES[scale]
    return [
        RunSettings(kind=kind, model=model, updates=updates[: count + 1])
        for count in range(len(updates))
        for kind in KINDS
    ]


@torch.no_grad()
def changed(subject: Ground, layers: Sequence[Any], kind: str, indices: Sequence[int]) -> list[Any]:
    """Return all layers, of which those with these indices are changed."""
    after, text = list(layers), subject.text
    for index in indices:
        after[index] = copy.deepcopy(after[index])
        original = subject.original.model.layers[index]
        KINDS[kind](after[index], original, text.states[index], text.context)
    return after


def grown(
    subject: Ground, layers: Sequence[Any], kind: str, run: range, *, healed: bool
) -> Iterator[tuple[range, Sequence[Any], Estimate]]:
    """Extend a run by the cheaper neighbour while it costs at most `LIMIT`.

    Args:
        subject: model and texts.
        layers: all layers, those of the run changed.
        kind: kind of the change.
        run: run to extend.
        healed: whether layers outside the run differ from the original's.

    Yields:
        The run, and each longer one: its layers' indices, all layers, and its KL divergence on the
        choosing text.
    """

    def costed(run: range, layers: Sequence[Any]) -> tuple[range, Sequence[Any], Estimate]:
        start = 0 if healed else run.start
        return run, layers, subject.choosing.cost(layers[start:], start).kl

    step = costed(run, layers)
    while True:
        yield step
        run, layers, _ = step
        wider = [(run.start - 1, range(run.start - 1, run.stop))] if run.start else []
        wider += [(run.stop, range(run.start, run.stop + 1))] if run.stop < len(layers) else []
        steps = [costed(wide, changed(subject, layers, kind, [new])) for new, wide in wider]
        if not steps:
            return
        step = min(steps, key=lambda step: step[2].value)
        if step[2].value > LIMIT:
            return


def measure(settings: RunSettings) -> list[Row]:
    """Price each layer alone; grow a run from the cheapest; heal the run, and let it grow again."""
    subject, kind = ground(settings.model), settings.kind
    common: Row = {"study": "simplified-runs", "rule": kind, "seed": 0}
    original, rows, alone = list(subject.original.model.layers), list[Row](), list[float]()

    def told(name: str, kl: Estimate, run: range, updates: int) -> None:
        ends = {"first": run.start, "last": run.stop - 1, "healing": updates}
        error = kl.standard_error
        rows.append(shared.measured(name, kl.value, **common, **ends, standard_error=error))

    for layer in range(len(original)):
        layers: Sequence[Any] = changed(subject, original, kind, [layer])
        kl = subject.choosing.cost(layers[layer:], layer).kl
        alone.append(kl.value)
        told(ALONE, kl, range(layer, layer + 1), 0)
    start = min(range(len(original)), key=alone.__getitem__)
    run, layers = range(start, start + 1), changed(subject, original, kind, [start])
    base: Any = copy.deepcopy(subject.original)
    for updates in settings.updates:
        if updates:
            base = heal(base, subject.original, subject.healing, steps=updates)
            layers = list(base.model.layers)
        for step in grown(subject, layers, kind, run, healed=updates > 0):
            told(GROWING, step[2], step[0], updates)
        run, layers, kl = step
        told(RUN, kl, run, updates)
        told(OTHER, subject.judging.cost(layers, 0).kl, run, updates)
        base.model.layers = nn.ModuleList(layers)
    first, last = JUDGED_RUN
    if len(original) > last and not updates:
        run = range(first, last + 1)
        layers = changed(subject, original, kind, run)
        told(FIXED, subject.judging.cost(layers, 0).kl, run, 0)
    return [row for row in rows if row["healing"] == updates]


def summarise(rows: Rows) -> Summary:
    """Plot each layer alone and the runs, and judge skips and norms."""
    alone = shared.nested(shared.of_quantity(rows, ALONE), "rule", "first")
    runs = shared.of_quantity(rows, RUN, OTHER, FIXED)
    growing = shared.of_quantity(rows, GROWING)
    checks: list[Check] = []
    fixed = [row for row in shared.of_quantity(rows, FIXED) if row["rule"] == SKIPS]
    for row in fixed:
        costs_here = [alone[SKIPS][n] for n in range(row["first"], row["last"] + 1)]
        checks.append(
            Check(
                fact=f"skips around attention of layers {row['first']} to {row['last']} can be αI",
                expected=f"at most {EACH} nats each and {TOGETHER} together",
                ours=f"at most {max(costs_here):.2g} each, {row['value']:.2g} together",
                holds=max(costs_here) <= EACH and row["value"] <= TOGETHER,
            )
        )
        cheap = sum(cost <= TOGETHER for cost in alone[NORMS].values()) if NORMS in alone else 0
        checks.append(
            Check(
                fact="norms before attention can be constants",
                expected=f"at most {TOGETHER} nats alone in {ENOUGH} layers or more",
                ours=f"in {cheap} layers",
                holds=cheap >= ENOUGH if NORMS in alone else None,
            )
        )
    curves = {
        kind: [(layer, max(cost, 1e-6), 0.0) for layer, cost in sorted(costs.items())]
        for kind, costs in alone.items()
    }
    panels = [shared.panel("One layer", "layer", DIVERGENCE, curves, log="y")]
    for (kind,), steps in shared.grouped(growing, "rule").items():
        curves = {
            f"after {healing} updates" if healing else "untrained": [
                (row["last"] - row["first"] + 1, max(row["value"], 1e-6), row["standard_error"])
                for row in members
            ]
            for (healing,), members in shared.grouped(steps, "healing").items()
        }
        panels.append(shared.panel(f"Run, {kind}", "layers", DIVERGENCE, curves, log="y"))
    return shared.summary(
        "Which layers of a pretrained model can be simplified at once",
        "KL divergence from SmolLM2-135M on the text by which runs are chosen, of each layer alone "
        "and of runs that grow from the cheapest layer, untrained and healed. Attention sinks keep "
        "their skips and norms.",
        panels,
        checks,
        runs=[{name: row[name] for name in TOLD} for row in runs],
    )


DIVERGENCE = "KL divergence (nats per token)"
TOLD = ("rule", "first", "last", "healing", "quantity", "value", "standard_error")
STUDY = Study(
    name="simplified-runs",
    title="runs of layers made skipless, norm-free or parallel",
    source="ours, the first paper's question on a pretrained model",
    published=(
        "Blocks without skips or norms are trained from scratch; which layers of a pretrained "
        "model can lose them at once was not measured."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=("study", "seed", *TOLD, "method"),
    revision=1,
)
