"""Measure forecasts and KL of weight changes: models, texts, points.

The rule: PLAN.md beside this file.
"""

import os
import pydoc_data.topics
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

import hessblocks as hb
from hessblocks.bill import Bill, Change, Edit
from hessblocks.data import BigramTable, Windows, encoded
from hessblocks.errors import RunError
from hessblocks.models import load
from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.bill import scores
from hessblocks_studies.data import TextSize
from hessblocks_studies.engine import Scale

FOLDER = "HESSBLOCKS_SMOLLM2"
"""Environment variable with the folder or GGUF file of SmolLM2-135M."""
SMOLLM2 = "smollm2"
RATES = {shared.GPT2: 5e-3, "modern": 5e-3, "sas-p": 1.5e-2}
"""Model that is trained here → peak learning rate: half of the best at width 64."""
LONGER = {shared.GPT2: 2}
"""Model → factor of the steps, if the usual steps leave it too close to the bigram table."""
SAME, OTHER, FOREIGN = "same", "other", "foreign"
TEXTS = (OTHER, SAME, FOREIGN)
"""Other windows of the forecasts' kind of text, the forecasts' windows, and another text."""
SINGLE, TOGETHER = "single", "together"
"""Phases: single changes; allocations with a mean of `BITS` bits."""
SEED = 0
ROUNDS, ALL_ROUNDS = 10, 30
FURTHER = 2
"""Number of rounds that laptop scale also measures on the other two texts."""
BITS, CANDIDATES = 3, (2, 3, 4)
PRUNED, MERGED = (0.02, 0.1, 0.3), (0.02, 0.1, 0.5)
FORECAST, UNIFORM = "forecast", "uniform"
MEMORY = 4 << 30
"""Memory in bytes for forecasts, in addition to the model."""
_SMALL = replace(shared.LAPTOP, width=128, mlp_width=512, steps=1200, evaluations=4)


@dataclass(frozen=True, kw_only=True)
class BillSettings:
    """Settings of a point: some changes of one model, or bits by every score, on one text."""

    subject: str
    """Name of the model: `SMOLLM2`, or the block that is trained here."""
    phase: str
    """Phase: `SINGLE` or `TOGETHER`."""
    text: str
    """Name in `TEXTS`."""
    part: int
    """Index of the round of matrices."""
    parts: int
    """Number of rounds that are forecast from the same gradients."""
    sequences: int
    """Number of windows for forecasts."""
    held_out: int
    """Number of windows for the KL."""
    tokens: int
    """Tokens per window."""
    size: TextSize | None = None
    """Sizes of model and training; None for SmolLM2."""


def settings(scale: Scale, seeds: int | None) -> list[BillSettings]:
    """List SmolLM2's rounds, then trained models; one seed only: another is another model."""
    if scale == "smoke":
        return list(_trained((shared.GPT2,), shared.SMALLEST, 8, (OTHER,)))
    return [*_rounds(scale), *_trained(tuple(RATES), _SMALL, 64, TEXTS)]


def _rounds(scale: Scale) -> Iterator[BillSettings]:
    rounds = ALL_ROUNDS if scale == "paper" else ROUNDS
    usual = BillSettings(
        subject=SMOLLM2,
        phase=SINGLE,
        text=OTHER,
        part=0,
        parts=rounds,
        sequences=64,
        held_out=22,
        tokens=96,
    )
    for part in range(rounds):
        few = part < FURTHER or scale == "paper"
        for text in TEXTS if few else (OTHER,):
            yield replace(usual, text=text, part=part)
    for text in (OTHER, FOREIGN):
        yield replace(usual, phase=TOGETHER, text=text, parts=1, sequences=32)


def _trained(
    subjects: Sequence[str], size: TextSize, windows: int, texts: Sequence[str]
) -> Iterator[BillSettings]:
    for subject in subjects:
        steps = size.steps * LONGER.get(subject, 1)
        for phase in (SINGLE, TOGETHER):
            for text in texts:
                if phase == SINGLE or text != SAME:
                    yield BillSettings(
                        subject=subject,
                        phase=phase,
                        text=text,
                        part=0,
                        parts=1,
                        sequences=windows,
                        held_out=windows,
                        tokens=size.context,
                        size=replace(size, learning_rate=RATES[subject], steps=steps),
                    )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model with its texts."""

    model: PreTrainedModel
    texts: Mapping[str, np.ndarray[Any, Any]]
    """Token ids of the forecasts' text, of other text of the kind, and of foreign text."""
    edits: Sequence[Edit]
    """Changes that are applied to each matrix alone."""
    loss: float | None = None
    """Loss on held-out windows if the model was trained here, otherwise None."""
    table: float | None = None
    """Loss of the bigram table; None for SmolLM2."""

    def windows(self, text: str, count: int, tokens: int) -> Int[Tensor, "count tokens"]:
        """Draw windows; those of `SAME` are the first windows of the forecasts."""
        return Windows(self.texts[text], tokens).drawn(count, SEED)


@cache
def subject_of(name: str, size: TextSize | None) -> Subject:
    """Load or train a model, once per process."""
    torch.manual_seed(SEED)
    return _smollm2() if size is None else _trained_here(name, size)


def _smollm2() -> Subject:
    folder = os.environ.get(FOLDER)
    if not folder:
        raise RunError(f"bill: set {FOLDER} to a folder or GGUF file of SmolLM2-135M")
    model, tokenizer = load(folder)
    prose, code = _prose(), _code()
    half = len(prose) // 2
    texts = {SAME: prose[:half], OTHER: prose[half:], FOREIGN: code}
    edits = [
        hb.rounded(bits=bits, symmetric=symmetric) for bits in (3, 4) for symmetric in (True, False)
    ]
    tokens = {name: encoded(tokenizer, [text]) for name, text in texts.items()}
    return Subject(model=model, texts=tokens, edits=edits)


def _prose() -> str:
    return "\n\n".join(pydoc_data.topics.topics.values())


def _code() -> str:
    return Path(tarfile.__file__).read_text(encoding="utf-8")


def _trained_here(name: str, size: TextSize) -> Subject:
    corpus = shared.text_of(size)
    (model, loss), (merged_in, _) = (_run(name, size, seed) for seed in (SEED, SEED + 1))
    held_out = corpus.splits["validation"]
    half = len(held_out) // 2
    prose = np.asarray(corpus.tokenizer.encode(_prose()).ids)
    edits = [hb.rounded(bits=bits) for bits in range(2, 9)]
    edits += [hb.pruned(share=share) for share in PRUNED]
    edits += [hb.merged(merged_in, weight=weight) for weight in MERGED]
    tokens = torch.as_tensor(np.asarray(held_out[: half // size.context * size.context], dtype=int))
    table = BigramTable(corpus.splits["train"], corpus.vocab_size)
    return Subject(
        model=model,
        texts={SAME: held_out[:half], OTHER: held_out[half:], FOREIGN: prose},
        edits=edits,
        loss=loss,
        table=table.loss(tokens.view(-1, size.context)),
    )


def _run(name: str, size: TextSize, seed: int) -> tuple[PreTrainedModel, float]:
    std = None if name == shared.GPT2 else shared.best_start(name, size.width)
    settings = shared.TrainedSettings(
        study="bill", variant=name, seed=seed, size=size, embedding_std=std
    )
    torch.manual_seed(seed)
    model = shared.make_model(settings)
    corpus = shared.text_of(size)
    shared.train(model, shared.run_settings(settings), corpus)
    return model.eval(), shared.whole_loss(model, corpus.windows("validation", size.context))


def rounds_of(places: Sequence[str]) -> list[list[str]]:
    """Divide matrices into rounds with one matrix per role; the layers of a role are permuted."""
    roles: dict[str, list[str]] = {}
    for matrix in places:
        roles.setdefault(re.sub(r"\.\d+\.", ".", matrix), []).append(matrix)
    generator = np.random.default_rng(SEED)
    mixed = [[layers[i] for i in generator.permutation(len(layers))] for layers in roles.values()]
    return [[layers[n] for layers in mixed if n < len(layers)] for n in range(max(map(len, mixed)))]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Prices of the changes of one phase, and other tools' scores."""

    bill: Bill
    parts: Sequence[Sequence[str]]
    """Names of the changes per round."""
    peers: Mapping[str, Mapping[str, float]]
    """{change: {peer: score}} of roundings; in `SINGLE` only at 3 bits, of models trained here."""


@cache
def _forecast(settings: BillSettings) -> Forecast:
    """Forecast all rounds of a phase from the same gradients, once per process."""
    subject = subject_of(settings.subject, settings.size)
    layers = scores.linear_layers(subject.model)
    rounds, edits = [list(layers)], subject.edits
    if settings.phase == TOGETHER:
        edits = [hb.rounded(bits=bits) for bits in CANDIDATES]
    elif settings.size is None:
        rounds = rounds_of(list(layers))[: settings.parts]
    every = hb.change_each(subject.model, *edits)
    parts = [[c.name for c in every.values() if c.place in matrices] for matrices in rounds]
    chosen: dict[str, Any] = {name: every[name] for matrices in parts for name in matrices}
    tokens = subject.windows(SAME, settings.sequences, settings.tokens)
    problem = hb.Problem(
        subject.model, {"input_ids": tokens}, loss="causal-lm", memory_limit=MEMORY
    )
    rounding: list[Change] = [change for change in chosen.values() if change.bits]
    if settings.phase == SINGLE:  # only models trained here have ranks of single changes
        ranked = f"{BITS} bits" if settings.size else None
        rounding = [change for change in rounding if change.how == ranked]
    traced = scores.trace_changes(list(dict.fromkeys(change.place for change in rounding)))
    bill = hb.price(problem, chosen | traced, samples=settings.sequences, seed=SEED)
    traces = {matrix: 2 * bill[name].diagonal.value for name in traced for matrix in traced[name]}
    return Forecast(
        bill=bill,
        parts=parts,
        peers=scores.peers(subject.model, tokens, rounding, traces) if rounding else {},
    )


def measure(settings: BillSettings) -> list[Row]:
    """Measure the KL of each change of a round, or of the bits that each score allocates."""
    subject = subject_of(settings.subject, settings.size)
    forecast = _forecast(replace(settings, text=SAME, part=0))
    tokens = subject.windows(settings.text, settings.held_out, settings.tokens)
    judging = {"input_ids": tokens}
    phase = _single if settings.phase == SINGLE else _together
    rows = list(phase(forecast, settings.part, judging))
    columns: Row = {"study": "bill", "subject": settings.subject, "text": settings.text}
    columns |= {"phase": settings.phase, "part": settings.part}
    if subject.loss is not None:
        columns |= {"loss": subject.loss, shared.BIGRAMS: subject.table}
    return [{**columns, **row} for row in rows]


def _single(forecast: Forecast, part: int, judging: Mapping[str, Tensor]) -> Iterator[Row]:
    names = forecast.parts[part]
    check = forecast.bill.check(names, judging)
    for price, measured in zip(check.forecasts, check.measured, strict=True):
        (row,) = price.to_rows()
        columns = ("place", "how", "bits", "forecast", "forecast_error", "diagonal", "full")
        yield {
            **{name: row[name] for name in (*columns, "full_error", "relative_size", "outside")},
            "kl": measured.value,
            "kl_error": measured.standard_error,
            **forecast.peers.get(price.name, {}),
        }


def _together(forecast: Forecast, part: int, judging: Mapping[str, Tensor]) -> Iterator[Row]:
    bill = forecast.bill
    chosen = {FORECAST: bill.allocate(bits=BITS).names}
    for peer in scores.PEERS:
        costs = {name: peer_scores[peer] for name, peer_scores in forecast.peers.items()}
        chosen[peer] = bill.allocate(bits=BITS, costs=costs).names
    chosen[UNIFORM] = tuple(price.name for price in bill.values() if price.bits == BITS)
    parameters = bill.problem.parameters
    for score, names in chosen.items():
        rounded = {
            name: replace(bill.changes[name], new=dict(bill.changes[name].made(parameters)))
            for name in names
        }
        check = replace(bill, changes={**bill.changes, **rounded}).check([names], judging)
        price, measured = check.forecasts[0], check.measured[0]
        yield {
            "how": score,
            "bits": price.bits,
            "forecast": price.forecast.value,
            "forecast_error": price.forecast.standard_error,
            "outside": price.outside,
            "kl": measured.value,
            "kl_error": measured.standard_error,
        }
