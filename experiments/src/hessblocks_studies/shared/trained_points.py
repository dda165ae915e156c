"""Train the points of a study, one small language model each, and record losses as rows."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from hessblocks import training
from hessblocks.data import BIGRAMS, BigramTable, Corpus
from hessblocks.errors import RunError
from hessblocks.models import build
from hessblocks.settings import RunSettings
from hessblocks.storage import Row, Scalar, environment
from hessblocks_studies.data import TextSize, run_of_size, text_of
from hessblocks_studies.engine import Scale, Study, capture_steps
from hessblocks_studies.shared.gathering import measured, validation_loss
from hessblocks_studies.shared.variants import VARIANTS, best_start, make_block

LOSS = "validation_loss"
"""Validation loss in nats per token on held-out windows; empty if training diverged."""
TRAINING_LOSS = "training_loss"
"""Training loss in nats per token, averaged over the steps since the last validation."""

Observer = Callable[[nn.Module, int], list[Row]]
"""Function from model and step to rows of measurements."""
Change = Callable[[training.RunTrainer], None]
"""Function that changes the model or the optimiser of a trainer before training."""


def train(
    model: PreTrainedModel,
    settings: RunSettings,
    corpus: Corpus,
    observer: Observer | None = None,
    change: Change | None = None,
) -> list[Row]:
    """Train `model` in place.

    Args:
        model: a causal language model.
        settings: settings of the training; the model is not built from them.
        corpus: training and held-out tokens.
        observer: called before the first step and at each evaluation with a finite validation loss.
        change: called with the trainer before training.

    Returns:
        Rows with step, tokens, quantity and value. A diverged run ends with an empty last value.
    """
    rows: list[Row] = []
    losses: list[float] = []

    def note(line: Mapping[str, Any]) -> None:
        if not (step_and_loss := validation_loss(line)):
            losses.append(line["loss"])
            return
        step, loss = step_and_loss
        moment: Row = {"step": step, "tokens": line["tokens"]}
        rows.append(measured(LOSS, loss, **moment))
        if losses:
            rows.append(measured(TRAINING_LOSS, statistics.fmean(losses), **moment))
            losses.clear()
        if observer and loss is not None:
            rows.extend({**moment, **row} for row in observer(model, step))

    with tempfile.TemporaryDirectory() as unused:
        trainer = training.make_trainer(model, settings, corpus, Path(unused))
        if change:
            change(trainer)
        training.Recorder(settings, listener=note).record(trainer)
    return rows


CONDITIONS = ("device", "precision", "start", "commit")
"""Columns of what runs must share to be compared; runs of older stores have none of them."""
TRAINED_COLUMNS = (
    "study", "variant", "seed", "step", "tokens", "quantity", "layer", "group", "part", "value",
    "standard_error", "method", *CONDITIONS,
)  # fmt: skip
TRAINED_REVISION = 6
"""Revision of the training studies; increased whenever equal settings give other losses."""
SMOKE = TextSize(
    depth=2, width=32, heads=2, mlp_width=128, context=32, vocab_size=1024, steps=40, batch_size=8,
    learning_rate=3e-3, evaluations=4, evaluation_sequences=32,
)  # fmt: skip
SMALLEST = replace(SMOKE, depth=1, steps=8, batch_size=4, evaluations=4, evaluation_sequences=8)
"""Size for studies of many points."""
LAPTOP = TextSize(
    depth=6, width=64, heads=4, mlp_width=256, context=64, vocab_size=1024, steps=800,
    batch_size=16, learning_rate=3e-3, evaluations=16, evaluation_sequences=256,
)  # fmt: skip
PAPER = TextSize(
    depth=18, width=768, heads=12, mlp_width=3072, context=128, vocab_size=50_000, steps=43_000,
    batch_size=128, learning_rate=1e-3, evaluations=43, evaluation_sequences=1024,
    data="hub:codeparrot",
)  # fmt: skip
SIZES: dict[Scale, TextSize] = {
    "smoke": SMOKE,
    "laptop": replace(LAPTOP, depth=4, steps=1200),
    "paper": PAPER,
}
"""Sizes with enough steps for pre-ln to learn more than bigrams."""


GPT2 = "gpt2"
"""Variant with the GPT-2 of transformers at the same size."""
REFERENCES = (BIGRAMS, GPT2)
"""References that every figure of losses shows beside the blocks."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Peak learning rates in half decades; each block uses its best rate.

    A block is trained with all seeds at its first rate, and with one seed, which counts in the
    verdicts too, at the other rates. If the best rate is another or at an end, verdicts remain
    undecided until the grid is changed accordingly.
    """

    rates: tuple[float, ...] = ()
    """Rates, the likeliest first; none means only the rate of the size."""
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Variant → its rates, if different; they also apply to its edits, named `variant, edit`."""

    def of(self, variant: str) -> tuple[float, ...]:
        """Return the rates of a variant, the likeliest first."""
        block, _, _ = variant.partition(", ")
        return self.own.get(variant) or self.own.get(block, self.rates)

    @property
    def likeliest(self) -> Grid:
        """Reduce the grid to the first rate of each variant."""
        first_rates = {name: rates[:1] for name, rates in self.own.items()}
        return Grid(rates=self.rates[:1], own=first_rates)

    def with_own(self, own: Mapping[str, tuple[float, ...]]) -> Grid:
        """Copy the grid with other rates for some variants."""
        return replace(self, own={**self.own, **own})

    def times(self, factor: float) -> Grid:
        """Multiply all rates by a factor."""
        scaled = {name: tuple(rate * factor for rate in rates) for name, rates in self.own.items()}
        return Grid(rates=tuple(rate * factor for rate in self.rates), own=scaled)


RATES: dict[Scale, Grid] = {
    "smoke": Grid(rates=(3e-3,)),
    "laptop": Grid(
        rates=(1e-2, 3e-3, 3e-2),
        own={
            **dict.fromkeys(("v-skipinit", "skipless"), (3e-3, 1e-3, 1e-2)),
            "sas-p": (3e-2, 1e-2, 1e-1, 3e-3),
            GPT2: (1e-2,),
        },
    ),
    "paper": Grid(rates=(1e-3, 3e-4, 3e-3), own={"sas-p": (1e-3, 3e-4, 3e-3, 1e-2)}),
}
"""At laptop scale the likeliest rates are the best ones of `simplification` at this size and
length. GPT-2, which has no verdicts, has one rate."""
AT_RATE = " at rate "
"""Separator between the name of a block and its rate, for blocks trained at several rates."""
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}
ALL = "all"
"""Variant of the point that times all blocks."""


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """Settings of a point of a study that compares blocks: one model and its training."""

    study: str
    """Name of the study."""
    variant: str
    """Name of the block, in `variants.VARIANTS`; `ALL` if all blocks of the study take turns."""
    seed: int
    """Seed of weights and data order; equal seeds see the same data in the same order."""
    size: TextSize
    """Sizes of model and training, and the name of the text."""
    tuned: bool | None = None
    """Whether the same block is trained at other rates, too."""
    embedding_std: float | None = None
    """Initial standard deviation of the embeddings' entries; None for 0.02."""

    @property
    def name(self) -> str:
        """Name of the block, with its rate if there are several."""
        return f"{self.variant}{AT_RATE}{self.size.learning_rate:g}" if self.tuned else self.variant

    @property
    def drawn_std(self) -> float:
        """Initial standard deviation of the embeddings' entries."""
        return 0.02 if self.embedding_std is None else self.embedding_std

    @property
    def owner(self) -> dict[str, Scalar]:
        """Columns that identify the rows of this point."""
        return {"study": self.study, "variant": self.name, "seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class TrainedSettings(BlockSettings):
    """Settings of a point of a study that trains causal language models."""

    decay: str | None = None
    """Decay of the learning rate: linear or cosine; None for linear."""
    optimiser: str | None = None
    """Optimiser: adamw or sgd; None for adamw."""
    warmup: float | None = None
    """Share of the steps with a linear increase of the learning rate from 0; None for 0.05."""
    slots: tuple[str, ...] = ()
    """Slots that differ from the variant's block, as `slot=value`."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Blocks with the same training settings."""

    variants: Sequence[str]
    """Names of the blocks."""
    size: TextSize
    """Sizes of model and training, and the text."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the points' settings."""
    rates: Grid = field(default_factory=Grid)
    """Learning rates; each block uses its best."""
    seeds: int | None = None
    """Fixed number of seeds; None for the requested number."""


def train_point(
    settings: TrainedSettings, observer: Observer | None = None, change: Change | None = None
) -> list[Row]:
    """Train one model, or compute the loss of the bigram table if that is the variant.

    Args:
        settings: settings of model and training.
        observer: called before the first step and at each finite validation loss.
        change: called with the trainer before training.

    Returns:
        Rows of parameters, validation losses and the observer's measurements.
    """
    if settings.variant == BIGRAMS:
        return _bigram_rows(settings)
    model = make_model(settings)
    count = sum(parameter.numel() for parameter in model.parameters())
    rows = [measured("parameters", count, "exact")]
    rows += train(model, run_settings(settings), text_of(settings.size), observer, change)
    captured = change is capture_steps and next(model.parameters()).is_cuda
    conditions = conditions_of(settings, model.device.type, "tf32" if captured else "float32")
    return [{**settings.owner, **conditions, **row} for row in rows]


def conditions_of(settings: TrainedSettings, device: str, precision: str) -> Row:
    """Describe how a run was made, apart from its block, seed and learning rate.

    Args:
        settings: settings of the point.
        device: cpu or cuda.
        precision: float32, or tf32 for captured steps.

    Returns:
        The columns `CONDITIONS`. `start` has the initial std of the MLP's matrices, which all
        blocks share.
    """
    start = [slot for slot in settings.slots if slot.startswith("mlp.") and ".std=" in slot]
    return {
        "device": device,
        "precision": precision,
        "start": ", ".join(start) or "preset",
        "commit": environment()["commit"],
    }


@torch.no_grad()
def whole_loss(model: nn.Module, windows: Dataset[Any], together: int = 64) -> float:
    """Compute the loss of a model on all of some windows.

    Args:
        model: a causal language model; its training mode is restored.
        windows: windows of one text, each with its input_ids.
        together: windows per batch.

    Returns:
        Mean loss in nats per token.
    """
    mode = model.training
    device = next(model.parameters()).device
    model.eval()
    total, count = 0.0, len(windows)  # type: ignore[arg-type]
    for start in range(0, count, together):
        places = range(start, min(start + together, count))
        tokens = torch.stack([windows[index]["input_ids"] for index in places]).to(device)
        total += float(model(input_ids=tokens, labels=tokens).loss) * len(places)
    model.train(mode)
    return total / count


def check_read_once(study: str, size: TextSize) -> None:
    """Check that the training text is at least as long as a run reads.

    Raises:
        RunError: the text is shorter.
    """
    read = size.steps * size.batch_size * size.context
    there = len(text_of(size).splits["train"])
    if there < read:
        raise RunError(
            f"{study}: {size.data} has {there:,} tokens to train on, {read:,} are read; another "
            "version of it may do."
        )


def _bigram_rows(settings: TrainedSettings) -> list[Row]:
    """Compute the bigram table's loss on the models' held-out windows, for first and last step."""
    size, text = settings.size, text_of(settings.size)
    windows = training.held_out(text, run_settings(settings))
    drawn = torch.stack([windows[index]["input_ids"] for index in range(len(windows))])
    loss = BigramTable(text.splits["train"], text.vocab_size).loss(drawn)
    return level(settings, loss, size.batch_size * size.context)


def level(settings: BlockSettings, loss: float, tokens: int) -> list[Row]:
    """Make the rows of a constant loss, at the first and the last step.

    Args:
        settings: settings of the point.
        loss: loss in nats per token.
        tokens: tokens per step.

    Returns:
        Two rows.
    """
    return [
        {**settings.owner, **measured(LOSS, loss, "exact", step=step, tokens=step * tokens)}
        for step in (0, settings.size.steps)
    ]


def run_settings(settings: TrainedSettings) -> RunSettings:
    """Return the training settings of a point."""
    return run_of_size(
        settings.size,
        settings.variant,
        settings.seed,
        optimiser=settings.optimiser or "adamw",
        schedule=settings.decay or "linear",
        warmup=settings.warmup,
    )


def make_model(settings: TrainedSettings) -> PreTrainedModel:
    """Build the freshly initialised model of a point."""
    size = settings.size
    torch.manual_seed(settings.seed)
    if settings.variant == GPT2:
        return _gpt2(size)
    sizes = {"width": size.width, "heads": size.heads, "mlp_width": size.mlp_width}
    return build(
        make_block(settings.variant, **sizes),
        depth=size.depth,
        vocab_size=size.vocab_size,
        context=size.context,
        slots=settings.slots,
        embedding_std=settings.drawn_std,
    )


def _gpt2(size: TextSize) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=size.vocab_size,
        n_positions=size.context,
        n_embd=size.width,
        n_layer=size.depth,
        n_head=size.heads,
        n_inner=size.mlp_width,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def _places(sweep: Sweep, variant: str) -> Iterator[tuple[dict[str, object], bool]]:
    """Yield size and rate of each run of a variant (bigrams: no rate); True if one seed runs."""
    rates = () if variant == BIGRAMS else sweep.rates.of(variant)
    if not rates:
        yield {"size": sweep.size}, False
    for rate in rates:
        tuned = True if len(rates) > 1 else None
        size = replace(sweep.size, learning_rate=rate)
        yield {"size": size, "tuned": tuned}, rate != rates[0]


def _start(sweep: Sweep, variant: str) -> dict[str, float | None]:
    """Return the best initial std of a block's embeddings, unless the sweep sets it."""
    name = "embedding_std"
    if variant not in VARIANTS or name in sweep.settings:
        return {}
    return {name: best_start(variant, sweep.size.width)}


def trained_study(
    name: str,
    *,
    sweeps: Callable[[Scale], Sequence[Sweep]],
    kind: type[Any] = TrainedSettings,
    seeds: Mapping[Scale, int] = SEEDS,
    **about: Any,
) -> Study[Any]:
    """Build a study with one point per variant, size, rate and seed.

    Args:
        name: name of the study.
        sweeps: function from a scale to its sweeps.
        kind: dataclass of the points' settings.
        seeds: default number of seeds per scale.
        **about: title, source, published and summarise of the `Study`; measure, columns and
            revision if they differ from those of `train_point`.

    Returns:
        The study. Its points are ordered by sweep; seeds of a variant and rate are consecutive.
    """

    def settings(scale: Scale, count: int | None) -> list[Any]:
        return [
            kind(study=name, variant=variant, seed=seed, **axes, **start, **sweep.settings)
            for sweep in sweeps(scale)
            for variant in sweep.variants
            for start in [_start(sweep, variant)]
            for axes, once in _places(sweep, variant)
            for seed in range(1 if once else sweep.seeds or count or seeds[scale])
        ]

    usual = {"measure": train_point, "columns": TRAINED_COLUMNS, "revision": TRAINED_REVISION}
    return Study(name=name, settings=settings, gpus=1, **{**usual, **about})
