"""The points of studies that train: one small language model each, its losses as rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hessblocks.data import Corpus
from hessblocks.models import build
from hessblocks.storage import Row, Scalar
from hessblocks.studies.engine import Scale, Settings, whole, word
from hessblocks.studies.shared.texts import TextSize, text_of
from hessblocks.studies.shared.variants import Sizes, make_block
from hessblocks.training import (
    ModelSettings,
    Recorder,
    RunSettings,
    RunSize,
    TrainingSettings,
    make_trainer,
    validation_loss,
)

LOSS = "validation_loss"
"""Nats per token on held-out windows; empty where training diverged."""

Observer = Callable[[nn.Module, int], list[Row]]
"""From the model and the step to rows of what is seen there."""


def train(
    model: PreTrainedModel, settings: RunSettings, corpus: Corpus, observer: Observer | None = None
) -> list[Row]:
    """Train `model` in place.

    Args:
        model: a causal language model.
        settings: how it is trained; the model is not built from them.
        corpus: training and held-out tokens.
        observer: looks at the model whenever a validation loss is taken and finite, before the first step too.

    Returns:
        Rows with step, tokens, quantity and value; a run whose loss is no longer a number ends there,
        with an empty last value.
    """
    rows: list[Row] = []

    def note(line: Mapping[str, Any]) -> None:
        if not (found := validation_loss(line)):
            return
        step, loss = found
        place: Row = {"step": step, "tokens": line["tokens"]}
        rows.append({**place, "quantity": LOSS, "value": loss, "method": "measured"})
        if observer and loss is not None:
            rows.extend({**place, **row} for row in observer(model, step))

    with tempfile.TemporaryDirectory() as unused:
        trainer = make_trainer(model, settings, corpus, Path(unused))
        Recorder(settings, listener=note).record(trainer)
    return rows


TRAINED_COLUMNS = (
    "study", "variant", "seed", "step", "tokens", "quantity", "layer", "group", "part", "value",
    "standard_error", "method",
)  # fmt: skip
TRAINED_REVISION = 2
"""Of the studies that train; raised whenever equal settings give other losses."""
SMOKE = RunSize(
    depth=2, width=32, heads=2, mlp_width=128, context=32, vocab_size=1024, steps=40, batch_size=8,
    learning_rate=3e-3, evaluations=4, evaluation_sequences=32,
)  # fmt: skip
LAPTOP = RunSize(
    depth=6, width=64, heads=4, mlp_width=256, context=64, vocab_size=1024, steps=800, batch_size=16,
    learning_rate=3e-3, evaluations=16, evaluation_sequences=256,
)  # fmt: skip
PAPER = TextSize(
    depth=18, width=768, heads=12, mlp_width=3072, context=128, vocab_size=50_000, steps=43_000,
    batch_size=128, learning_rate=1e-3, evaluations=43, evaluation_sequences=1024,
    data="hub:codeparrot",
)  # fmt: skip
SIZES: dict[Scale, RunSize] = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}


def trained_settings(
    study: str,
    variants: Sequence[str],
    size: RunSize,
    seeds: int,
    **extra: Scalar,
) -> list[Settings]:
    """One point for each variant and seed.

    Args:
        study: name of the study.
        variants: names in `variants.VARIANTS`.
        size: sizes of model and training.
        seeds: how many; equal seeds see the same data in the same order.
        **extra: further settings of `measure`: decay, optimiser.
    """
    return [
        {"study": study, "variant": variant, "seed": seed, **asdict(size), **extra}
        for variant in variants
        for seed in range(seeds)
    ]


def measure_trained(settings: Mapping[str, Scalar]) -> list[Row]:
    """Train one model and give its losses."""
    return train_point(settings)


def train_point(settings: Mapping[str, Scalar], observer: Observer | None = None) -> list[Row]:
    """Train one model.

    Args:
        settings: as `trained_settings` gives them.
        observer: looks at the model before the first step and whenever a loss is taken.

    Returns:
        Parameters, validation losses, and what the observer saw.
    """
    model = make_model(settings)
    shared = {name: settings[name] for name in ("study", "variant", "seed")}
    count = sum(parameter.numel() for parameter in model.parameters())
    rows: list[Row] = [{"quantity": "parameters", "value": count, "method": "exact"}]
    rows += train(model, run_settings(settings), text_of(settings), observer)
    return [{**shared, **row} for row in rows]


def run_settings(settings: Mapping[str, Scalar]) -> RunSettings:
    """How the model of a point is trained."""
    size = run_size(settings)
    optimiser = str(settings.get("optimiser", "adamw"))
    training = TrainingSettings.chosen(
        **_common(TrainingSettings, size),
        optimiser=optimiser,
        schedule=str(settings.get("decay", "linear")),
    )
    return RunSettings(
        preset=word(settings, "variant"),
        seed=whole(settings, "seed"),
        model=ModelSettings(**_common(ModelSettings, size)),
        training=training,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def run_size(settings: Mapping[str, Scalar]) -> RunSize:
    """The size of a point's run."""
    found: dict[str, Any] = {field.name: settings[field.name] for field in fields(RunSize)}
    return RunSize(**found)


def _common(kind: type, size: RunSize) -> dict[str, Any]:
    """What `size` says of the fields of a kind of settings."""
    return {
        field.name: getattr(size, field.name) for field in fields(kind) if hasattr(size, field.name)
    }


def make_model(settings: Mapping[str, Scalar]) -> PreTrainedModel:
    """The freshly initialised model of a point."""
    size = run_size(settings)
    torch.manual_seed(whole(settings, "seed"))
    sizes = Sizes(width=size.width, heads=size.heads, mlp_width=size.mlp_width)
    return build(
        make_block(word(settings, "variant"), sizes),
        depth=size.depth,
        vocab_size=size.vocab_size,
        context=size.context,
    )
