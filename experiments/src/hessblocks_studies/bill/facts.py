"""Judge the forecasts of `hb.price`: distance from the measured KL, and bits chosen by them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from scipy import stats

from hessblocks.figures import Panel
from hessblocks_studies import shared
from hessblocks_studies.bill import points, scores
from hessblocks_studies.engine import Check, Rows, Study, Summary

NEAR = 0.8, 1.25
"""Ratios of forecast to KL between which a forecast counts as near."""
SHARE = 0.85
"""Expected share of near forecasts."""
COVERED = {1: 0.60, 2: 0.90, 3: 0.98}
"""Number of joint errors → expected share of the forecasts within them."""
SAVED, LEVEL = 0.6, 1.05
"""Largest KL of the forecast's bits relative to uniform bits, and to the best peer's bits."""


def summarise(rows: Rows) -> Summary:
    """Plot forecast against KL, and KL of each score's bits; judge by the plan."""
    single = [row for row in rows if row["phase"] == points.SINGLE]
    together = [row for row in rows if row["phase"] == points.TOGETHER]
    checks = [*_near_checks(single), *_bits_checks(together)]
    return shared.summary(
        "What changes of weights cost, forecast and measured",
        "Each point is one matrix changed alone, on text that its forecast did not see; bars are "
        "joint standard errors. Below, the KL of a mean of 3 bits shared out by each score.",
        [panel for panel in (*_panels(single), *_bits_panels(together)) if panel.shown],
        checks,
        near=[_line(kind, members) for kind, members in _alike(single).items()],
        ranks=list(_ranks(single)),
        allocation=[{name: row.get(name) for name in _TOGETHER} for row in together],
    )


_TOGETHER = ("subject", "text", "how", "bits", "forecast", "forecast_error", "kl", "kl_error")
Alike = tuple[str, str, str]
"""(subject, text, change)."""


def _alike(rows: Rows) -> dict[Alike, list[Mapping[str, Any]]]:
    """Group rows with a KL above 0: {(subject, text, change): rows}."""
    groups: dict[Alike, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kl"] > 0:
            groups.setdefault((row["subject"], row["text"], row["how"]), []).append(row)
    return groups


def near(rows: Rows) -> float:
    """Compute the share of forecasts near the measured KL."""
    return float(np.mean([NEAR[0] <= row["forecast"] / row["kl"] <= NEAR[1] for row in rows]))


def covered(rows: Rows, errors: float) -> float:
    """Compute the share of forecasts within `errors` joint errors."""
    return float(
        np.mean(
            [
                abs(row["forecast"] - row["kl"])
                <= errors * np.hypot(row["forecast_error"], row["kl_error"])
                for row in rows
            ]
        )
    )


def _trusted(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if not row.get("outside")]


def _line(kind: Alike, rows: Rows) -> dict[str, object]:
    """Summarise all changes of one kind, including those outside the quadratic regime."""
    ratios = [row["forecast"] / row["kl"] for row in rows]
    return {
        **dict(zip(("subject", "text", "how"), kind, strict=True)),
        "changes": len(rows),
        "outside": len(rows) - len(_trusted(rows)),
        "near": near(rows),
        "median": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "diagonal": median(row["diagonal"] / row["kl"] for row in rows),
        "full": median(row["full"] / row["kl"] for row in rows),
        **{f"within_{errors}": covered(rows, errors) for errors in COVERED},
    }


def _near_checks(rows: Rows) -> Iterator[Check]:
    for (subject, text, how), every in _alike(rows).items():
        if text != points.OTHER:
            continue
        trusted = _trusted(every)
        left = f", {len(every) - len(trusted)} outside" if len(trusted) < len(every) else ""
        about = f"{subject}, {how}"
        if not trusted:
            continue
        share, middle = near(trusted), median(row["forecast"] / row["kl"] for row in trusted)
        yield _judged(
            trusted,
            f"{about}: forecasts within {NEAR[0]:g} to {NEAR[1]:g} of the measured KL",
            f"at least {SHARE:.0%}",
            f"{share:.0%} of {len(trusted)}{left}; {middle:.3g} in the middle",
            share >= SHARE,
        )
        within = {errors: covered(trusted, errors) for errors in COVERED}
        yield _judged(
            trusted,
            f"{about}: forecasts within 1, 2, 3 joint errors",
            "at least " + ", ".join(f"{share:.0%}" for share in COVERED.values()),
            ", ".join(f"{share:.0%}" for share in within.values()),
            all(within[errors] >= share for errors, share in COVERED.items()),
        )


def _judged(rows: Rows, fact: str, expected: str, ours: str, holds: bool) -> Check:
    """Judge a fact; void if the model was trained here and has learnt too little."""
    check = Check(fact=fact, expected=expected, ours=ours, holds=holds)
    loss, table = rows[0].get("loss"), rows[0].get(shared.BIGRAMS)
    if loss is not None and table is not None and not loss <= table - shared.MARGIN:
        return check.void(f"void: a loss of {loss:.3g} beside {table:.3g} of the bigram table")
    return check


def _bits_checks(rows: Rows) -> Iterator[Check]:
    judged = [row for row in rows if row["text"] == points.OTHER]
    for subject, kl in shared.nested(judged, "subject", "how", value="kl").items():
        if not {points.FORECAST, points.UNIFORM, *scores.PEERS} <= kl.keys():
            continue
        rows_here = [row for row in rows if row["subject"] == subject]
        ours, uniform = kl[points.FORECAST], kl[points.UNIFORM]
        best = min(scores.PEERS, key=kl.__getitem__)
        yield _judged(
            rows_here,
            f"{subject}: KL of {points.BITS} bits shared out by the forecast, over uniform bits",
            f"at most {SAVED:g}",
            f"{ours / uniform:.2f}: {ours:.3g} against {uniform:.3g} nats",
            ours <= SAVED * uniform,
        )
        yield _judged(
            rows_here,
            f"{subject}: the same over the best peer's",
            f"at most {LEVEL:g}",
            f"{ours / kl[best]:.3f}: {ours:.3g} against {kl[best]:.3g} of {best}",
            ours <= LEVEL * kl[best],
        )


def _ranks(rows: Rows) -> Iterator[dict[str, object]]:
    """Compute Spearman's correlation with the KL at 3 bits, between the ends."""
    for (subject, text, how), members in _alike(rows).items():
        ranked = all(peer in row for peer in scores.PEERS for row in members)
        if how == f"{points.BITS} bits" and len(members) > 2 and ranked:
            kl = [row["kl"] for row in members]
            for score in (points.FORECAST, "diagonal", "full", *scores.PEERS):
                rank = stats.spearmanr([row[score] for row in members], kl).statistic
                yield {"subject": subject, "text": text, "score": score, "spearman": float(rank)}


def _panels(rows: Rows) -> Iterator[Panel]:
    by_subject: dict[str, dict[str, Sequence[shared.Place]]] = {}
    for (subject, text, how), members in _alike(rows).items():
        if text == points.OTHER:
            by_subject.setdefault(subject, {})[how] = [
                (
                    row["forecast"],
                    row["kl"],
                    float(np.hypot(row["kl_error"], row["forecast_error"])),
                )
                for row in members
                if row["forecast"] > 0
            ]
    for subject, curves in by_subject.items():
        labels = ("forecast KL (nats per token)", "measured KL (nats per token)")
        yield shared.panel(subject, *labels, curves, log="xy", line=False)


def _bits_panels(rows: Rows) -> Iterator[Panel]:
    hows = (points.UNIFORM, *scores.PEERS, points.FORECAST)
    for subject in dict.fromkeys(row["subject"] for row in rows):
        rows_here = [row for row in rows if row["subject"] == subject]
        curves = {
            text: [
                (float(hows.index(row["how"])), row["kl"], row["kl_error"])
                for row in rows_here
                if row["text"] == text
            ]
            for text in points.TEXTS
        }
        titled = f"Bits shared out by scores, {points.BITS} on average, {subject}"
        bars = shared.panel(titled, "", "measured KL (nats per token)", curves)
        yield replace(bars, kind="bars", ticks=hows)


STUDY = Study(
    name="bill",
    title="forecast and measured KL of rounding, pruning and merging; bits by it and by others",
    source="ours, testing hb.price",
    published="Nothing is published: tools that share out bits give scores without a unit.",
    settings=points.settings,
    measure=points.measure,
    summarise=summarise,
    columns=(
        *("study", "subject", "phase", "text", "part", "place", "how", "bits"),
        *("forecast", "forecast_error", "diagonal", "full", "full_error", "relative_size"),
        *("outside", "kl", "kl_error", *scores.PEERS, "loss", shared.BIGRAMS),
    ),
)
