"""Prepare a run: choose the device, build the model, and check everything before writing."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import local_torch_dtype

from hessblocks.blocks import BlockConfig, Position, part_of, pattern_names, slot_pairs
from hessblocks.blocks import preset as block_of
from hessblocks.conventions import selects
from hessblocks.curvature import parameter_groups
from hessblocks.data import Corpus
from hessblocks.errors import ArgumentError, in_units, main_memory, unknown_name
from hessblocks.models import build
from hessblocks.settings import ComparisonSettings, ModelSettings, RunSettings
from hessblocks.storage import parse_json

WEIGHT_AND_GRADIENT = 8
"""Bytes of a parameter and its gradient in float32, the least memory that training needs."""
LOGIT = 4
"""Bytes of a logit in float32."""
OFF = {"WORLD_SIZE": ("", "0", "1"), "LOCAL_RANK": ("", "-1")}
"""Values of torchrun's variables that mean a single process."""
FALSE = ("", "0", "false", "no", "off", "n", "f")
"""Values of accelerate's variables that mean no."""


def check_environment(device: str) -> None:
    """Refuse to train if the environment asks transformers for more than one process.

    Args:
        device: cpu or cuda.

    Raises:
        ArgumentError: a variable asks for several processes, another device or a sharded model.
    """
    for name, value in os.environ.items():
        off = FALSE if name.startswith("ACCELERATE_USE_") else OFF.get(name)
        on_cpu = name == "ACCELERATE_USE_CPU" and device == "cpu"
        if off is not None and value.strip().lower() not in off and not on_cpu:
            raise ArgumentError(
                f"{name}={value} in the environment: hessblocks trains in one process on --device; "
                "unset it, or train a model of hb.build with transformers.Trainer, which torchrun "
                "starts on several devices"
            )


def resolve_device(device: str) -> str:
    """Resolve `auto`, `cpu` or `cuda` to a device; auto is cuda if the machine has it.

    Returns:
        cpu or cuda.

    Raises:
        ArgumentError: the name is unknown, or the machine has no usable CUDA device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"--device: expected auto, cpu or cuda, got {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device: this machine has no usable cuda device; use --device cpu.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


TrainedSettings = RunSettings | ComparisonSettings


@dataclass(frozen=True)
class Prepared:
    """Checked settings of one run or several, with their text."""

    settings: TrainedSettings
    """Settings of the run, or of all runs of a comparison."""
    corpus: Corpus
    """Text to train on."""

    def outline(self, preset: str) -> PreTrainedModel:
        """Return the model of a preset on the meta device, with shapes and without values."""
        return model_without_weights(self.settings.model, preset, self.corpus.vocab_size)

    def build(self, preset: str, seed: int) -> PreTrainedModel:
        """Build the model of a preset in float32; sets torch's random state."""
        return build_model(self.settings.model, preset, self.corpus.vocab_size, seed)


def prepare(settings: TrainedSettings, corpus: Corpus) -> Prepared:
    """Refuse settings that cannot be built, trained or measured, before anything is written.

    Args:
        settings: settings of all runs.
        corpus: text to train on.

    Returns:
        Settings and text.

    Raises:
        ArgumentError: a setting does not work; the message has the option.
    """
    sizes = settings.model
    check_environment(settings.device)
    prepared = Prepared(settings, corpus)
    outlines = [prepared.outline(name) for name in settings.presets]
    for split in ("train", "validation"):
        corpus.windows(split, sizes.context)
    sequences = settings.training.sequences_each()
    size = LOGIT * sequences * sizes.context * corpus.vocab_size
    if size > (memory := _memory()):
        raise ArgumentError(
            f"--batch-size: the logits of {sequences:,} sequences take {in_units(size)}, this "
            f"machine has {in_units(memory)}; make it smaller, or share it out with --accumulate."
        )
    for sample in settings.samples:
        corpus.curvature_batch(sample.sequences, sample.tokens)
    if settings.observation.curvature_every:
        _check_groups(settings.observation.curvature_groups, outlines)
    return prepared


@local_torch_dtype(torch.float32)
def build_model(
    sizes: ModelSettings, preset: str, vocab_size: int, seed: int = 0
) -> PreTrainedModel:
    """Build the causal language model of a preset in float32; sets torch's random state.

    Args:
        sizes: sizes of the model, and blocks of the user.
        preset: name of a block, or pattern of names that the layers have in turn.
        vocab_size: entries of the vocabulary.
        seed: seed of the weights.

    Returns:
        The model, on torch's default device.

    Raises:
        ArgumentError: the preset is unknown, or sizes do not fit.
    """
    torch.manual_seed(seed)
    return build(
        blocks_of(sizes, preset),
        depth=sizes.depth,
        vocab_size=vocab_size,
        context=sizes.context,
        embedding_std=sizes.embedding_std,
        name=preset,
    )


@lru_cache(maxsize=64)  # one command asks for every run
def blocks_of(sizes: ModelSettings, preset: str) -> list[BlockConfig]:
    """Make the blocks that the layers have in turn; the list is shared, change none of it.

    Args:
        sizes: sizes of the model, and blocks of the user.
        preset: name of a block, or pattern of several names.

    Returns:
        One block for each name of the pattern.

    Raises:
        ArgumentError: a name is unknown, or parts exclude each other.
    """
    blocks = {name: BlockConfig.from_dict(parse_json(text)) for name, text in sizes.blocks}
    fields = {size: getattr(sizes, size) for size in ("width", "heads", "mlp_width")}
    slots = slot_pairs(sizes.slots)
    if sizes.position is not None:
        fields["position"] = part_of(sizes.position, Position, "position")
        slots = [("position", sizes.position), *slots]
    return [
        block_of(name, given=blocks, start=sizes.start, slots=slots, **fields)
        for name in pattern_names(preset)
    ]


def model_without_weights(sizes: ModelSettings, preset: str, vocab_size: int) -> PreTrainedModel:
    """Build a model on the meta device, where it takes no memory, to check its sizes.

    Returns:
        A model with shapes and without values.

    Raises:
        ArgumentError: the preset is unknown, sizes do not fit, or the model exceeds the memory.
    """
    model = _outline(sizes, preset, vocab_size)
    count = sum(parameter.numel() for parameter in model.parameters())
    if WEIGHT_AND_GRADIENT * count > (memory := _memory()):
        raise ArgumentError(
            f"--width: {preset} has {count:,} parameters at these sizes, "
            f"{in_units(WEIGHT_AND_GRADIENT * count)} with their gradients; this machine has "
            f"{in_units(memory)}; make it smaller."
        )
    return model


@lru_cache(maxsize=64)  # a command asks before it reads the data, and for every run
def _outline(sizes: ModelSettings, preset: str, vocab_size: int) -> PreTrainedModel:
    with torch.device("meta"):
        return build_model(sizes, preset, vocab_size)


def _memory() -> int:
    """Return the size in bytes of the largest memory of this machine, main memory or a GPU's."""
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return max([main_memory(), *(card.total_memory for card in cards)])


def _check_groups(wanted: Sequence[str], models: Iterable[PreTrainedModel]) -> None:
    """Refuse a pattern that matches no group of any model."""
    groups = {name: group for model in models for name, group in parameter_groups(model).items()}
    roles = {name: group.role for name, group in groups.items()}
    for pattern in wanted:
        if not any(selects(pattern, name, role) for name, role in roles.items()):
            raise unknown_name("--curvature-groups", pattern, dict.fromkeys(roles.values()))


def config_of(prepared: Prepared, command: str, run: RunSettings | None = None) -> dict[str, Any]:
    """Make the content of config.json: all settings that the results depend on.

    Args:
        prepared: settings of all runs.
        command: name of the command.
        run: one run of a comparison, which has its own folder; None: the whole.

    Returns:
        The settings, as JSON values.
    """
    settings = run or prepared.settings
    alone = isinstance(settings, RunSettings)
    names = ("preset", "seed") if alone else ("presets", "seeds", "tune")
    corpus = prepared.corpus
    model = {name: value for name, value in asdict(settings.model).items() if name != "blocks"}
    blocks = {
        name: {f"{n}": b.to_dict() for n, b in enumerate(blocks_of(settings.model, name), start=1)}
        for name in settings.presets
    }
    return {
        "command": command,
        **{name: getattr(settings, name) for name in names},
        "own": [name for name, _ in settings.model.blocks],
        "blocks": blocks,
        "model": {**model, "vocab_size": corpus.vocab_size},
        "data": {"name": corpus.name, "fingerprint": corpus.fingerprint},
        "training": asdict(settings.training),
        "curvature": asdict(settings.curvature) if settings.curvature else None,
        "observation": asdict(settings.observation),
        "device": settings.device,
    }
