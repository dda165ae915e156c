"""What a run is made of: sizes, training and curvature settings, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.models import build


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Sizes of a model, the same for every preset of a comparison."""

    depth: int = 4
    """Layers."""
    width: int = 128
    """Entries of a token's vector."""
    heads: int = 4
    """Attention heads; divides the width."""
    mlp_width: int | None = None
    """Hidden width of the MLP; 4 times the width by default."""
    context: int = 128
    """Longest sequence, in tokens."""

    def build(self, preset: str, vocab_size: int, seed: int) -> PreTrainedModel:
        """The freshly initialised causal language model of a preset; sets torch's random state.

        Raises:
            ArgumentError: an unknown preset, or sizes that do not fit.
        """
        torch.manual_seed(seed)
        return build(preset, vocab_size=vocab_size, **asdict(self))

    def check_sizes(self, preset: str, vocab_size: int) -> None:
        """Refuse what cannot be built, without memory for the weights and before any data is read.

        Raises:
            ArgumentError: an unknown preset, or sizes that do not fit.
        """
        with torch.device("meta"):
            self.build(preset, vocab_size, seed=0)

    def check(self, preset: str, corpus: Corpus) -> None:
        """Refuse what cannot be built or trained, without memory for the weights.

        Raises:
            ArgumentError: an unknown preset, sizes that do not fit, or too little data.
        """
        self.check_sizes(preset, corpus.vocab_size)
        for split in ("train", "validation"):
            corpus.windows(split, self.context)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained: AdamW, linear warm-up, linear decay to 0, clipped gradients.

    Source: He & Hofmann (2024), appendix, CodeParrot settings.
    """

    steps: int = 400
    """Optimiser updates."""
    batch_size: int = 8
    """Sequences of each update."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    warmup: float = 0.05
    """Share of the steps in which the learning rate grows from 0."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings; gains and norms have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's averages of the gradient and of its square."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    log_every: int = 10
    """Steps over which each recorded training loss is averaged."""
    evaluate_every: int = 50
    """Steps between validation losses; one before the first and after the last step too."""
    evaluation_sequences: int = 64
    """Held-out windows of each validation loss, spread evenly over the split."""
    checkpoint_every: int = 100
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in (
            "steps",
            "batch_size",
            "log_every",
            "evaluate_every",
            "evaluation_sequences",
            "checkpoint_every",
        ):
            check_count(name, getattr(self, name))
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ArgumentError(f"{name}: expected a number above 0, got {value!r}.")
        if not 0 <= self.warmup <= 1:
            raise ArgumentError(f"warmup: expected a share from 0 to 1, got {self.warmup!r}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ArgumentError(f"weight_decay: expected 0 or more, got {self.weight_decay!r}.")


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings:
    """The fixed held-out batch and the probes of the curvature before and after training."""

    sequences: int = 8
    """Held-out windows."""
    tokens: int = 32
    """Tokens of each window, at most the model's context."""
    probes: int = 8
    """Random vectors a group."""
    seed: int = 0
    """Of the windows and of the probes: the same for every preset and seed of the comparison."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("sequences", "tokens", "probes"):
            check_count(name, getattr(self, name), prefix="curvature-")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """One training run."""

    preset: str
    """Name of the block."""
    seed: int = 0
    """Of the weights and of the order of the data."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """Sizes."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """How it is trained."""
    curvature: CurvatureSettings | None = None
    """Curvature before and after training; None for none."""
    device: str = "cpu"
    """cpu or cuda."""

    def __post_init__(self) -> None:
        """Check the seed."""
        if self.seed < 0:
            raise ArgumentError(f"--seed: expected 0 or more, got {self.seed}.")

    def config(self, command: str, corpus: Corpus) -> dict[str, Any]:
        """All that the numbers depend on, as JSON values."""
        return {
            "command": command,
            "preset": self.preset,
            "seed": self.seed,
            **shared_config(self.model, self.training, self.curvature, self.device, corpus),
        }


def shared_config(
    model: ModelSettings,
    training: TrainingSettings,
    curvature: CurvatureSettings | None,
    device: str,
    corpus: Corpus,
) -> dict[str, Any]:
    """What every run of a comparison has in common, as JSON values."""
    return {
        "model": {**asdict(model), "vocab_size": corpus.vocab_size},
        "data": {"name": corpus.name, "fingerprint": corpus.fingerprint},
        "training": {**asdict(training), "betas": list(training.betas)},
        "curvature": asdict(curvature) if curvature else None,
        "device": device,
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Each setting that differs, as "training.steps is 300, was 200"."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            found.append(f"{prefix}{name} is {now!r}, was {before!r}")
    return found


def resolve_device(device: str) -> str:
    """Auto to cuda where there is one, else cpu.

    Raises:
        ArgumentError: no such device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"--device: expected auto, cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device: this machine has no usable cuda device; use --device cpu.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def check_count(name: str, value: int, prefix: str = "") -> None:
    """Refuse what is below 1, naming the option.

    Raises:
        ArgumentError: names the option and what came.
    """
    if value < 1:
        raise ArgumentError(
            f"{option(name, prefix)}: expected a whole number of at least 1, got {value}."
        )


def option(name: str, prefix: str = "") -> str:
    """The command-line option of a field."""
    return f"--{prefix}{name.replace('_', '-')}"
