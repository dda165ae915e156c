"""Forecast the cost of weight changes of a saved model, as `hessblocks price` does."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks import storage
from hessblocks.bill import (
    Bill,
    Change,
    Draws,
    Edit,
    activations_of,
    change_each,
    growth_passes,
    in_format,
    merged,
    price,
    pruned,
    rounded,
)
from hessblocks.conventions import AnyPath
from hessblocks.curvature import Problem, custom_groups, make_plan, plain_model
from hessblocks.data import Windows, documents_of, start_words, template_start
from hessblocks.errors import ArgumentError, RunError, duration, in_units
from hessblocks.inspection.caches import cache_sentences, head_map, recipes, rounded_activations
from hessblocks.inspection.measure import Finish, _fingerprint, placed
from hessblocks.inspection.subject import Subject, other_function
from hessblocks.models import Saved, fingerprint, load_saved, stored_within, stored_words
from hessblocks.progress import Progress
from hessblocks.quiet import without_bars
from hessblocks.settings import PricingSettings, QuantisingSettings, make
from hessblocks.training import claimed, resolve_device, working_seconds

Settings = PricingSettings | QuantisingSettings
SHOWN = 60
"""Most changes in summary.json and on the page, the most expensive first; bill.csv has all."""
PRODUCT = 1.3e-9
"""Seconds per entry and sample of the products with a reference."""
SECANTS = 2.2
"""Passes over the text for the way to changes of eight roles: 17 over an eighth of it, some twice.
"""
ROUNDING = 1.5
"""Cost of a pass with rounded activations, in plain ones (measured)."""
HELD = 8
"""Most gradients that `hb.price` holds at once."""
INPUTS = "inputs."
"""Prefix of mean squared inputs in the file of samples."""
CHECKED = 12
"""Most windows of the check of rounded activations, where each set of changes is a pass of its own.
"""
PIECES = 32
"""Fewest batches of the text of a check, if it has as many windows."""
ROUNDED = 0.01
"""Largest relative distance of norms and biases of a quantised copy, which may have 16 bits."""
AS_STORED = "as stored"
"""Name of the change to a quantised copy."""
TOGETHER = ("name", "bits", "forecast", "forecast_error", "measured", "measured_error", "outside")
"""Columns of together.csv."""


def measure_price(
    source: str,
    data: AnyPath,
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Finish | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Forecast the cost of rounding, pruning or merging each weight matrix, and check it.

    Args:
        source: a folder that `save_pretrained` wrote, a GGUF file, or a name in the local Hugging
            Face cache.
        data: file or folder of text.
        out: run folder, new or of the same call, except that `allocate` may differ; by default
            runs/price-MODEL, or runs/cache-MODEL where the cache or activations are rounded.
        device: cpu, cuda or auto.
        progress: shows the estimated cost first, then stages.
        finish: called with the folder at the end.
        **options: fields of `hessblocks.settings.PricingSettings`, such as `round=(3, 4),
            allocate=3.5`.

    Returns:
        The content of summary.json, and the folder as `out`.

    Raises:
        ArgumentError: settings, model or text do not fit, or `out` contains another run.
        RunError: a file is damaged, a number is not finite, or `out` cannot be written.

    Cost:
        The cost of `hb.price` and `Bill.check`. Samples are stored, so that the same call resumes.
    """
    progress, settings = progress or Progress(), make(PricingSettings, options)
    several = settings.round or settings.prune or settings.formats or settings.merge
    rounding = settings.cache or settings.activations
    settings.check_chosen()
    device = resolve_device(device)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        model, saved = load_saved(source, "causal-lm")
        tokenizer = saved.tokenizer(needed=True)
        subject = Subject(name=saved.name, model=placed(device, model), tokenizer=tokenizer)
        windows = min(settings.sequences, CHECKED) if rounding else settings.sequences
        checked = windows if settings.check else 0
        text, held_out = drawn_batches(subject, texts, settings, checked)
        merging = _other(settings.merge, subject) if settings.merge else None
        every: list[Edit] = [rounded(bits=bits) for bits in settings.round]
        every += [pruned(share=share) for share in settings.prune]
        every += [*map(in_format, settings.formats), *([merged(merging)] if merging else [])]
        edits = {edit.how: edit for edit in every}
        changes = change_each(model, *edits.values()) if several else {}
        clauses = _unfitting(subject.model, settings.formats, changes)
        stored, moved = _stored(settings.against, subject) if settings.against else ({}, [])
        if stored:
            groups = custom_groups(model, {name: name for name in stored})
            changes = change_each(groups, replace(merged(stored, weight=1.0), how=AS_STORED))
        if rounding:
            changes = rounded_activations(model, settings)
        if settings.activations and any(p.ndim > 2 for p in model.parameters()):
            clauses.append("inputs of stacked matrices, as of experts, are not rounded")
    if moved:
        names = f"{', '.join(moved[:5])}{', …' * (len(moved) > 5)}"
        clauses = [f"the copy's {names} differ by up to {ROUNDED:.0%} too, which is in no number"]
    told = note_history(settings, model.config, tokenizer, progress, clauses)
    what = "cache" if rounding else "price"
    folder = Path(out or Path("runs", f"{what}-{subject.name.replace('/', '-')}"))
    config = {
        "command": "price",
        "source": source,
        "model": {"name": subject.name, **subject.digests()},
        "data": {"name": str(data), "fingerprint": _fingerprint({**text, "other": held_out})},
        "edits": list(dict.fromkeys(change.how for change in changes.values())),
        **asdict(settings),
        **({"merged": fingerprint(merging)} if merging else {}),
        **({"stored": _fingerprint(stored)} if stored else {}),
        "device": device,
    }
    problem = in_pieces(subject.model, text["input_ids"], settings.samples)
    drawn = {name: value for name, value in config.items() if name != "allocate"}
    before = finished(folder, config, ["allocate"])
    summary = before if before.get("asked", "") == settings.allocate else {}
    with claimed(folder, config, free=["allocate"], finish=finish):
        check = min(settings.check, len(changes))
        sets = check + 1 + 2 * (len(config["edits"]) + 1) if check else 0
        measured = sets * checked / settings.sequences
        bill = stored_bill(problem, changes, settings, [folder], drawn, progress, measured)
        bill.save(folder / "bill.csv")
        if not summary:
            told += [bill.ruling] if bill.ruling else []
            summary = {"command": "price", "model": subject.name, "told": told}
            summary |= {"changes": len(bill), "asked": settings.allocate}
            other = in_pieces(subject.model, held_out) if settings.check else None
            summary |= _summary(bill, other, settings, folder, progress)
            storage.write_json(folder / "summary.json", storage.finite(summary))
    return {**summary, "out": str(folder)}


def finished(folder: Path, config: Mapping[str, Any], free: Sequence[str]) -> dict[str, Any]:
    """Read the summary of an earlier call with the same free settings; empty if there is none."""
    paths = folder / "config.json", folder / "summary.json"
    if not all(path.is_file() for path in paths):
        return {}
    earlier, summary = map(storage.read_object, paths)
    return summary if all(earlier.get(name) == config[name] for name in free) else {}


def drawn_batches(
    subject: Subject, texts: Sequence[Any], settings: Settings, checked: int
) -> tuple[dict[str, Int[Tensor, "windows tokens"]], Int[Tensor, "checked tokens"]]:
    """Draw windows for the forecasts, and `checked` windows for the check."""
    ids, count = subject.encoded(texts, settings.tokens), settings.sequences
    windows = Windows(ids, settings.tokens, template_start(subject.tokenizer, settings.bare))
    drawn = windows.drawn(count + checked, settings.seed, "--sequences")
    return {"input_ids": drawn[:count]}, drawn[count:]


def in_pieces(
    model: nn.Module, windows: Int[Tensor, "windows tokens"], pieces: int = PIECES
) -> Problem:
    """Make a problem with a batch for each pass.

    One batch would be cut as much, after two passes to check that its rows are independent.

    Args:
        model: the model.
        windows: rows of tokens.
        pieces: fewest batches, if there are as many windows.

    Returns:
        The problem.
    """
    batches = [{"input_ids": rows} for rows in windows.split(max(1, len(windows) // pieces))]
    return Problem(model, batches, loss="causal-lm")


@contextmanager
def naming(option: str, subject: str = "MODEL") -> Iterator[None]:
    """Let errors of a subject, such as a model, name the option that gave it."""
    try:
        yield
    except (ArgumentError, RunError) as error:
        raise type(error)(str(error).replace(f"{subject}:", f"{option}:", 1)) from error


def _other(source: str, subject: Subject) -> nn.Module:
    """Load the model to merge with: of the same shapes, function and vocabulary."""
    with naming("--merge"):
        second, saved = load_saved(source, "causal-lm")
        vocabularies = subject.tokenizer, saved.tokenizer()
    model: Any = subject.model
    shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (model, second)]
    if shapes[0] != shapes[1]:
        raise ArgumentError(
            f"--merge: {source} has other parameters than {subject.name}; give a model of the same "
            "architecture and sizes."
        )
    if differing := other_function(model.config, second.config, vocabularies):
        raise ArgumentError(
            f"--merge: {source} computes something else from its weights than {subject.name}, "
            f"since they differ in {', '.join(differing[:5])}; give a model that was trained from "
            "the same one."
        )
    return second


def _stored(source: str, subject: Subject) -> tuple[dict[str, Tensor], list[str]]:
    """Read the matrices of a quantised copy that differ, and the names of norms that moved."""
    model: Any = plain_model(subject.model)
    # tied matrices twice, since the copy may store both
    parameters = {n: p.detach().cpu() for n, p in model.named_parameters(remove_duplicate=False)}
    with naming("--against"):
        stored = stored_weights(source, [*parameters])
        config = Saved.at(source).config
    if any(stored[name].shape != p.shape for name, p in parameters.items()):
        raise ArgumentError(
            f"--against: {source} has weights of other sizes than {subject.name}; give a quantised "
            "copy of it."
        )
    modules = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [f"{name}.weight" for name, module in model.named_modules() if module in modules]
    equal = all(torch.equal(v[ends[0]], v[name]) for v in (parameters, stored) for name in ends)
    others = other_function(model.config, config, (None, None))
    others = [name for name in others if not (equal and name.endswith("tie_word_embeddings"))]
    norms = {n: p for n, p in parameters.items() if p.ndim < 2}  # and biases
    others += [n for n, p in norms.items() if (stored[n] - p).norm() > ROUNDED * p.norm()]
    if others:
        raise ArgumentError(
            f"--against: {source} differs from {subject.name} in {', '.join(others[:5])} too, so "
            "that its matrices alone are not its rounding; give the model that it was made from."
        )
    differ = [n for n, _ in model.named_parameters() if not torch.equal(stored[n], parameters[n])]
    if not (matrices := {n: stored[n] for n in differ if n not in norms}):
        raise ArgumentError(
            f"--against: {source} has the same weights as {subject.name}; give a quantised copy."
        )
    return matrices, [n for n in differ if n not in matrices]


def _unfitting(
    model: nn.Module, formats: Sequence[str], changes: Mapping[str, Change]
) -> list[str]:
    """Say for how many matrices a format does not fit the rows, so that they stay as they are."""
    matrices = sum(parameter.ndim > 1 for parameter in plain_model(model).parameters())
    counts = Counter(change.how for change in changes.values() for _ in change.new)
    return [
        f"{matrices - count} of {matrices} matrices have rows that {how} does not fit; they stay"
        for how, count in counts.items()
        if how in formats and count < matrices
    ]


def note_history(
    settings: Settings, config: Any, tokenizer: Any, progress: Progress, clauses: Sequence[str]
) -> list[str]:
    """Note and return what the numbers are of.

    Args:
        settings: settings of the command.
        config: configuration of the model, with the types that its matrices were stored in.
        tokenizer: its tokeniser.
        progress: takes the notes.
        clauses: further clauses.

    Returns:
        All clauses: stored bits, edits that are not below them, what is merged, how windows begin.
    """
    clause = stored_words(config)
    notes = [f"{clause}; their rounding is in every number"] if clause else []
    if clause and isinstance(settings, QuantisingSettings):
        notes.append(
            "a type that holds what was stored costs nothing here, so that mixes of other types "
            "look worse than they would from the full weights"
        )
    for bits in getattr(settings, "round", ()):
        if count := stored_within(config, bits):
            notes.append(
                f"--round {bits}: {count} matrices were stored in {bits} bits or fewer, so that "
                "this forecasts a second rounding, not what the model would lose"
            )
    if getattr(settings, "merge", None):
        notes.append("merging averages the matrices alone; embeddings, norms and biases stay")
    notes += filter(None, (*clauses, start_words(tokenizer, settings.bare)))
    for clause in notes:
        progress.note(clause)
    return notes


def stored_bill(
    problem: Problem,
    changes: Mapping[str, Change],
    settings: Settings,
    folders: Sequence[Path],
    drawn: Mapping[str, Any],
    progress: Progress,
    measured: float,
) -> Bill:
    """Read the samples of an earlier call, or tell the cost, draw and store them.

    Args:
        problem: model and text.
        changes: changes to price.
        settings: numbers of windows and of samples.
        folders: run folder, then folders whose samples may be the same.
        drawn: what the samples depend on, of config.json.
        progress: takes the cost, and shows the stage.
        measured: passes over other text that follow, in those over `problem`'s.

    Returns:
        The priced changes.
    """
    path, *others = [folder / "draws.safetensors" for folder in folders]
    identity = storage.identity_of(drawn)
    needed = {"secants", "shaped", "growth"} if activations_of([*changes.values()]) else {"secants"}
    tensors = storage.read_tensors(path, identity) if path.exists() else {}
    for other in others:
        with suppress(RunError):
            tensors = tensors or storage.read_tensors(other, identity)
    if needed <= tensors.keys():
        sizes = tuple(tensors.pop("relative_sizes").tolist())
        secants = json.loads(bytes(tensors.pop("secants").tolist()))
        inputs = [name for name in tensors if name.startswith(INPUTS)]
        weights = {name.removeprefix(INPUTS): tensors.pop(name) for name in inputs}
        changes = {name: change.weighed(weights) for name, change in changes.items()}
        return Bill(
            problem=problem,
            changes=changes,
            draws=Draws(**tensors),
            relative_sizes=sizes,
            secants=secants,
        )
    progress.note(announced(problem, changes, settings, measured, progress))
    with progress.stage("forecasts"):
        form = "moments" if getattr(settings, "against", None) else None
        bill = price(problem, changes, settings.samples, settings.seed, form=form)
    drawn_tensors = vars(bill.draws).items()
    tensors = {name: value.contiguous() for name, value in drawn_tensors if value is not None}
    tensors["relative_sizes"] = torch.tensor(bill.relative_sizes, dtype=torch.float64)
    words = json.dumps(dict(bill.secants)).encode()
    tensors["secants"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    for change in bill.changes.values():
        importance = change.edit.importance if change.edit else None
        tensors |= {f"{INPUTS}{name}": value for name, value in (importance or {}).items()}
    storage.write_tensors(path, tensors, identity)
    return bill


def announced(
    problem: Problem,
    changes: Mapping[str, Change],
    settings: Settings,
    measured: float,
    progress: Progress,
) -> str:
    """Estimate passes, minutes and bytes, from one forward pass and one change of each kind.

    Args:
        problem: model and text.
        changes: changes to price.
        settings: numbers of windows and of samples.
        measured: passes over other text, in those over `problem`'s.
        progress: knows what is spent.

    Returns:
        A sentence.
    """
    weights = {name: change for name, change in changes.items() if change.new}  # or activations
    # else gradients are kept, a few at a time
    diagonal = getattr(settings, "against", "") or all(c.format for c in weights.values())
    parameters, making, wall = problem.parameters, 0.0, time.perf_counter()
    on_cpu = (device := next(iter(parameters.values())).device.type) == "cpu"
    clock = partial(working_seconds, device)
    begin = clock()
    with problem.computing(), torch.no_grad():
        first = next(iter(make_plan(problem, twice=False, most_rows=1).passes))
        for _ in range(2):  # warm-up: the first call takes longer
            start = clock()
            problem.forward(first, parameters, twice=False)
    forward = (clock() - start) * sum(problem.batches.rows)
    kinds: dict[str, list[Change]] = {}
    for change in weights.values():
        kinds.setdefault(change.how, []).append(change)
    for several in kinds.values():
        least = min(several, key=lambda change: change.size)
        least = least.weighed({name: torch.ones(parameters[name].shape[-1]) for name in least.new})
        least.relative_size(parameters)  # warm-up: the first call takes longer
        start = clock()
        least.relative_size(parameters)
        making += (clock() - start) / least.size * sum(change.size for change in several)
    pieces = -(-settings.sequences // max(1, settings.sequences // settings.samples))
    backward = -(-settings.samples // pieces) * pieces * (1 if diagonal else 2)
    entries = sum(parameters[n].numel() for n in {n for c in weights.values() for n in c.new})
    again = 1 + 4 / max(1, len(kinds)) if diagonal else 2 + backward / HELD
    products = PRODUCT * entries * backward if diagonal else 0
    rounded = measured + growth_passes(changes.values(), pieces, problem.valid)
    times = 1 + 2 * backward / pieces + (SECANTS + measured if weights else ROUNDING * rounded)
    seconds = forward * times + making * again + products
    peak = in_units((3 if diagonal else HELD) * 4 * entries)
    held = f", and at most {peak} for gradients besides model and passes" if weights else ""
    slower = (time.perf_counter() - wall) / max(clock() - begin, 1e-9)
    waited = f" of processor time, {duration(seconds * slower)} at what this process gets now"
    return (
        f"{len(changes)} changes: {pieces} forward and {backward} backward passes over pieces of "
        f"the text, {measured:.3g} over other text for the check; about {duration(seconds)}"
        f"{waited if on_cpu else ''}{held}; {progress.in_all(seconds)}"
    )


def stored_weights(source: str, names: Sequence[str]) -> dict[str, Float[Tensor, "..."]]:
    """Read the weights of a saved model, quantised or not, as transformers computes with them."""
    loaded, _ = load_saved(source, "causal-lm")
    modules, weights = dict(loaded.named_modules()), {}
    with torch.no_grad(), without_bars():  # the first pass unpacks what is packed
        loaded(torch.zeros(1, 1, dtype=torch.int64))
        for name in names:
            module, _, attribute = name.rpartition(".")
            weight: Any = getattr(modules.get(module), attribute, None)
            if weight is None:
                raise ArgumentError(f"MODEL: {source} has no {name}; give a copy that has it.")
            weight = weight.dequantize() if hasattr(weight, "qdata") else weight
            weights[name] = weight.detach().float().cpu()
    return weights


def _summary(
    bill: Bill,
    held_out: Problem | None,
    settings: PricingSettings,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Sum prices, allocate bits, check forecasts, and write the tables."""
    sets: dict[str, tuple[str, ...]] = {}
    for change in bill.values():
        sets[f"all, {change.how}"] = (*sets.get(f"all, {change.how}", ()), change.name)
    rows = sorted(bill.to_rows(), key=lambda row: -row["forecast"])
    summary: dict[str, Any] = {"bill": rows[:SHOWN], "samples": len(bill.draws.pieces)}
    weights_alone = not (settings.cache or settings.activations)
    form = "mixture" if weights_alone and bill.draws.scales is None else "diagonal"
    summary["form"] = "moments" if settings.against else form
    if settings.allocate is not None:
        with naming("--allocate", "bits"):
            allocation = bill.allocate(bits=settings.allocate)
        allocation.save(folder / "allocation.csv")
        summary |= {"asked": settings.allocate, "bits": allocation.total.bits}
        sets["allocation"] = allocation.names
        summary["shares"] = allocation.to_rows()
    else:
        (folder / "allocation.csv").unlink(missing_ok=True)
    if not weights_alone:
        cached = "keys, values and inputs" if settings.activations else "keys and values"
        summary["what"] = cached if settings.cache else "inputs"
    if settings.cache:
        sets |= recipes(bill, sets, settings.cache)
    together = [bill.sum(names).to_rows()[0] for names in sets.values()]
    if settings.check:
        with progress.stage("check"):
            check = bill.check(settings.check, held_out)
            together = [bill.together(names, held_out).to_rows()[0] for names in sets.values()]
        check.save(folder / "check.csv")
        summary["check"] = str(check)
        drawn = check.plot()
        drawn.set_size_inches(4.2, 3.8)  # readable on a phone too
        for kind in ("svg", "png"):
            with storage.atomic_path(folder / "figures" / f"check.{kind}") as temporary:
                drawn.savefig(temporary, dpi=150)
    costs = dict(zip(sets, together, strict=True))
    if settings.cache:
        kind = "measured" if settings.check else "forecast"
        summary["sentences"] = list(cache_sentences(costs, settings.cache, kind))
        summary["heads"] = head_map(bill, settings.cache[len(settings.cache) // 2])
    named = [{**row, "name": n, "bits": bill.sum(sets[n]).bits} for n, row in costs.items()]
    summary["together"] = [{key: row.get(key) for key in TOGETHER} for row in named]
    storage.write_table(folder / "together.csv", TOGETHER, summary["together"])
    return summary
