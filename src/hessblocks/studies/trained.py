"""The points of studies that train: one small language model each, its losses as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from hessblocks.data import Corpus, load_corpus
from hessblocks.models import build
from hessblocks.studies.loop import Observer, Plan, train
from hessblocks.studies.point import Row, Scalar
from hessblocks.studies.settings import number, whole, word
from hessblocks.studies.study import Scale, Settings
from hessblocks.studies.variants import Sizes, make_block

COLUMNS = (
    "study", "variant", "seed", "step", "tokens", "quantity", "layer", "group", "part", "value",
    "standard_error", "method",
)  # fmt: skip
LOSS = "validation_loss"
"""Nats per token on held-out windows; empty where training diverged."""


@dataclass(frozen=True, kw_only=True)
class TrainedSize:
    """Sizes of a training study at one scale."""

    depth: int
    """Layers."""
    width: int
    """Entries of a token's vector."""
    heads: int
    """Attention heads."""
    mlp_width: int
    """Hidden width of the MLP."""
    context: int
    """Tokens of a sequence."""
    vocab_size: int
    """Entries of the vocabulary."""
    steps: int
    """Optimiser updates."""
    batch_size: int
    """Sequences of each update."""
    learning_rate: float
    """Peak learning rate."""
    evaluations: int
    """Validation losses along the way, besides the first."""
    evaluation_sequences: int
    """Held-out windows of each."""


SMOKE = TrainedSize(
    depth=2, width=32, heads=2, mlp_width=128, context=32, vocab_size=1024, steps=40, batch_size=8,
    learning_rate=3e-3, evaluations=4, evaluation_sequences=32,
)  # fmt: skip
LAPTOP = TrainedSize(
    depth=6, width=64, heads=4, mlp_width=256, context=64, vocab_size=1024, steps=800, batch_size=16,
    learning_rate=3e-3, evaluations=16, evaluation_sequences=256,
)  # fmt: skip
PAPER = TrainedSize(
    depth=18, width=768, heads=12, mlp_width=3072, context=128, vocab_size=50_000, steps=43_000,
    batch_size=128, learning_rate=1e-3, evaluations=43, evaluation_sequences=1024,
)  # fmt: skip
SIZES: dict[Scale, TrainedSize] = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}


def trained_settings(
    study: str,
    variants: Sequence[str],
    size: TrainedSize,
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


def measure(settings: Mapping[str, Scalar]) -> list[Row]:
    """Train one model and give its losses."""
    return run(settings)


def run(settings: Mapping[str, Scalar], observer: Observer | None = None) -> list[Row]:
    """Train one model.

    Args:
        settings: as `trained_settings` gives them.
        observer: looks at the model before the first step and whenever a loss is taken.

    Returns:
        Parameters, validation losses, and what the observer saw.
    """
    model = make_model(settings)
    plan = Plan(
        steps=whole(settings, "steps"),
        batch_size=whole(settings, "batch_size"),
        context=whole(settings, "context"),
        learning_rate=number(settings, "learning_rate"),
        decay=str(settings.get("decay", "linear")),
        optimiser=str(settings.get("optimiser", "adamw")),
        evaluations=whole(settings, "evaluations"),
        evaluation_sequences=whole(settings, "evaluation_sequences"),
        seed=whole(settings, "seed"),
    )
    shared = {name: settings[name] for name in ("study", "variant", "seed")}
    count = sum(parameter.numel() for parameter in model.parameters())
    rows: list[Row] = [{"quantity": "parameters", "value": count, "method": "exact"}]
    rows += train(model, corpus(whole(settings, "vocab_size")), plan, observer)
    return [{**shared, **row} for row in rows]


def make_model(settings: Mapping[str, Scalar]) -> PreTrainedModel:
    """The freshly initialised model of a point, on an accelerator where there is one."""
    sizes = Sizes(**{name: whole(settings, name) for name in ("width", "heads", "mlp_width")})
    torch.manual_seed(whole(settings, "seed"))
    model = build(
        make_block(word(settings, "variant"), sizes),
        depth=whole(settings, "depth"),
        vocab_size=whole(settings, "vocab_size"),
        context=whole(settings, "context"),
    )
    return cast(Any, model).to("cuda" if torch.cuda.is_available() else "cpu")  # type: ignore[no-any-return]


@cache
def corpus(vocab_size: int) -> Corpus:
    """The standard library's source as tokens."""
    return load_corpus(None, vocab_size)
