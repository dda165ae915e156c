"""Pretrain and fine-tune V-SkipInit and the block without norms (rows of Figure 7 and Table 1).

Fine-tuning decays by a cosine, as published; its dropout of 0.1 is left out, as blocks have none.
"""

from dataclasses import replace

from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.blocks_paper import finetuning, masked_lm
from hessblocks_studies.engine import Check, Rows, Scale, Summary

NO_NORM = "sas-p-no-norm"
VARIANTS = ("pre-ln", "v-skipinit", NO_NORM)
RATES: dict[Scale, float] = {"smoke": 3e-3, "laptop": 3e-3, "paper": 1e-3}
"""Rate of the pretraining, one for all three."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks, each pretrained and fine-tuned at all rates of the fine-tuning."""
    size = replace(masked_lm.SIZES[scale], learning_rate=RATES[scale])
    tuning = replace(finetuning.TUNINGS[scale], decay="cosine")
    return [
        shared.Sweep(variants=VARIANTS, size=size, settings={"tuning": tuning}),
        shared.Sweep(variants=(shared.BIGRAMS,), size=size),
    ]


def measure(settings: finetuning.TunedSettings) -> list[Row]:
    """Measure the losses of the pretraining, then the scores of the fine-tuning."""
    rows = masked_lm.measure(settings)
    return rows + (finetuning.measure(settings) if settings.tuning else [])


def summarise(rows: Rows) -> Summary:
    """Compare losses of the pretraining, and count fine-tuning runs that diverge."""
    runs = shared.Runs(rows)
    scores = shared.of_quantity(rows, finetuning.ACCURACY)
    lost = {name: [r["value"] is None for r in scores if r["variant"] == name] for name in VARIANTS}
    checks: list[Check] = []
    if runs.losses:
        checks = [
            runs.slower("v-skipinit", "pre-ln", "v-skipinit pretrains slower than pre-ln"),
            runs.slower(NO_NORM, "pre-ln", "the block without norms pretrains slower than pre-ln"),
        ]
    if all(lost.values()):
        counts = {name: f"{sum(one)} of {len(one)}" for name, one in lost.items()}
        checks.append(
            Check(
                fact="without norms some fine-tuning runs diverge, with norms none",
                expected="NaNs without norms (Table 1)",
                ours=", ".join(f"{name}: {count}" for name, count in counts.items()),
                holds=any(lost[NO_NORM]) and not any(lost["pre-ln"]),
            )
        )
    return runs.summary(
        title="V-SkipInit and the block without norms, pretrained and fine-tuned",
        caption="A quarter of the tokens masked; held-out files; mean over seeds.",
        panels=[runs.panel(VARIANTS, "masked-LM loss at equal steps")],
        checks=checks,
        scores=shared.mean_table(
            shared.gathered(
                [row for row in scores if row["value"] is not None], "variant", "task",
                "learning_rate",
            ),
            "variant", "task", "learning_rate", value="accuracy",
        ),
    )  # fmt: skip


STUDY = shared.trained_study(
    "tuning-recipe",
    title="V-SkipInit and no norms: masked-LM pretraining, fine-tuning with a cosine",
    source="Simplified blocks, Figure 7 and Table 1",
    published="V-SkipInit scores 78.0 ± 0.3 on GLUE, and fine-tuning without norms ends in NaNs.",
    kind=finetuning.TunedSettings,
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
    columns=(*masked_lm.COLUMNS, "learning_rate"),
)
