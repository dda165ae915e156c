"""Quantise a saved model into a file of a given size, as `hessblocks quantise` does."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks import export, storage
from hessblocks.bill import Allocation, Bill, Change, allocate, change_each, in_format
from hessblocks.conventions import AnyPath
from hessblocks.curvature import Problem, plain_model
from hessblocks.data import documents_of
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks.inspection import pricing
from hessblocks.inspection.measure import Finish, _fingerprint, placed
from hessblocks.inspection.subject import Subject, other_tokens
from hessblocks.models import load_saved
from hessblocks.progress import Progress
from hessblocks.settings import BUDGETS, SIZES, WRITTEN, QuantisingSettings, make
from hessblocks.statistics import mean_and_error
from hessblocks.tensor_formats import KINDS, MIXES, as_rows, formats, library, mix
from hessblocks.training import claimed, resolve_device

FORMATS = {**SIZES, "gguf": tuple(f"gguf:{kind}" for kind in KINDS)}
"""Target → the formats that are priced for it."""
NAMED = 700
"""Bytes for each tensor in the header of a safetensors file, at most."""
FRONT = 16
"""Number of sizes of the curve of forecasts."""
FILES = ("name", "bytes", "bits", "forecast", "forecast_error", "measured", "measured_error")
"""Columns of files.csv."""


def measure_quantise(
    source: str,
    data: AnyPath,
    file: AnyPath,
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Finish | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Price each weight in each format, allocate bytes, write the file, read it back, measure it.

    Args:
        source: a folder that `save_pretrained` wrote, a GGUF file, or a name in the local Hugging
            Face cache.
        data: file or folder of text.
        file: GGUF file or folder to write.
        out: run folder, new or of the same call, except that the size may differ; by default
            runs/quantise-MODEL-SIZE.
        device: cpu, cuda or auto.
        progress: shows the estimated cost first, then stages.
        finish: called with the folder at the end.
        **options: fields of `hessblocks.settings.QuantisingSettings`, such as `size_of="IQ4_NL"`.

    Returns:
        The content of summary.json, and the folder as `out`.

    Raises:
        ArgumentError: settings, model or text do not fit, the size is out of reach, `file` exists,
            or `out` contains another run.
        RunError: a file is damaged or cannot be written, or what was written differs from what was
            priced.

    Cost:
        One forward and one backward pass over the text, packing of each weight in each format, and
        a forward pass over other text for each file. Samples are stored, so that another size
        costs the last alone, in the same folder or in that by default.
    """
    progress, settings = progress or Progress(), make(QuantisingSettings, options)
    device, file = resolve_device(device), Path(file)
    settings.check_file(file, out)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        model, saved = load_saved(source, "causal-lm")
        tokenizer = saved.tokenizer(needed=True)
        subject = Subject(name=saved.name, model=placed(device, model), tokenizer=tokenizer)
        text, held_out = pricing.drawn_batches(subject, texts, settings, settings.check)
        target = _Target.of(settings, subject.model, source, tokenizer)
        if settings.original:
            _check_tokens(settings.original, subject, settings.tokens)
    told = pricing.note_history(settings, model.config, tokenizer, progress, target.replacements())
    stem = f"quantise-{subject.name.replace('/', '-')}"
    folder = Path(out or Path("runs", f"{stem}-{settings.label}"))
    others = [] if out else sorted(folder.parent.glob(f"{glob.escape(stem)}*"))
    config = {
        "command": "quantise",
        "source": source,
        "model": {"name": subject.name, **subject.digests()},
        "data": {"name": str(data), "fingerprint": _fingerprint({**text, "other": held_out})},
        "formats": list(FORMATS[settings.to]),
        **asdict(settings),
        "file": str(file),
        "device": device,
    }
    free = [*BUDGETS, "file", "original"]
    drawn = {name: value for name, value in config.items() if name not in free}
    problem = pricing.in_pieces(subject.model, text["input_ids"], settings.samples)
    if file.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise ArgumentError(
            f"--out: {folder} lies in FILE, which is replaced; give another folder."
        )
    settings.check_file(file, folder)
    again = file.exists() and not settings.original
    before = pricing.finished(folder, config, free) if again else {}
    with claimed(folder, config, free=free, finish=finish):
        if before:
            return {**before, "out": str(folder)}
        (folder / "summary.json").unlink(missing_ok=True)  # of another file
        files = 2 if settings.size_of else 3  # this one, and the mixes beside it
        passes = files * 2 * settings.check / settings.sequences  # before and after, for each
        bill = pricing.stored_bill(
            problem, target.changes, settings, [folder, *others], drawn, progress, passes
        )
        chosen = target.allocate(bill)
        _set_page_aside(folder, file, progress)
        with progress.stage("file"):
            packed = chosen.packed()
            chosen.write(file, packed, source=source, tokenizer=tokenizer)
            stored = _read_back(file, chosen, packed, target)
            storage.write_json(folder / WRITTEN, settings.written(file))
            del packed
        other = pricing.in_pieces(subject.model, held_out)
        with progress.stage("measurement"):
            measured = bill.together(chosen.names, other, stored).to_rows()[0]
            apart = _apart_from(settings.original, subject, stored, held_out)
        del stored  # a copy of the model
        summary: dict[str, Any] = {"command": "quantise", "model": subject.name, "file": str(file)}
        summary |= {"told": told, "original": apart}
        summary |= _summary(bill, chosen, measured, target, other, file, folder, progress)
        storage.write_json(folder / "summary.json", storage.finite(summary))
    return {**summary, "out": str(folder)}


def _check_tokens(original: str, subject: Subject, tokens: int) -> None:
    """Refuse an original that does not read the same text, before anything is computed."""
    with pricing.naming("--original"):
        model, saved = load_saved(original, "causal-lm")
        first = Subject(name=saved.name, model=model, tokenizer=saved.tokenizer(needed=True))
    first.check_window(tokens)
    differing = other_tokens((subject.tokenizer, first.tokenizer))
    if differing or first.vocabulary != subject.vocabulary:
        raise ArgumentError(
            f"--original: {original} has another {[*differing, 'size of the vocabulary'][0]} than "
            f"{subject.name}; give the model that it was made from."
        )


def _apart_from(
    original: str | None,
    subject: Subject,
    stored: Mapping[str, Float[Tensor, "..."]],
    windows: Int[Tensor, "windows tokens"],
) -> dict[str, Any]:
    """Measure the KL divergence from the original: to the model, and to the file."""
    if original is None:
        return {}
    with pricing.naming("--original"):
        first, saved = load_saved(original, "causal-lm")
    model, rows = plain_model(subject.model), []
    device = next(model.parameters()).device
    placed(device.type, first)
    windows = windows.to(device)
    with torch.no_grad():
        for window in windows.split(1):
            before = first(input_ids=window).logits[:, :-1].double().log_softmax(-1)
            row = []
            for weights in ({}, {n: w.to(device) for n, w in stored.items()}):
                outputs = torch.func.functional_call(model, weights, (), {"input_ids": window})
                after = outputs.logits[:, :-1].double().log_softmax(-1)
                row.append(float((before.exp() * (before - after)).sum(-1).mean()))
            rows.append(row)
    model_kl, file_kl = (mean_and_error(column) for column in zip(*rows, strict=True))
    keys = ("model", "model_error", "measured", "measured_error")
    return {"name": saved.name, **dict(zip(keys, (*model_kl, *file_kl), strict=True))}


def _set_page_aside(folder: Path, file: Path, progress: Progress) -> None:
    """Rename the page of another file in the same folder after that file."""
    page, note = folder / "report.html", folder / WRITTEN
    known = page.is_file() and note.is_file()
    name = str(storage.read_object(note).get("file", file) if known else file)
    if Path(name).resolve() != file.resolve():
        stem, number = f"report-{Path(name).name}", 1
        place = folder / f"{stem}.html"
        while place.exists():
            number += 1
            place = folder / f"{stem}-{number}.html"
        page = page.rename(place)
        progress.note(f"the page of {name} is now {page}")


def _size(file: Path) -> int:
    """Count the bytes of a file, or of the weights of a folder; 0 if there is none."""
    file = file / "model.safetensors" if file.is_dir() else file
    return file.stat().st_size if file.is_file() else 0


def _changes(model: Any, to: str) -> dict[str, Change]:
    """Make the changes that the target can store; folders keep embedding and head in 16 bits."""
    shapes = [p.shape for p in model.parameters() if p.ndim > 1]
    fitting = [form for name in FORMATS[to] if any(map((form := formats()[name]).fits, shapes))]
    if {form.name for form in fitting} <= {"bf16"}:
        widths = sorted({shape[-1] for shape in shapes})
        raise ArgumentError(f"--to {to}: none of its formats fits rows of {widths} entries.")
    changes = change_each(model, *map(in_format, fitting))
    if to == "gguf":
        return changes
    stacked = [name for name, p in model.named_parameters() if p.ndim > 2]
    export.check_linear(model, stacked, f"--to {to}")
    ends = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    end_names = {name for name, p in model.named_parameters() if any(p is end for end in ends)}
    return {n: c for n, c in changes.items() if c.how == "bf16" or not end_names & {*c.new}}


@dataclass(frozen=True)
class _Target:
    """What is written, and how large it may be."""

    settings: QuantisingSettings
    model: Any
    changes: Mapping[str, Change]
    tensors: Mapping[str, tuple[str, Any]]
    """Parameter → name of its tensor in a GGUF file, and order of rows."""
    header: int
    """Bytes of the file besides its tensors, at most."""

    @classmethod
    def of(cls, settings: QuantisingSettings, model: Any, source: str, tokenizer: Any) -> Self:
        """Find changes, names and header, or refuse what cannot be written."""
        axes = {name: parameter.ndim for name, parameter in model.named_parameters()}
        changes = _changes(model, settings.to)
        if settings.to == "compressed-tensors":
            library("compressed_tensors", f"--to {settings.to}")
        if settings.to != "gguf":
            return cls(settings, model, changes, {}, NAMED * len(axes))
        header = export.header_of(source, model, tokenizer)
        tensors = export.gguf_tensors(model, header.architecture)
        axes_of = {tensors[name][0]: count for name, count in axes.items()}
        others = export.other_tensors(source, axes_of)
        size = header.bytes(axes_of | {name: rows.ndim for name, (rows, _) in others.items()})
        size += sum(rows.nbytes for rows, _ in others.values())
        return cls(settings, model, changes, tensors, size)

    @cached_property
    def mixes(self) -> dict[str, list[str]]:
        """Standard mix of the runtime → names of its changes."""
        places = {change.place: change for change in self.changes.values()}
        if self.settings.to == "gguf":
            parameters = {self.tensors[parameter][0]: parameter for parameter in places}
            every = {
                name: [f"{parameters[n]}, {kind}" for n, kind in mix(name, self._shapes).items()]
                for name in MIXES
            }
            return {n: names for n, names in every.items() if {*names} <= {*self.changes}}
        mixes = {}
        for how in FORMATS[self.settings.to]:
            names = {parameter: f"{parameter}, {how}" for parameter in places}
            mixes[how] = [n if n in self.changes else f"{p}, bf16" for p, n in names.items()]
        return mixes

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of a tensor in a GGUF file → shape."""
        views = {change.place: change.views[0] for change in self.changes.values()}
        return {self.tensors[parameter][0]: view.shape for parameter, view in views.items()}

    def replacements(self) -> list[str]:
        """Say which types replace those of the mix for rows that they do not fit."""
        if not self.tensors or (name := self.settings.size_of) is None:
            return []
        types = mix(name, self._shapes)
        rules = mix(name, {n: (shape[0], 256) for n, shape in self._shapes.items()})  # all fit
        pairs = Counter(f"{types[n]}, not {rule}" for n, rule in rules.items() if types[n] != rule)
        words = "; ".join(f"{count} in {pair}" for pair, count in pairs.items())
        words = f"{name} has tensors whose rows are no multiple of 256; as in llama.cpp, {words}"
        return [words.replace("gguf:", "")] if pairs else []

    def allocate(self, bill: Bill) -> Allocation:
        """Choose formats for the size that was asked, or refuse one that is out of reach."""
        settings = self.settings
        if settings.nats is not None:
            return bill.allocate(nats=settings.nats)
        if settings.size_of is not None:
            check_name("--size-of", settings.size_of, self.mixes)
            return bill.allocate(bytes=bill.chosen(self.mixes[settings.size_of]).bytes)
        weights = sum(p.numel() for p in self.model.parameters())
        limit = settings.budget() or (settings.bits or 0) * weights / 8
        sizes = [size + self.header for size in _sizes(bill)]
        if not sizes[0] <= limit <= sizes[1]:
            word = "--bytes" if settings.bytes else "--bits"
            low, high = (f"{size / 1e6:.4g}M" for size in sizes)
            bits = " to ".join(f"{8 * size / weights:.3g}" for size in sizes)
            raise ArgumentError(
                f"{word}: expected {low} to {high} ({bits} bits a weight), the least and the most "
                f"in these formats, got {limit / 1e6:.4g}M."
            )
        return bill.allocate(bytes=limit - self.header)


def _read_back(
    file: Path, chosen: Allocation, packed: Mapping[str, Any], target: _Target
) -> Mapping[str, Float[Tensor, "..."]]:
    """Read the weights of a file, and refuse one that is not what was packed, bit by bit."""
    plain = plain_model(chosen.model)
    if target.tensors:
        stored = export.read_gguf(file, target.tensors)
    else:
        stored = pricing.stored_weights(str(file), [name for name, _ in plain.named_parameters()])
    for name, parameter in plain.named_parameters():
        expected = parameter.detach().float().cpu()
        if name in packed:
            unpack, rows = chosen.formats[name][0].unpack, as_rows(parameter)
            expected = unpack(packed[name], rows.shape).view(parameter.shape)
        if not torch.equal(stored[name], expected):
            raise RunError(f"{file}: {name} reads back differently than priced; delete the file")
    return stored


def _summary(
    bill: Bill,
    chosen: Allocation,
    measured: Mapping[str, Any],
    target: _Target,
    held_out: Problem,
    file: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Measure the file and its neighbours, and write the tables."""
    sizes = {name: bill.chosen(names).bytes for name, names in target.mixes.items()}
    order = sorted(sizes, key=sizes.__getitem__)
    below = [name for name in order if sizes[name] <= chosen.bytes][-1:]
    above = [name for name in order if sizes[name] > chosen.bytes][:1]
    size_of = target.settings.size_of
    beside = [size_of] if size_of else [*below, *above]
    rows = []
    with progress.stage("measurement"):
        for name, names in {"this file": chosen.names, **target.mixes}.items():
            mixed = bill.chosen(names)
            row = measured if name == "this file" else bill.sum(names).to_rows()[0]
            if name in beside:
                row = bill.together(names, held_out).to_rows()[0]
            about = {"name": name, "bytes": mixed.bytes, "bits": mixed.bits}
            rows.append({key: {**row, **about}.get(key) for key in FILES})
    storage.write_table(folder / "files.csv", FILES, rows)
    bill.save(folder / "bill.csv")
    chosen.save(folder / "allocation.csv")
    if target.settings.to == "gguf":
        kinds = {n: form.name.removeprefix("gguf:") for n, (form, _) in chosen.formats.items()}
        lines = (  # the first pattern that is found in a name counts: output is in attn_output
            f"^{re.escape(tensor)}$={kinds.get(name, 'F32').lower()}\n"
            for name, (tensor, _) in target.tensors.items()
            if target.model.get_parameter(name).ndim > 1
        )
        storage.write_text(folder / "types.txt", "".join(lines))
    summary: dict[str, Any] = {}
    if any(len(change.new) > 1 for change in chosen.changes):
        summary["siblings"] = chosen.total.forecast.value - _apart(bill, chosen.bytes)
    table = target.model.get_input_embeddings().weight
    tables = [name for name, p in target.model.named_parameters() if p is table]
    return summary | {
        "to": target.settings.to,
        "size": _size(file),
        "asked": target.settings.asked,
        "files": rows,
        "counts": Counter(price.how for price in chosen.choices),
        "table": next((form.name for n, (form, _) in chosen.formats.items() if n in tables), ""),
        "front": _front(bill),
        "samples": len(bill.draws.pieces),
        "shares": chosen.to_rows(),
    }


def _apart(bill: Bill, bytes: float) -> float:
    """Forecast the cost of an allocation with a format for each weight that is fused."""
    draws, prices = bill.draws, []
    assert draws.scales is not None
    columns = list(dict.fromkeys(name for change in bill.changes.values() for name in change.new))
    costs = draws.scales * draws.by_piece(draws.squares).sum(0) / 2
    for row, price, change in zip(costs, bill.values(), bill.changes.values(), strict=True):
        assert change.format is not None
        for view in change.views:
            forecast = replace(price.forecast, value=float(row[columns.index(view.parameter)]))
            alone = replace(price, place=view.parameter, size=view.size, forecast=forecast)
            prices.append(replace(alone, bytes=change.format.bytes(view.shape)))
    chosen = allocate(prices, bytes=bytes - bill.untouched(prices))
    return sum(price.forecast.value for price in chosen)


def _front(bill: Bill) -> list[dict[str, float]]:
    """Forecast the cost of allocations from the least to the largest size."""
    sizes = np.geomspace(*_sizes(bill), FRONT)
    allocations = []
    for size in sizes:
        with suppress(ArgumentError):  # what no sampled gradient reaches gets its most bytes
            allocations.append(bill.allocate(bytes=float(size) + 1))
    return [{"bytes": a.bytes, "forecast": a.total.forecast.value} for a in allocations]


def _sizes(bill: Bill) -> tuple[int, int]:
    """Count the bytes of all tensors in their smallest and in their largest formats."""
    sizes: dict[str, list[float]] = {}
    for price in bill.values():
        sizes.setdefault(price.place, []).append(price.bytes or 0)
    rest = bill.untouched(bill.values())
    least, largest = (sum(map(end, sizes.values())) for end in (min, max))
    return round(least) + rest, round(largest) + rest
