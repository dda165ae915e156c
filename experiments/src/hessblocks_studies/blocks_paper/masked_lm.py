"""Pretrain masked language models and plot loss against steps and time (Figure 7).

The models stay in the cache for the study `downstream`.
"""

from dataclasses import asdict, dataclass, replace

import torch

from hessblocks.figures import Panel
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary
from hessblocks_studies.masked import (
    MaskedBigramTable,
    Pretraining,
    cost_rows,
    held_out_masked,
    pretrained,
)

COLUMNS = (
    "study", "variant", "seed", "task", "step", "tokens", "quantity", "value", "standard_error",
    "method",
)  # fmt: skip
PRESETS: dict[Scale, tuple[str, ...]] = {
    "smoke": ("pre-ln", "parallel", "sas", "sas-p"),
    "laptop": ("pre-ln", "parallel", "sas", "sas-p"),
    "paper": ("pre-ln", "parallel", "v-skipinit", "sas", "sas-p", "sas-p-no-norm"),
}
"""Presets whose steps are timed."""
RATES: dict[Scale, shared.Grid] = {
    "smoke": shared.Grid(rates=(3e-3,)),
    "laptop": shared.Grid(
        rates=(1e-2, 3e-3, 3e-2),
        own=dict.fromkeys(("sas", "sas-p"), (3e-2, 1e-2, 1e-1, 3e-3)),
    ),
    "paper": shared.Grid(rates=(1e-3, 3e-4, 3e-3)),
}
"""Rates by block; the first, the best here, also trains the models that `downstream` tunes."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": shared.TextSize(
        depth=2, width=32, heads=2, mlp_width=64, context=32, vocab_size=1024, steps=40,
        batch_size=16, learning_rate=3e-3, evaluations=4, evaluation_sequences=64,
        data="docstrings",
    ),
    "laptop": shared.TextSize(
        depth=4, width=64, heads=4, mlp_width=128, context=64, vocab_size=2048, steps=2400,
        batch_size=32, learning_rate=1e-2, evaluations=12, evaluation_sequences=256,
        data="docstrings",
    ),
    "paper": shared.TextSize(
        depth=16, width=768, heads=12, mlp_width=1536, context=128, vocab_size=32_768,
        steps=50_000, batch_size=512, learning_rate=1e-3, evaluations=50,
        evaluation_sequences=2048, data="hub:wikipedia",
    ),
}  # fmt: skip
"""Sizes with a gated MLP. Published: 16 layers, width 768, context 128, the vocabulary, and an MLP
width of 3072 for both halves together. The paper trained for 24 hours on one GPU; steps, batch and
rate at `paper` are ours."""


@dataclass(frozen=True, kw_only=True)
class MaskedSettings(shared.BlockSettings):
    """Settings of a point of a study of masked models: one model, or all blocks in turns."""

    presets: str | None = None
    """Presets timed by `ALL`, separated by commas; None for a single block."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks, and one point per repetition that times all of them."""
    presets, size = PRESETS[scale], SIZES[scale]
    in_turns = {"presets": ",".join(presets)}
    return [
        shared.Sweep(variants=[shared.ALL], size=size, settings=in_turns),
        shared.Sweep(variants=(*blocks(scale), shared.BIGRAMS), size=size, rates=RATES[scale]),
    ]


def blocks(scale: Scale) -> tuple[str, ...]:
    """List the trained blocks: the timed ones, and pre-ln with zero queries (equal step time)."""
    return (*shared.BASES, *PRESETS[scale][1:])


def measure(settings: MaskedSettings) -> list[Row]:
    """Measure one block's validation losses, or the costs of all blocks."""
    if settings.variant == shared.ALL:
        return timed(settings)
    if settings.variant == shared.BIGRAMS:
        return bigram_rows(settings)
    pretrain_settings = pretraining(settings)
    run = pretrained(pretrain_settings, shared.text_of(settings.size))
    tokens = pretrain_settings.batch_size * pretrain_settings.context
    return [
        shared.measured(shared.LOSS, loss, **settings.owner, step=step, tokens=step * tokens)
        for step, loss in run.losses
    ]


def bigram_rows(settings: MaskedSettings) -> list[Row]:
    """Compute the loss of a table of both neighbours, on the masked tokens of the models."""
    text, size = shared.text_of(settings.size), settings.size
    windows = held_out_masked(pretraining(settings, "pre-ln"), text)
    inputs, labels = (
        torch.stack([window[name] for window in windows]) for name in ("input_ids", "labels")
    )
    masked = labels >= 0
    table = MaskedBigramTable(text.splits["train"], text.vocab_size)
    loss = table.masked_loss(torch.where(masked, labels, inputs), masked)
    return shared.level(settings, loss, size.batch_size * size.context)


def pretraining(settings: MaskedSettings, preset: str | None = None) -> Pretraining:
    """Make the pretraining of a point's settings, by default for the point's block."""
    variant = preset or settings.variant
    zero = variant.endswith(shared.ZERO_QUERIES)
    return Pretraining(
        preset=variant.removesuffix(shared.ZERO_QUERIES),
        seed=settings.seed,
        slots=("attention.query.init=zeros",) if zero else (),
        embedding_std=settings.drawn_std,
        **asdict(settings.size),
    )


def timed(settings: MaskedSettings) -> list[Row]:
    """Measure the costs of every block; blocks take turns."""
    presets = (settings.presets or "").split(",")
    costs = cost_rows(pretraining(settings, presets[0]), presets)
    owners = {name: replace(settings, variant=name).owner for name in presets}
    return [{**owners[name], **row} for name, rows in costs.items() for row in rows]


def summarise(rows: Rows) -> Summary:
    """Plot loss against steps and time, and compare final losses."""
    runs = shared.Runs(rows)
    names = tuple(runs.losses)
    panels: list[Panel] = []
    if names:
        panel = runs.panel(names, "masked-LM loss at equal steps")
        panels.append(replace(panel, y_label="validation loss (nats per masked token)"))
    if names and (times := shared.mean_clocks(rows)):
        panels.append(
            shared.against_time(
                panels[0], shared.for_all_bases(times), "the same against training time"
            )
        )
    pairs = [(n, base) for n in ("sas", "sas-p") for base in shared.BASES]
    table = [
        {
            "variant": name,
            "training_speed": ratio.mean,
            "standard_error": ratio.error if ratio.seeds > 1 else None,
            "published": shared.PUBLISHED_SPEED.get(name),
        }
        for name, ratio in shared.speeds(rows).items()
    ]
    return runs.summary(
        title="Masked-LM pretraining",
        caption=(
            "A quarter of the tokens masked; held-out files; mean over seeds, bars are its "
            "standard errors. Loss curves begin after a fifth of the steps. The bigram table sees "
            "both neighbours. Time is steps times the median time of a step (of processor time on "
            "a CPU), blocks timed in turns."
        ),
        panels=panels,
        checks=[
            *(
                runs.match(name, base, f"{name} pretrains like {base} per step")
                for name, base in pairs
                if {name, base} <= set(names)
            ),
            *shared.speed_check(rows),
        ],
        times=table,
    )


STUDY = shared.trained_study(
    "masked-lm",
    title="masked-LM pretraining against steps and time",
    source="Simplified blocks, Figure 7",
    published=(
        "With 24 hours on one GPU, SAS and SAS-P pretrain a BERT as well as pre-ln, at higher "
        "speed."
    ),
    kind=MaskedSettings,
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
    columns=COLUMNS,
)
