"""List the points of the study `ladder`: rungs of width, tokens and depth; rates, initial stds.

`BEST` is filled in manually from the tuning.
"""

import math
from dataclasses import dataclass, replace

from hessblocks_studies import shared
from hessblocks_studies.engine import Scale

BASE = "pre-ln, zero queries"
"""Block whose loss is subtracted in gaps."""
VERDICTS = ("sas", "sas-p")
"""Blocks with verdicts."""
JUDGED = (*VERDICTS, "parallel, zero queries")
BLOCKS = (BASE, *JUDGED)
TUNING, WIDTHS, NEIGHBOURS, TOKENS, DEPTHS = (
    shared.TUNING, "widths", "next rates", "tokens", "depths",
)  # fmt: skip
PAPER_TOKENS = 4
"""Training tokens per parameter of the paper's main runs."""
RUNGS: dict[Scale, tuple[int, ...]] = {
    "smoke": (16, 32, 48, 64),
    "laptop": (64, 96, 128, 192),
    "paper": (256, 384, 512, 768),
}
"""Scale → widths; rates are tuned at the first three and checked at the fourth."""
TUNED_WIDTHS = 3
"""Number of widths of the tuning, the first of `RUNGS`."""
WIDTH_COUNT = len(RUNGS["laptop"])
"""Number of widths of each scale."""
USUAL: dict[Scale, int] = {"smoke": 16, "laptop": 64, "paper": 256}
"""Scale → width of the rungs of tokens and depth."""
TUNED = 64
"""Width of the rates in `RATES` and `BEST`."""
MANY: dict[Scale, tuple[float, ...]] = {
    "smoke": (1,),
    "laptop": (1, 12, 25),
    "paper": (1, 12),
}
"""Scale → further numbers of tokens per parameter, at the usual width."""
LAYERS: dict[Scale, tuple[int, ...]] = {
    "smoke": (2,),
    "laptop": (3, 12, 24),
    "paper": (36, 72),
}
"""Scale → further depths, at the usual width."""
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 5, "paper": 3}
RATES = (1e-2, 3e-3, 3e-2)
"""Rates of the tuning at width `TUNED`, the likeliest first; other widths: scaled by 1 / width."""
BEST: dict[str, float] = dict.fromkeys(BLOCKS, 1e-2)
"""Block → rate of its runs at width `TUNED`; a guess until the tuning is done."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMALLEST, evaluations=2),
    "laptop": replace(
        shared.LAPTOP, evaluations=20, data=f"{shared.PACKAGE}torch{shared.NO_TABLES}"
    ),
    "paper": shared.PAPER,
}
SHORT: dict[Scale, float] = {"smoke": 0.01, "laptop": 1.0, "paper": 1.0}
"""Scale → share of the tokens that is used."""
WHOLE = 10**6
"""Number of held-out windows that selects all of them."""
TABLE = shared.BIGRAMS


@dataclass(frozen=True, kw_only=True)
class LadderSettings(shared.TunedSettings):
    """Settings of a point: one model, or the bigram table."""

    tokens_a_parameter: float
    """Training tokens per parameter of pre-ln."""
    whole: bool | None = None
    """Whether the last loss uses all held-out windows."""
    probe: shared.Probe | None = None
    """Curvature measurement at the first and last step; None for no measurement."""
    also: tuple[tuple[str, str], ...] = ()
    """Further phases of this run, each with the run's label there."""

    @property
    def parameters(self) -> int:
        """Number of parameters of pre-ln at this size."""
        return parameters(self.size)


def parameters(size: shared.TextSize) -> int:
    """Count pre-ln's parameters: 4 w² + 2 w m and two norms per layer, embeddings, last norm."""
    layer = 4 * size.width**2 + 2 * size.width * size.mlp_width + 2 * size.width
    return size.depth * layer + (size.vocab_size + 1) * size.width


def at(block: str, rung: str) -> str:
    """Name a block at a rung."""
    return f"{block} ({rung})"


def rung_of(label: str) -> str:
    """Return the rung of a label."""
    return label.rpartition(" (")[2].removesuffix(")")


def size_of(
    scale: Scale, width: int, tokens: float = PAPER_TOKENS, depth: int | None = None
) -> shared.TextSize:
    """Compute the size of a rung; its steps are a multiple of the evaluations."""
    size = shared.widened(SIZES[scale], width)
    size = replace(size, depth=depth or size.depth)
    wanted = SHORT[scale] * tokens * parameters(size) / (size.batch_size * size.context)
    each = max(1, round(wanted / size.evaluations))
    return replace(size, steps=each * size.evaluations)


def std_slots(block: str, size: shared.TextSize) -> tuple[str, ...]:
    """Set the initial std of a block's random matrices to 1 / √(number of inputs)."""
    simplified = block in VERDICTS
    narrow = ("attention.key", *(() if simplified else ("attention.value", "attention.projection")))
    inner = 1 / math.sqrt(size.width)
    return (
        "position=rotary",
        *(f"{name}.std={inner:.6g}" for name in (*narrow, "mlp.input")),
        f"mlp.output.std={1 / math.sqrt(size.mlp_width):.6g}",
    )


def _point(
    scale: Scale,
    phase: str,
    block: str,
    rung: str,
    size: shared.TextSize,
    seed: int,
    **more: object,
) -> LadderSettings:
    """Make a point of a rung, at the rate of its size."""
    table = block == TABLE
    tokens = size.steps * size.batch_size * size.context / parameters(size)
    whole = True if scale != "smoke" else None
    if table and whole:
        size = replace(size, evaluation_sequences=WHOLE)
    probed = phase == WIDTHS and not table and seed == next(iter(shared.run_seeds(1)))
    settings = LadderSettings(
        study="ladder",
        variant=block,
        seed=seed,
        size=size,
        phase=phase,
        label=TABLE if table else at(block, rung),
        slots=() if table else std_slots(block, size),
        embedding_std=None if table else shared.best_start(block, size.width),
        tokens_a_parameter=round(tokens, 3),
        whole=whole,
        probe=shared.PROBES[scale] if probed else None,
    )
    return replace(settings, **more)  # type: ignore[arg-type]


def rate_of(block: str, width: int) -> float:
    """Scale a block's best rate by 1 / width."""
    return BEST[block] * TUNED / width


def rungs(scale: Scale) -> dict[str, dict[str, shared.TextSize]]:
    """Map phase → rung → size; all phases share the usual size, which runs only in `WIDTHS`."""
    width = USUAL[scale]
    return {
        WIDTHS: {f"width {width}": size_of(scale, width) for width in RUNGS[scale]},
        TOKENS: {_tokens(tokens): size_of(scale, width, tokens) for tokens in MANY[scale]},
        DEPTHS: {_layers(depth): size_of(scale, width, depth=depth) for depth in LAYERS[scale]},
    }


def _tokens(tokens: float) -> str:
    return f"{tokens:g} tokens a parameter"


def _layers(depth: int) -> str:
    return f"{depth} layers"


def tuning(scale: Scale) -> list[LadderSettings]:
    """List every block at its rates, at the first three widths, with one seed."""
    return [
        _point(
            scale,
            TUNING,
            block,
            f"width {width}",
            replace(size_of(scale, width), learning_rate=rate * TUNED / width),
            shared.TUNING_SEED,
            tuned=True,
        )
        for rate in (RATES if scale != "smoke" else RATES[:1])
        for width in RUNGS[scale][:TUNED_WIDTHS]
        for block in BLOCKS
    ]


def runs(scale: Scale, seeds: int) -> list[LadderSettings]:
    """List the rungs of width, then of tokens and depth, by seed, each with its bigram table."""
    usual = size_of(scale, USUAL[scale])
    names = {TOKENS: _tokens(PAPER_TOKENS), DEPTHS: _layers(usual.depth)}
    found = []
    for phase, sizes in rungs(scale).items():
        for seed in shared.run_seeds(seeds):
            found.append(_point(scale, phase, TABLE, "", usual, seed))
            for rung, size in sizes.items():
                for block in BLOCKS:
                    run = replace(size, learning_rate=rate_of(block, size.width))
                    everywhere = phase == WIDTHS and size == usual
                    also = tuple((p, at(block, name)) for p, name in names.items() if everywhere)
                    found.append(_point(scale, phase, block, rung, run, seed, also=also))
    return found


def next_rates(scale: Scale) -> list[LadderSettings]:
    """List the next rates on both sides at the last width, with the first seed of the runs."""
    width, (seed,) = RUNGS[scale][-1], shared.run_seeds(1)
    return [
        _point(
            scale,
            NEIGHBOURS,
            block,
            f"width {width}",
            replace(size_of(scale, width), learning_rate=rate_of(block, width) * factor),
            seed,
            tuned=True,
        )
        for block in BLOCKS
        for factor in (10**-0.5, 10**0.5)
    ]


def points(scale: Scale, count: int | None) -> list[LadderSettings]:
    """List the tuning, the rungs of width, the next rates at the last width, and the other rungs.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default.

    Returns:
        The points' settings.
    """
    found = runs(scale, count or SEEDS[scale])
    widths = [run for run in found if run.phase == WIDTHS]
    return [*tuning(scale), *widths, *next_rates(scale), *found[len(widths) :]]
