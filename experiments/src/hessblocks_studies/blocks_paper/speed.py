"""Time training steps and decoding at each width; plot loss against time (Figures 5 and 26).

The blocks take turns, one step each, so that other load on the machine affects all of them
equally.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hessblocks.blocks import PRESETS
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks.training import update_flops
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary
from hessblocks_studies.shared import ROUNDS, in_turns

VARIANTS = (*shared.BASES, "parallel", "v-skipinit", "sas", "sas-p", "sas-p-no-norm")
"""Trained blocks; pre-ln with zero queries is not timed: its steps cost the same as pre-ln's."""
TIMED = (*PRESETS, shared.GPT2)
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (16, 32),
    "laptop": (64, 128, 256, 512),
    "paper": (256, 512, 768, 1024),
}
"""Widths at which steps are timed, including the width of the runs."""
DRAWN = ("pre-ln", *VARIANTS[2:], "op", "modern")
"""Blocks in the figure of speeds; the table has all timed blocks."""
TOKEN_TIME = "token_time"
"""Seconds per decoded token (on a CPU processor time), median over the rounds."""
FASTEST = "fastest_"
"""Prefix of the quantity that is the minimum over the rounds."""
CACHE = "cache_memory"
"""Bytes of the key-value cache of one sequence of context length."""
FLOPS = "update_flops"
"""Floating-point operations of an update's matrix products."""
COLUMNS = (*shared.TRAINED_COLUMNS, "width")
Ratios = dict[str, dict[Scalar, float]]
"""Block → {seed: speed relative to pre-ln}; each seed of the step times is a repetition with new
models."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the points with step times at each width, and the training runs."""
    size = shared.SIZES[scale]
    clocks = [
        shared.Sweep(variants=[shared.ALL], size=shared.widened(size, width))
        for width in WIDTHS[scale]
    ]
    variants = (*VARIANTS, *shared.REFERENCES)
    return [*clocks, shared.Sweep(variants=variants, size=size, rates=shared.RATES[scale])]


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Measure one run's losses, or the costs of a step and a decoded token of every block."""
    timed = settings.variant == shared.ALL
    rows = clocks(settings) if timed else shared.train_point(settings)
    return [{**row, "width": settings.size.width} for row in rows]


def clocks(settings: shared.TrainedSettings) -> list[Row]:
    """Time steps and decoded tokens of all blocks in turns; count cache and operations.

    Args:
        settings: settings of the point.

    Returns:
        One row per block and quantity.

    Cost:
        The models of all blocks, with their optimisers, are in memory at the same time.
    """
    size = settings.size
    turns = {name: replace(settings, variant=name) for name in TIMED}
    timed = shared.timed_models(turns)
    steps = in_turns({name: model.step for name, model in timed.items()}, ROUNDS)
    caches: dict[str, int] = {}

    def decode(name: str) -> None:
        caches[name] = timed[name].decode()

    passes = in_turns({name: partial(decode, name) for name in timed}, ROUNDS)
    rows: list[Row] = []
    for name in timed:
        owner = turns[name].owner
        tokens = [seconds / size.context for seconds in passes[name]]
        for quantity, times in ((shared.STEP_TIME, steps[name]), (TOKEN_TIME, tokens)):
            fastest = shared.measured(FASTEST + quantity, min(times), **owner)
            rows += [shared.timed(quantity, times, owner), fastest]
        rows.append(shared.measured(CACHE, caches[name], "counted", **owner))
        if name in PRESETS:
            count = update_flops(shared.run_settings(turns[name]), size.vocab_size)
            rows.append(shared.measured(FLOPS, count, "counted", **owner))
    return rows


def time_shares(
    runs: shared.Runs, base: str, step_shares: Mapping[str, float]
) -> dict[str, dict[Scalar, float]]:
    """Compute each block's time to the final loss of a base, relative to the base's time.

    Args:
        runs: runs of equal steps.
        base: pre-ln, or pre-ln with zero queries, whose steps cost the same.
        step_shares: block → time per step, relative to the base's.

    Returns:
        Block → {seed: relative time}.
    """
    times: dict[str, dict[Scalar, float]] = {}
    for seed, target in runs.losses.get(base, {}).items():
        if math.isinf(target):
            continue
        last = runs.curve(base, seed)[-1][0]
        for name, step_share in step_shares.items():
            if seed in runs.losses.get(name, {}):
                steps = last if name == base else shared.steps_to(runs.curve(name, seed), target)
                times.setdefault(name, {})[seed] = steps / last * step_share
    return times


def summarise(rows: Rows) -> Summary:
    """Plot loss against time, and speed against width; judge the time to pre-ln's loss."""
    runs = shared.Runs(rows)
    timed = {
        width: clocked for (width,), clocked in shared.grouped(_clocked(rows), "width").items()
    }
    widths = {row["width"] for row in shared.of_quantity(rows, shared.LOSS)} or set(timed)
    clocked = timed.get(min(widths, default=0), ())
    clock, times = shared.mean_clocks(clocked), shared.repeated(clocked)
    steps = {name: shared.time_ratio(times, name, "pre-ln") for name in times}
    steps = {name: share for name, share in steps.items() if share.seeds}
    step_shares = {**dict.fromkeys(shared.BASES, 1.0), **{n: s.mean for n, s in steps.items()}}
    shares = {base: time_shares(runs, base, step_shares) for base in shared.BASES}
    table = [
        {
            "variant": name,
            "step_time": mean,
            "share_of_the_time_to_the_loss_of_pre_ln": _mean(shares["pre-ln"].get(name, {})),
        }
        for name, mean in clock.items()
    ]
    panels = (
        [
            shared.against_time(
                runs.panel(VARIANTS, ""), shared.for_all_bases(clock), "loss against time"
            )
        ]
        if clock
        else []
    )
    panels += [_panel(timed, *arguments) for arguments in PANELS if timed]
    return runs.summary(
        title="Loss against training time, and speed against width",
        caption=(
            "Time is steps times the median time of a step (of processor time on a CPU), blocks "
            "timed in turns, a step each; bars of speeds are standard errors over repetitions. "
            f"{shared.CURVES}"
        ),
        panels=panels,
        checks=[
            *_speed_checks(timed),
            *(
                runs.if_it_counts(check, block, base)
                for base, by_block in shares.items()
                for block, check in _time_checks(by_block, base, steps).items()
            ),
            *_step_checks(runs),
        ],
        times=table,
        speeds=[line for width, clocks in timed.items() for line in _speed_table(width, clocks)],
    )


PANELS = (
    ("training", shared.STEP_TIME, "steps per second against pre-ln"),
    ("decoding with a cache", TOKEN_TIME, "tokens per second against pre-ln"),
)
"""Title, quantity and label of each panel of speeds."""


def _clocked(rows: Rows) -> Rows:
    kinds = (shared.STEP_TIME, TOKEN_TIME)
    return shared.of_quantity(rows, *kinds, *(FASTEST + kind for kind in kinds), CACHE, FLOPS)


def _panel(timed: Mapping[int, Rows], title: str, quantity: str, label: str) -> Panel:
    """Plot speed against width, one curve per block."""
    places: dict[str, list[tuple[float, float, float]]] = {}
    for width, rows in timed.items():
        ratios = shared.ratios(rows, quantity)
        for name in filter(ratios.__contains__, DRAWN):
            places.setdefault(name, []).append(
                (float(width), *mean_and_error(list(ratios[name].values())))
            )
    return shared.panel(title, "width", label, places, log="x")


def _speed_table(width: int, rows: Rows) -> list[dict[str, object]]:
    """Tabulate every block relative to pre-ln at one width."""
    speeds = {
        "training_speed": shared.STEP_TIME,
        "training_speed_by_the_fastest_steps": FASTEST + shared.STEP_TIME,
        "training_speed_by_operations": FLOPS,
        "decoding_speed": TOKEN_TIME,
        "decoding_speed_by_the_fastest_tokens": FASTEST + TOKEN_TIME,
    }
    ratios = {label: shared.ratios(rows, quantity) for label, quantity in speeds.items()}
    caches = dict(shared.gathered(shared.of_quantity(rows, CACHE), "variant"))
    return [
        {
            "width": width,
            "variant": name,
            **{label: _mean(by_block.get(name, {})) for label, by_block in ratios.items()},
            "repetitions": len(seeds),
            "published_training_speed": shared.PUBLISHED_SPEED.get(name),
            "cache_memory": max(caches.get((name,), [math.nan])),
        }
        for name, seeds in ratios["training_speed"].items()
    ]


def _speed_checks(timed: Mapping[int, Rows]) -> list[Check]:
    """Judge sas-p against pre-ln at every width, and the other blocks of table 1 at the largest."""
    checks = []
    for width, rows in timed.items():
        blocks = list(shared.PUBLISHED_SPEED)[1:] if width == max(timed) else ["sas-p"]
        medians, least, counted = (
            shared.ratios(rows, quantity)
            for quantity in (shared.STEP_TIME, FASTEST + shared.STEP_TIME, FLOPS)
        )
        for block in blocks:
            if block in medians:
                by = [_mean(by_block.get(block, {})) for by_block in (least, counted)]
                checks.append(_speed_check(block, width, medians, *by))
    return checks


def _speed_check(
    block: str, width: int, medians: Ratios, least: float | None, counted: float | None
) -> Check:
    """Judge whether a speed is on the published side of 1, by medians and by fastest steps."""
    published = shared.PUBLISHED_SPEED[block]
    less, side = ("less", "above") if published > 1 else ("more", "below")
    ratio = shared.clocked(shared.over_seeds(medians[block]))
    faster = ratio.above(1.0)
    if least is None or faster is not (least > 1):
        faster = None
    by_steps, by_operations = (
        "?" if speed is None else f"{speed:.3f}" for speed in (least, counted)
    )
    ours = ratio.text("times", digits=3, signed=False)
    return Check(
        fact=f"a training step of {block} takes {less} time than one of pre-ln at width {width}",
        expected=f"{side} 1 (published {published}: 16 layers, width 768, one GPU)",
        ours=f"{ours}; by the fastest steps {by_steps}, by operations {by_operations}",
        holds=None if faster is None else faster == (published > 1),
        p_value=ratio.p_value(1.0),
    )


def _step_checks(runs: shared.Runs) -> list[Check]:
    """Judge losses at equal steps (Figure 26)."""
    return [
        *(
            runs.match(name, base, f"{name} matches {base} in loss per step")
            for base in shared.BASES
            for name in ("sas", "sas-p")
        ),
        runs.slower(
            "sas-p-no-norm", "sas-p", "removing the norms slightly hurts the loss per step"
        ),
    ]


def _mean(shares: Mapping[Scalar, float]) -> float | None:
    """Average over seeds; None if a seed never reaches the loss."""
    if not shares or not all(map(math.isfinite, shares.values())):
        return None
    return mean_and_error(list(shares.values()))[0]


def _time_checks(
    shares: shared.Values, base: str, steps: Mapping[str, shared.Difference]
) -> dict[str, Check]:
    """Judge whether sas and sas-p need less time to a base's final loss.

    The fact fails if a block never reaches the loss in the base's time.

    A block with faster steps has time left after the same number of steps; if it has not reached
    the loss by then, the fact is undecided.

    The error includes that of the step times, which all seeds share, and that over seeds. With one
    repetition the error of step times is unknown.

    Args:
        shares: block → {seed: time relative to the base's}.
        base: pre-ln, or pre-ln with zero queries.
        steps: block → time per step, relative to pre-ln's.

    Returns:
        Block → its check, if measured.
    """
    checks: dict[str, Check] = {}
    for block in ("sas", "sas-p") if base in shares else ():
        if block not in shares or block not in steps:
            continue
        share = shared.difference(shares, block, base)
        never = [seed for seed, share in shares[block].items() if math.isinf(share)]
        clock = steps[block]
        if not never:
            common = (1 + share.mean) * clock.whole / clock.mean
            freedom = clock.whole_freedom if clock.seeds > 1 else 0.0
            share = replace(share, common=common, common_freedom=freedom)
        longer, p_value = share.above(0.0), share.p_value(0.0)
        ours = share.times(100).text("% of the time more", digits=0)
        if never:
            ours = (
                f"not reached by {len(never)} of {len(shares[block])} seeds in as many steps, "
                f"which take {clock.text('of the time', digits=2, signed=False)}"
            )
            p_value = clock.p_value(1.0)
            if clock.mean < 1 or clock.above(1.0) is None:
                longer = None
        checks[block] = Check(
            fact=f"{block} needs less time than {base} to the last loss of {base}",
            expected="below 0 % more",
            ours=ours,
            holds=None if longer is None else not longer,
            p_value=p_value,
        )
    return checks


STUDY = shared.trained_study(
    "speed",
    title="loss against training time, speed of steps and decoding against width",
    source="Simplified blocks, Figures 5 and 26, Table 1",
    published=(
        "SAS trains at least as fast in time as pre-ln, SAS-P about as fast as the parallel block "
        "with 13 % fewer parameters."
    ),
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
    columns=COLUMNS,
)
