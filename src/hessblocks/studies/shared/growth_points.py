"""How the blocks of the Hessian grow with the size σ of the data: the points of all such studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from hessblocks.curvature import Norms, Problem, exact_norms, group_norms, parameter_groups
from hessblocks.data import addition_batch
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Settings, number, seed_of, whole, word
from hessblocks.studies.shared.addition_model import LOSSES, addition_model

GROUPS = ("query", "value")
"""The groups whose blocks the paper shows."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of a growth study at one scale."""

    width: int
    """Entries of a token's vector, of a query and of a key."""
    sums: int
    """Sums in the batch."""
    seeds: int
    """Models drawn at each σ."""
    sigmas: tuple[float, ...]
    """Sizes of the data."""
    layers: tuple[int, ...] = (1,)
    """Depths."""
    probes: int = 20
    """Random vectors of each estimate; unused where the norm is exact."""


def logspace(first: float, last: float, count: int) -> tuple[float, ...]:
    """`count` sizes from 10^first to 10^last, equal steps on a logarithmic scale."""
    return tuple(float(value) for value in np.logspace(first, last, count))


def growth_settings(
    study: str,
    block: str,
    loss: str,
    size: Size,
    seeds: int | None,
    precision: str = "float64",
) -> list[Settings]:
    """One point for each depth, σ and seed.

    Args:
        study: name of the study.
        block: name in `addition_model.BLOCKS`.
        loss: name in `losses.LOSSES`.
        size: sizes.
        seeds: repetitions; None means those of `size`.
        precision: float64 or float32, which is twice as fast; for one layer without norm its norms are
            those of float64 to 1e-3, and to 1e-5 for σ up to 1.
    """
    return [
        {
            "study": study,
            "block": block,
            "loss": loss,
            "layers": layers,
            "width": size.width,
            "sums": size.sums,
            "sigma": sigma,
            "seed": seed,
            "probes": size.probes,
            "precision": precision,
        }
        for layers in size.layers
        for sigma in size.sigmas
        for seed in range(seeds or size.seeds)
    ]


def measure_growth(settings: Mapping[str, Scalar]) -> list[Row]:
    """Norms of the W_Q and W_V blocks of every layer: the last one exactly, earlier ones estimated.

    Weights, embeddings and sums are drawn afresh for each point.
    """
    draw = seed_of(*(settings[name] for name in ("study", "layers", "sigma", "seed")))
    model = addition_model(
        word(settings, "block"),
        layers=whole(settings, "layers"),
        width=whole(settings, "width"),
        sigma=number(settings, "sigma"),
        seed=draw,
    )
    model.to(getattr(torch, word(settings, "precision")))
    batch = addition_batch(whole(settings, "sums"), seed=draw)
    layers = whole(settings, "layers")
    rows = []
    for layer in range(layers - 1):
        norms = _estimates(model, batch, layer, settings)
        rows += _rows(settings, layer, norms)
    exact = exact_norms(model, batch, word(settings, "loss"), GROUPS)
    return rows + _rows(settings, layers - 1, exact)


def _estimates(
    model: PreTrainedModel, batch: Mapping[str, object], layer: int, settings: Settings
) -> Norms:
    problem = Problem(model, [batch], loss=LOSSES[word(settings, "loss")])
    all_groups = parameter_groups(model)
    found = group_norms(
        problem,
        {name: all_groups[f"layers.{layer}.attention.{name}"] for name in GROUPS},
        probes=whole(settings, "probes"),
        seed=whole(settings, "seed"),
    )
    return {(name, part): norm for name, parts in found.items() for part, norm in parts.items()}


def _rows(settings: Settings, layer: int, norms: Norms) -> list[Row]:
    shared = {name: settings[name] for name in ("study", "layers", "sigma", "seed")}
    return [
        {
            **shared,
            "layer": layer,
            "group": group,
            "part": part,
            "value": norm.value,
            "standard_error": norm.standard_error,
            "method": norm.method,
        }
        for (group, part), norm in norms.items()
    ]
