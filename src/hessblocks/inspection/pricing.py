"""Forecast the cost of weight changes of a saved model, as `hessblocks price` does."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hessblocks import storage
from hessblocks.bill import Bill, Change, Draws, Edit, change_each, merged, price, pruned, rounded
from hessblocks.conventions import AnyPath
from hessblocks.curvature import Problem
from hessblocks.data import Windows, documents_of, encoded, start_words, template_start
from hessblocks.errors import ArgumentError, RunError, duration, in_units
from hessblocks.inspection.measure import Finish, _fingerprint, placed
from hessblocks.inspection.subject import Subject, other_function
from hessblocks.models import fingerprint, load_saved, stored_within, stored_words
from hessblocks.progress import Progress
from hessblocks.settings import PricingSettings, make
from hessblocks.training import claimed, resolve_device

SHOWN = 60
"""Most changes in summary.json and on the page, the most expensive first; bill.csv has all."""
HELD = 8
"""Most gradients that `hb.price` holds at once."""
TOGETHER = ("name", "forecast", "forecast_error", "measured", "measured_error", "outside")
"""Columns of together.csv."""


def measure_price(
    source: str,
    data: AnyPath,
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Finish | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Forecast the cost of rounding, pruning or merging each weight matrix, and check it.

    Args:
        source: a folder that `save_pretrained` wrote, a GGUF file, or a name in the local Hugging
            Face cache.
        data: file or folder of text.
        out: run folder, new or of the same call, except that `allocate` may differ; by default
            runs/price-MODEL.
        device: cpu, cuda or auto.
        progress: shows the estimated cost first, then stages.
        finish: called with the folder at the end.
        **given: fields of `hessblocks.settings.PricingSettings`, such as `round=(3, 4),
            allocate=3.5`.

    Returns:
        The content of summary.json, and the folder as `out`.

    Raises:
        ArgumentError: settings, model or text do not fit, or `out` contains another run.
        RunError: a file is damaged, a number is not finite, or `out` cannot be written.

    Cost:
        The cost of `hb.price` and `Bill.check`. Samples are stored, so that the same call resumes.
    """
    progress, settings = progress or Progress(), make(PricingSettings, given)
    if not (settings.round or settings.prune or settings.merge):
        raise ArgumentError(
            "--round: there is nothing to price; give bits such as 3,4, or --prune or --merge."
        )
    device = resolve_device(device)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        model, saved = load_saved(source, "causal-lm")
        subject = Subject(name=saved.name, model=placed(device, model))
        tokenizer = saved.tokenizer(needed=True)
        text, other = _batches(subject, tokenizer, texts, settings)
        another = _other(settings.merge, subject, tokenizer) if settings.merge else None
        edits = {edit.how: edit for edit in _edits(settings, another)}
        changes = change_each(model, *edits.values())
    told = _told(settings, model.config)
    if not settings.bare and (words := start_words(tokenizer, template_start(tokenizer))):
        told.append(words)
    for words in told:
        progress.note(words)
    folder = Path(out or Path("runs", f"price-{subject.name.replace('/', '-')}"))
    config = {
        "command": "price",
        "source": source,
        "model": {"name": subject.name, **subject.digests()},
        "data": {"name": str(data), "fingerprint": _fingerprint({**text, "other": other})},
        "edits": list(edits),
        **asdict(settings),
        **({"merged": fingerprint(another)} if another else {}),
        "device": device,
    }
    problem = Problem(subject.model, text, loss="causal-lm")
    drawn = {name: value for name, value in config.items() if name != "allocate"}
    with claimed(folder, config, free=["allocate"]):
        bill = _bill(problem, changes, settings, folder, storage.identity_of(drawn), progress)
        bill.save(folder / "bill.csv")
        found = {"command": "price", "model": subject.name, "changes": len(bill), "told": told}
        found |= _summary(bill, {"input_ids": other}, settings, folder, progress)
        storage.write_json(folder / "summary.json", found)
        if finish:
            finish(folder)
    return {**found, "out": str(folder)}


def _batches(
    subject: Subject, tokenizer: Any, texts: Sequence[Any], settings: PricingSettings
) -> tuple[dict[str, Tensor], Tensor]:
    """Draw windows for the forecasts, and other windows for the check."""
    name, context = subject.name, subject.context
    if context is not None and settings.tokens > context:
        raise ArgumentError(
            f"--tokens: {settings.tokens} are longer than the context of {context} of {name}."
        )
    ids, count = encoded(tokenizer, texts), settings.sequences
    first = [] if settings.bare else template_start(tokenizer)
    if len(ids) and ids.max() >= subject.vocabulary:
        raise ArgumentError(f"MODEL: the tokenizer of {name} gives tokens that it does not know.")
    total = 2 * count if settings.check else count
    found = Windows(ids, settings.tokens, first).drawn(total, settings.seed, "--sequences")
    return {"input_ids": found[:count]}, found[count:]


def _other(source: str, subject: Subject, tokenizer: Any) -> nn.Module:
    """Load the model to merge with: of the same shapes, function and vocabulary."""
    try:
        other, saved = load_saved(source, "causal-lm")
        vocabularies = tokenizer, saved.tokenizer()
    except (ArgumentError, RunError) as error:
        raise type(error)(str(error).replace("MODEL:", "--merge:", 1)) from error
    model: Any = subject.model
    shapes = [{n: p.shape for n, p in one.named_parameters()} for one in (model, other)]
    if shapes[0] != shapes[1]:
        raise ArgumentError(
            f"--merge: {source} has other parameters than {subject.name}; give a model of the same "
            "architecture and sizes."
        )
    if differing := other_function(model.config, other.config, vocabularies):
        raise ArgumentError(
            f"--merge: {source} is another function than {subject.name}, by its "
            f"{', '.join(differing[:5])}; a mean of their weights is neither. Give a model that "
            "was trained from the same one."
        )
    return other


def _edits(settings: PricingSettings, other: nn.Module | None) -> list[Edit]:
    found = [rounded(bits=bits) for bits in settings.round]
    found += [pruned(share=share) for share in settings.prune]
    return found if other is None else [*found, merged(other)]


def _told(settings: PricingSettings, config: Any) -> list[str]:
    """Say what the numbers are of: stored bits, edits that are not below them, what is merged."""
    found = (
        [f"{words}; their rounding is in every number"] if (words := stored_words(config)) else []
    )
    for bits in settings.round:
        if count := stored_within(config, bits):
            found.append(
                f"--round {bits}: {count} matrices were stored in {bits} bits or fewer, so that "
                "this forecasts a second rounding, not what the model would lose"
            )
    if settings.merge:
        found.append("merging averages the matrices alone; embeddings, norms and biases stay")
    return found


def _bill(
    problem: Problem,
    changes: Mapping[str, Change],
    settings: PricingSettings,
    folder: Path,
    of: str,
    progress: Progress,
) -> Bill:
    """Read the samples of an earlier call, or draw and store them."""
    path = folder / "draws.safetensors"
    if path.exists() and "secants" in (kept := storage.read_tensors(path, of)):
        sizes = tuple(kept.pop("relative_sizes").tolist())
        secants = json.loads(bytes(kept.pop("secants").tolist()))
        return Bill(
            problem=problem,
            changes=changes,
            draws=Draws(**kept),
            relative_sizes=sizes,
            secants=secants,
        )
    progress.note(_cost(problem, changes, settings))
    with progress.stage("forecasts"):
        bill = price(problem, changes, settings.samples, settings.seed)
    tensors = {one.name: getattr(bill.draws, one.name).contiguous() for one in fields(Draws)}
    tensors["relative_sizes"] = torch.tensor(bill.relative_sizes, dtype=torch.float64)
    words = json.dumps(dict(bill.secants)).encode()
    tensors["secants"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    storage.write_tensors(path, tensors, of)
    return bill


def _cost(problem: Problem, changes: Mapping[str, Change], settings: PricingSettings) -> str:
    """Estimate passes, minutes and bytes, from one forward pass and one change."""
    start = time.perf_counter()
    problem.value(twice=False)
    forward, first = time.perf_counter() - start, next(iter(changes.values()))
    first.relative_size(problem.parameters)  # warm-up: the first call takes longer
    start = time.perf_counter()
    first.relative_size(problem.parameters)
    making = sum(c.size for c in changes.values()) / first.size * (time.perf_counter() - start)
    pieces = -(-settings.sequences // max(1, settings.sequences // settings.samples))
    backward = -(-settings.samples // pieces) * pieces * 2
    edits = len({change.how for change in changes.values()})
    check = min(settings.check, len(changes))
    measured = check + 1 + 2 * (edits + 1) if check else 0
    seconds = forward * (1 + 2 * backward / pieces + measured) + making * (2 + backward / HELD)
    held = HELD * sum(c.size * 4 for c in changes.values()) // edits
    return (
        f"{len(changes)} changes: {pieces} forward and {backward} backward passes over pieces of "
        f"the text, {measured} over other text for the check; about {duration(seconds)}, "
        f"and at most {in_units(held)} for gradients besides model and passes"
    )


def _summary(
    bill: Bill, other: Any, settings: PricingSettings, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Sum prices, allocate bits, check forecasts, and write the tables."""
    sets: dict[str, tuple[str, ...]] = {}
    for one in bill.values():
        sets[f"all, {one.how}"] = (*sets.get(f"all, {one.how}", ()), one.name)
    rows = sorted(bill.to_rows(), key=lambda row: -row["forecast"])
    found: dict[str, Any] = {"bill": rows[:SHOWN], "samples": len(bill.draws.pieces)}
    if settings.allocate is not None:
        allocation = bill.allocate(bits=settings.allocate)
        allocation.save(folder / "allocation.csv")
        lines = "".join(f"{line}\n" for line in allocation.tensor_types())
        storage.write_text(folder / "tensor-types.txt", lines)
        sets["allocation"] = allocation.names
        # the uniform width within the requested bits, not within the mean that was reached
        width = max(bits for bits in settings.round if bits <= settings.allocate)
        found |= {"asked": settings.allocate, "bits": allocation.total.bits, "uniform": width}
        found["shares"] = allocation.to_rows()
    else:
        for name in ("allocation.csv", "tensor-types.txt"):
            (folder / name).unlink(missing_ok=True)
    together = [bill.sum(names).to_rows()[0] for names in sets.values()]
    if settings.check:
        with progress.stage("check"):
            check = bill.check(settings.check, other)
            together = [_together(bill, names, other) for names in sets.values()]
        check.save(folder / "check.csv")
        found["check"] = str(check)
        drawn = check.plot()
        drawn.set_size_inches(4.2, 3.8)  # readable on a phone too
        for kind in ("svg", "png"):
            with storage.atomic_path(folder / "figures" / f"check.{kind}") as temporary:
                drawn.savefig(temporary, dpi=150)
    named = [{**row, "name": name} for name, row in zip(sets, together, strict=True)]
    found["together"] = [{key: row.get(key) for key in TOGETHER} for row in named]
    storage.write_table(folder / "together.csv", TOGETHER, found["together"])
    return found


def _together(bill: Bill, names: Sequence[str], other: Any) -> dict[str, Any]:
    """Measure changes together; each change is computed once, not once per pass."""
    parameters = bill.problem.parameters
    made = {
        name: replace(bill.changes[name], new=dict(bill.changes[name].made(parameters)))
        for name in names
    }
    return replace(bill, changes={**bill.changes, **made}).check([tuple(names)], other).to_rows()[0]
