"""Measure Hessian blocks as functions of the data's size σ: points of the growth studies."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from hessblocks.curvature import Problem, group_norms, parameter_groups
from hessblocks.storage import Row, Scalar
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Scale, Study, seed_of
from hessblocks_studies.growth.addition_model import LOSSES, addition_model, of_current_tokens
from hessblocks_studies.growth.exact_norms import Norms, exact_norms

GROUPS = ("query", "value")
"""Groups whose blocks the paper shows."""
CURRENT = "current"
"""Target of the authors' squared loss: the current token."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of a study at initialisation, at one scale."""

    width: int
    """Width of the model, of queries and of keys."""
    sums: int
    """Number of sums in the batch."""
    seeds: int
    """Number of models, per σ if there are several σ."""
    sigmas: tuple[float, ...] = ()
    """Values of σ."""
    layers: tuple[int, ...] = (1,)
    """Numbers of layers."""
    probes: int = 20
    """Random vectors per estimate; not used for exact norms."""


def one_layer(sigmas: tuple[float, ...], seeds: int) -> dict[Scale, Size]:
    """Make the sizes of a one-layer study; `seeds` applies to laptop scale, 20 are published."""
    return {
        "smoke": Size(width=16, sums=8, seeds=2, sigmas=sigmas),
        "laptop": Size(width=128, sums=64, seeds=seeds, sigmas=sigmas),
        "paper": Size(width=128, sums=64, seeds=20, sigmas=sigmas),
    }


@dataclass(frozen=True, kw_only=True)
class DrawSettings:
    """Settings of a point at initialisation: model and sums are drawn from a seed."""

    width: int
    """Width of the model."""
    sums: int
    """Number of sums in the batch."""
    seed: int
    """Index of the repetition, from 0; it determines model and sums with the study's name."""


def draws(
    sizes: Mapping[Scale, Size], kind: type[Any] = DrawSettings, **choices: Sequence[str | None]
) -> Callable[[Scale, int | None], list[Any]]:
    """List a study's points: one per choice, depth, σ and seed, if `kind` has these fields.

    Args:
        sizes: sizes of each scale.
        kind: dataclass of the points' settings. Its sizes are named as in `Size`; depth and σ are
            named layers and sigma.
        **choices: further fields of `kind`, each with all its values.

    Returns:
        Function from scale and number of seeds to the points' settings.
    """
    wanted = {field.name for field in fields(kind)}

    def settings(scale: Scale, seeds: int | None) -> list[Any]:
        size = sizes[scale]
        fixed = {"width": [size.width], "sums": [size.sums], "probes": [size.probes], **choices}
        axes = {"layers": size.layers, "sigma": size.sigmas, "seed": range(seeds or size.seeds)}
        varied = {name: values for name, values in {**fixed, **axes}.items() if name in wanted}
        return [
            kind(**dict(zip(varied, chosen, strict=True)))
            for chosen in itertools.product(*varied.values())
        ]

    return settings


@dataclass(frozen=True, kw_only=True)
class GrowthSettings:
    """Settings of a point of a growth study: one model at one σ."""

    study: str
    """Name of the study; it determines model and sums, with depth and seed."""
    block: str
    """Name in `addition_model.BLOCKS`."""
    loss: str
    """Name in `addition_model.LOSSES`."""
    layers: int
    """Number of layers."""
    width: int
    """Width of the model."""
    sums: int
    """Number of sums in the batch."""
    sigma: float
    """Standard deviation σ of embeddings and positions."""
    seed: int
    """Index of the repetition, from 0."""
    probes: int
    """Random vectors per estimate."""
    precision: str
    """float64, or float32, which is twice as fast. For one layer without norm both give equal norms
    to 1e-3, and to 1e-5 for σ up to 1."""
    target: str | None = None
    """Target of the loss: current (the current token), or None (the next token)."""


GROWTH_COLUMNS = (
    "study", "layers", "layer", "group", "part", "sigma", "seed", "value", "standard_error",
    "method",
)  # fmt: skip


def logspace(first: float, last: float, count: int) -> tuple[float, ...]:
    """List `count` sizes from 10^first to 10^last, in equal logarithmic steps."""
    return tuple(float(value) for value in np.logspace(first, last, count))


def growth_study(
    name: str,
    *,
    block: str,
    loss: str,
    sizes: Mapping[Scale, Size],
    precision: str = "float64",
    targets: Sequence[str | None] = (None,),
    **about: Any,
) -> Study[GrowthSettings]:
    """Build a study with one point per target, depth, σ and seed.

    Args:
        name: name of the study.
        block: name in `addition_model.BLOCKS`.
        loss: name in `addition_model.LOSSES`.
        sizes: sizes of each scale.
        precision: float64 or float32.
        targets: values of the points' field `target`.
        **about: title, source, published and summarise of the `Study`.

    Returns:
        The study.
    """
    chosen = {"study": [name], "block": [block], "loss": [loss], "precision": [precision]}
    return Study(
        name=name,
        settings=draws(sizes, GrowthSettings, **chosen, target=targets),
        measure=measure_growth,
        columns=GROWTH_COLUMNS,
        revision=2,  # one draw for all σ
        **about,
    )


def measure_growth(settings: GrowthSettings) -> list[Row]:
    """Measure the W_Q and W_V blocks of every layer: exactly in the last, by estimates in others.

    Weights, sums and the directions of embeddings are those of the seed, equal at all σ. (The paper
    draws anew at each σ.)

    Returns:
        One row per layer, group and part.
    """
    layers, sigma = settings.layers, settings.sigma
    draw = seed_of(settings.study, layers, settings.seed)
    model = addition_model(
        settings.block, layers=layers, width=settings.width, sigma=sigma, seed=draw
    )
    model.to(getattr(torch, settings.precision))
    batch = addition_batch(settings.sums, seed=draw)
    if settings.target == CURRENT:
        batch = of_current_tokens(batch)
    problem, groups = Problem(model, [batch], loss=LOSSES[settings.loss]), parameter_groups(model)
    by_layer: list[Norms] = []
    for layer in range(layers - 1):
        named = {name: groups[f"layers.{layer}.attention.{name}"] for name in GROUPS}
        norms = group_norms(problem, named, probes=settings.probes, seed=settings.seed)
        by_layer.append({(name, part): norms[name][part] for name in norms for part in norms[name]})
    by_layer.append(exact_norms(model, batch, LOSSES[settings.loss], GROUPS))
    rows = growth_rows(by_layer, settings.study, layers=layers, sigma=sigma, seed=settings.seed)
    return [{**row, "group": targeted(str(row["group"]), settings.target)} for row in rows]


def targeted(group: str, target: str | None) -> str:
    """Name a group with its target, unless that is the next token."""
    return f"{group} ({target} token)" if target else group


def growth_rows(by_layer: Sequence[Norms], study: str, **point: Scalar) -> list[Row]:
    """Make one row per layer, group and part.

    Args:
        by_layer: norms of each layer.
        study: name of the study.
        **point: layers, sigma and seed.

    Returns:
        The rows, with the columns `GROWTH_COLUMNS`.
    """
    return [
        {"study": study, **point, "layer": layer, "group": group, "part": part, **norm.to_row()}
        for layer, norms in enumerate(by_layer)
        for (group, part), norm in norms.items()
    ]
