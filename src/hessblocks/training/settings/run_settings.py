"""What a run is made of: sizes, training and curvature settings, checked when they are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from hessblocks.curvature import parameter_groups
from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError, unknown_name
from hessblocks.models import build
from hessblocks.training.settings.checks import check_choice
from hessblocks.training.settings.observation import CurvatureSettings, ObservationSettings, chooses
from hessblocks.training.settings.optimisation import TrainingSettings
from hessblocks.training.trained_gains import has_gains


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
class SharedSettings:
    """What every run of a comparison has in common."""

    model: ModelSettings = field(default_factory=ModelSettings)
    """Sizes."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """How a model is trained."""
    curvature: CurvatureSettings | None = None
    """Curvature before and after training; None for none."""
    observation: ObservationSettings = field(default_factory=ObservationSettings)
    """What is measured on the way."""
    device: str = "cpu"
    """cpu or cuda."""

    def __post_init__(self) -> None:
        """Refuse a fixed batch whose sequences are longer than the context."""
        observed = self.observation.sample if self.observation.needs_batch else None
        for sample in (self.curvature, observed):
            if sample and sample.tokens > self.model.context:
                raise ArgumentError(
                    f"--curvature-tokens: {sample.tokens} are longer than the context of "
                    f"{self.model.context}; ask for fewer."
                )

    def check(self, presets: Iterable[str], corpus: Corpus) -> None:
        """Refuse what cannot be built, trained or measured, before anything is written.

        Raises:
            ArgumentError: names the option.
        """
        names = list(presets)
        for preset in names:
            self.model.check(preset, corpus)
        observed = self.observation.sample if self.observation.needs_batch else None
        for sample in (self.curvature, observed):
            if sample:
                corpus.curvature_batch(sample.sequences, sample.tokens)
        if self.observation.curvature_every:
            self._check_groups(names, corpus)

    def _check_groups(self, presets: Sequence[str], corpus: Corpus) -> None:
        wanted, known = self.observation.curvature_groups, dict[str, str]()
        for preset in presets:
            with torch.device("meta"):
                model = self.model.build(preset, corpus.vocab_size, seed=0)
            known |= {name: group.role for name, group in parameter_groups(model).items()}
        for one in wanted:
            if not any(chooses(one, name, role) for name, role in known.items()):
                raise unknown_name("--curvature-groups", one, dict.fromkeys(known.values()))

    def shared_config(self, corpus: Corpus) -> dict[str, Any]:
        """All that the numbers depend on, besides preset and seed, as JSON values."""
        return {
            "model": {**asdict(self.model), "vocab_size": corpus.vocab_size},
            "data": {"name": corpus.name, "fingerprint": corpus.fingerprint},
            "training": {**asdict(self.training), "betas": list(self.training.betas)},
            "curvature": asdict(self.curvature) if self.curvature else None,
            "observation": asdict(self.observation),
            "device": self.device,
        }


@dataclass(frozen=True, kw_only=True)
class RunSettings(SharedSettings):
    """One training run."""

    preset: str
    """Name of the block."""
    seed: int = 0
    """Of the weights and of the order of the data."""

    def __post_init__(self) -> None:
        """Check the seed, then the rest."""
        super().__post_init__()
        if self.seed < 0:
            raise ArgumentError(f"--seed: expected 0 or more, got {self.seed}.")

    def config(self, command: str, corpus: Corpus) -> dict[str, Any]:
        """All that the numbers depend on, as JSON values."""
        return {
            "command": command,
            "preset": self.preset,
            "seed": self.seed,
            **self.shared_config(corpus),
        }

    def line_files(self, vocab_size: int) -> tuple[str, ...]:
        """Which of metrics and observations the run leaves; gains alone may be nothing to observe."""
        observed = self.observation.needs_batch
        if self.observation.gains_every and not observed:
            with torch.device("meta"):
                observed = has_gains(self.model.build(self.preset, vocab_size, seed=0))
        return ("metrics", "observations") if observed else ("metrics",)


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration, with what training had before it could be chosen."""
    if not isinstance(config.get("training"), dict):
        return config
    training = json.loads(json.dumps(asdict(TrainingSettings())))
    observation = json.loads(json.dumps(asdict(ObservationSettings())))
    older = {"observation": observation, **config, "training": training | config["training"]}
    return {"match": "steps", **older} if "presets" in config else older


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(SharedSettings):
    """What is compared, and how."""

    presets: Sequence[str]
    """Names of the blocks, each once."""
    seeds: Sequence[int] = (0,)
    """Each block is trained once with each."""
    match: str = "steps"
    """What every preset gets as much of as the first: steps, tokens, time or flops. `training.steps`
    are those of the first."""
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)
    """Curvature of every model before and after training."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        super().__post_init__()
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ArgumentError(
                    f"--{name}: expected one or more, each once, got {', '.join(map(str, values)) or 'none'}."
                )
        check_choice("match", self.match, MATCHES)

    def runs(self, steps: Mapping[str, int] | None = None) -> list[RunSettings]:
        """Every run, seed by seed.

        Args:
            steps: of each preset; those of the settings by default.
        """
        own = steps or {}
        return [
            RunSettings(
                preset=preset,
                seed=seed,
                model=self.model,
                training=replace(self.training, steps=own.get(preset, self.training.steps)),
                curvature=self.curvature,
                observation=self.observation,
                device=self.device,
            )
            for seed in self.seeds
            for preset in self.presets
        ]

    def config(self, command: str, corpus: Corpus) -> dict[str, Any]:
        """All that the numbers depend on, as JSON values."""
        return {
            "command": command,
            "presets": list(self.presets),
            "seeds": list(self.seeds),
            "match": self.match,
            **self.shared_config(corpus),
        }


MATCHES = ("steps", "tokens", "time", "flops")
