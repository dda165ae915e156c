"""Simplify a saved model as `hessblocks simplify` does: table of removals, plan, healing, test."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from jaxtyping import Int
from torch import Tensor

from hessblocks import export, models, storage
from hessblocks.conventions import AnyPath
from hessblocks.data import Windows, documents_of, encoded, start_words, template_start
from hessblocks.errors import ArgumentError, RunError, duration
from hessblocks.escape import printable
from hessblocks.progress import Progress
from hessblocks.settings import SimplifySettings, make
from hessblocks.simplify import table
from hessblocks.simplify.change import one_pass
from hessblocks.simplify.healing import heal
from hessblocks.simplify.least_squares import OUTPUTS, RIDGES, NormalEquations
from hessblocks.simplify.passes import LARGEST, Held, Pass
from hessblocks.simplify.plan import even_plan, priced_plan
from hessblocks.simplify.speed import numbers_of, seconds_of
from hessblocks.training import claimed, resolve_device, saving

CHEAPEST = 60
"""Removals that summary.json and the page list as the cheapest."""
FREE_SETTINGS = ("save", "even", "steps", "towards", "learning_rate", "batch", "also", "to")
"""Settings that a later call in the same folder may change: no measured removal depends on them."""
OF_MODEL = ("even", "steps", "towards", "learning_rate", "batch")
"""Those that the result depends on, besides `save`."""
SPLITS = (0.8, 0.9)
"""Shares of the text at which its training and validation parts end; the rest is for the test."""
TESTED, LONGEST = 4096, 512
"""Tokens that the result is tested on, where the text has as many, and the length of a window,
where the model's context allows."""
PASSES_PER_UPDATE = 4
"""Time of an update of the healing, in forward passes: one of the model, one of the original, and
two for the backward pass."""
ADVICE = {
    "removed": ("refits", "remove less, with a smaller --save"),
    "healed": ("healing", "try a lower --learning-rate"),
}
"""Changed model → stage that made it, and what helps where its predictions are of no use."""
SOLVED = 1024
"""Inputs of the normal equations by which the time of larger ones is estimated."""
PASSES = 5
"""Time of the one pass of refits, in forward passes over its text, besides the solutions."""

OPENED = "pip install hessblocks; then import hessblocks before AutoModelForCausalLM"
"""What config.json says to whoever opens a result with layers of different sizes."""


def simplify_model(
    source: str,
    data: AnyPath,
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Callable[[Path], object] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Measure every removal, make the cheapest in one pass of refits, heal, and test the result.

    With `even` no removal is measured: equally many MLP units go in all layers, and the result is
    a model of its family. The first four fifths of the text are for training: weights are refitted
    and healed on them. The next tenth is for validation: removals are measured and chosen on it,
    and the better of the models before and after healing. The last tenth, and the text `also`, are
    for the test of the result; no choice depends on them.

    Args:
        source: folder that `save_pretrained` wrote, GGUF file, or name in the local Hugging Face
            cache.
        data: file or folder of text.
        out: run folder, `runs/simplify-MODEL` by default. It is new, or holds an earlier call with
            the same model, text, kinds and windows.
        device: cpu, cuda or auto.
        progress: shows stages and steps.
        finish: called with the folder at the end, such as to write its page.
        **given: fields of `hessblocks.settings.SimplifySettings`, such as `save=0.15, steps=200`.

    Returns:
        The content of summary.json, and the folder as `out`.

    Raises:
        ArgumentError: a setting is out of range, the model cannot be simplified, the text is too
            short, `save` is above what can be removed, or `out` holds another run.
        RunError: a file is damaged, a number is not finite, or `out` cannot be written.

    Cost:
        That of `measure_removals`, except with `even`; that of `one_pass`; and the healing. The
        folder keeps measured layers, so that the same call resumes. A call with another `save` or
        healing measures no removal again. An interrupted pass or healing starts over.
    """
    progress, settings = progress or Progress(), make(SimplifySettings, given)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        also = None if settings.also is None else documents_of(Path(settings.also))
        model, saved = models.load_saved(source, "causal-lm")
        has_blocks = isinstance(model, models.HessblocksForCausalLM)
        original: Any = model if has_blocks else models.from_pretrained_blocks(model)
        original.to(resolve_device(device))
        tokenizer = saved.tokenizer(needed=True)
        windows = text_parts(original, tokenizer, texts, settings)
        fitting, validation, test, healing = windows
        table.check_removals(original, fitting, validation)
        tests = {"the last tenth of the text": test}
        if also is not None:
            ids, name = _encoded(original, tokenizer, also), Path(str(settings.also)).name
            tests[name] = _tested(original, tokenizer, ids, settings, "--also")
        if settings.to == "gguf":
            export.header_of(source, original, tokenizer)  # refuses what cannot be written
        even = settings.even and settings.save > 0
    folder = Path(out or Path("runs", f"simplify-{saved.name.replace('/', '-')}"))
    config = {
        "command": "simplify",
        "source": source,
        "model": {"name": saved.name, "fingerprint": models.fingerprint(original)},
        "data": str(data),
        **asdict(settings),
        "kinds": list(settings.kinds or table.KINDS),
        "windows": _fingerprint(windows),
        "device": original.device.type,
    }
    run = storage.identity_of({k: v for k, v in config.items() if k not in FREE_SETTINGS})
    with claimed(folder, config, free=FREE_SETTINGS, finish=finish):
        store = storage.mended_store(folder)
        if settings.save:
            label = _label(settings)
            _earlier(folder, run, store, settings.to, label)
        stored = models.stored_words(original.config)
        for word in filter(None, (stored, start_words(tokenizer, settings.bare))):
            progress.note(word)
        told, seconds = _cost(original, fitting, validation, settings, store)
        progress.note(f"{told}; {progress.in_all(seconds)}")
        removals = table.Removals(rows=())
        if not even:
            with progress.stage("removals", total=original.config.depth):
                removals = table.measure_removals(
                    original,
                    fitting,
                    validation,
                    kinds=settings.kinds,
                    store=store,
                    done=lambda done, _: progress.step(done, None),
                )
            removals.save(folder / "removals.csv")
        summary = _summary(saved.name, original, removals)
        if settings.save:
            begun = time.process_time()
            with progress.stage("refits"):
                planned = even_plan if even else partial(priced_plan, rows=removals.rows)
                plan = planned(original, save=settings.save)
                removed = one_pass(original, Pass(original, fitting), plan.changes)
            seconds = time.process_time() - begun
            pair: dict[str, Any] = {"removed": removed}
            costs = _on_text(original, pair, validation)  # before healing, which needs numbers
            if settings.steps:
                with progress.stage("healing"):
                    pair["healed"] = heal(
                        removed,
                        original if settings.towards == "logits" else None,
                        healing,
                        steps=settings.steps,
                        learning_rate=settings.learning_rate,
                        batch=settings.batch,
                        seed=settings.seed,
                    )
                    costs |= _on_text(original, {"healed": pair["healed"]}, validation)
            with progress.stage("test"):
                lowered = {"logits": "kl", "text": "perplexity"}[settings.towards]
                kept = min(sorted(pair), key=lambda name: costs[name][lowered])
                summary |= {
                    "asked": settings.save,
                    "even": even,
                    "step": table.unit_step(original.config.blocks[0].resolved_mlp_width) * even,
                    "layers": plan.to_rows(),
                    "forecast": plan.forecast,
                    "seconds": seconds,
                    "kept": kept,
                }
                summary |= _tested_result(original, pair, tests, settings)
            command = _command(saved.name, Path(data).name, settings)
            for old, new in _earlier(folder, run, store, settings.to, label).items():
                old.rename(new)
                progress.note(f"{old.name} of other settings is now {new}")
            seal = {"run": run, "label": label}
            _save(pair[kept], folder / "model", seal, saved, command, tokenizer, summary)
            if settings.to == "gguf":
                with storage.atomic_path(folder / "model.gguf") as temporary:
                    export.to_gguf(pair[kept], temporary, source if saved.gguf else tokenizer)
                    if store.get(key := _key_of(temporary)) is None:
                        store.add(key, [{"label": label}])
        storage.write_json(folder / "summary.json", storage.finite(summary))
    return {**summary, "out": str(folder)}


def text_parts(
    model: Any, tokenizer: Any, texts: Sequence[Any], settings: SimplifySettings
) -> tuple[Int[Tensor, "_ tokens"], ...]:
    """Split a text into training, validation and test parts, and draw windows of tokens from each.

    Args:
        model: model that reads the windows; they are moved to its device.
        tokenizer: tokenizer of the model.
        texts: documents, as `hessblocks.data.documents_of` reads them.
        settings: numbers and length of the windows, and the seed.

    Returns:
        Token ids of four sets of windows. Weights are fitted on the first, which are some of the
        training part. Removals are chosen on the second, of the validation part. The result is
        tested on the third. The model is healed on the fourth, all windows of the training part.

    Raises:
        ArgumentError: tokens exceed the vocabulary of the model, the windows are longer than the
            context, or the text has too few windows.
    """
    limit = models.context_of(model)
    if limit is not None and settings.tokens > limit:
        raise ArgumentError(f"--tokens: {settings.tokens} are longer than the context of {limit}.")
    ids = _encoded(model, tokenizer, texts)
    first = template_start(tokenizer, settings.bare)
    ends = [int(share * len(ids)) for share in SPLITS]
    parts = (ids[: ends[0]], ids[ends[0] : ends[1]])
    training, validation = (Windows(part, settings.tokens, first) for part in parts)
    seed = settings.seed
    windows = [
        training.drawn(settings.fitted, seed, "--fitted", "the first four fifths of the text"),
        validation.drawn(settings.sequences, seed, "--sequences", "a tenth of the text"),
        _tested(model, tokenizer, ids[ends[1] :], settings),
        training.drawn(len(training), seed),
    ]
    return tuple(tokens.to(model.device) for tokens in windows)


def _encoded(model: Any, tokenizer: Any, texts: Sequence[Any]) -> Any:
    ids = encoded(tokenizer, texts)
    if len(ids) and ids.max() >= model.config.vocab_size:
        raise ArgumentError(
            "MODEL: its tokenizer gives ids that the model lacks; save the right one."
        )
    return ids


def _tested(
    model: Any, tokenizer: Any, ids: Any, settings: SimplifySettings, option: str = "--data"
) -> Int[Tensor, "_ tokens"]:
    """Draw windows for the test: long ones, but at least as many as an error needs."""
    limit = models.context_of(model) or LONGEST
    length = max(2, min(LONGEST, limit, len(ids) // table.FEWEST_SEQUENCES))
    windows = Windows(ids, length, template_start(tokenizer, settings.bare))
    count = max(table.FEWEST_SEQUENCES, min(len(windows), -(-TESTED // length)))
    return windows.drawn(count, settings.seed, option, "the text of the test").to(model.device)


def _cost(
    original: models.HessblocksForCausalLM,
    fitting: Tensor,
    validation: Tensor,
    settings: SimplifySettings,
    store: storage.Store,
) -> tuple[str, float]:
    """Estimate the time of all parts: from two passes, all layers and the last, and a solution."""
    layers = list(original.model.layers)
    left = sum(store.get(f"layer {number}") is None for number in range(len(layers)))
    even = settings.even and settings.save > 0
    if not (left or settings.save):
        return "every removal is measured already", 0.0
    held_out = Held(original, validation)
    held_out.cost(layers, 0)  # the first pass is slower
    all_layers, last_layer = (
        seconds_of(partial(held_out.cost, layers[n:], n), original.device)
        for n in (0, len(layers) - 1)
    )
    count = 0 if even else left * len({*settings.kinds} or table.KINDS)
    parts = {}
    if not even:
        parts[f"{count} removals at most, besides refits"] = count * (all_layers + last_layer) / 2
    if settings.save:
        passes = PASSES * all_layers * fitting.numel() / validation.numel()
        parts["one pass of refits"] = passes + _solution_seconds(original, fitting.numel())
        ratio = settings.steps * settings.batch * settings.tokens / validation.numel()
        parts["healing"] = ratio * all_layers * PASSES_PER_UPDATE
    clauses = (f"{words}: {duration(seconds)}" for words, seconds in parts.items())
    unit = " (processor time on a CPU)" * (original.device.type == "cpu")
    return "; ".join(clauses) + unit, sum(parts.values())


def _solution_seconds(original: models.HessblocksForCausalLM, tokens: int) -> float:
    """Estimate the time of the MLPs' normal equations and solutions, the largest, from smaller."""
    inputs = max(block.resolved_mlp_width for block in original.config.blocks)
    few, wide = min(inputs, SOLVED), original.config.hidden_size
    device, times = original.device, inputs / few
    x, y = torch.eye(few, device=device), torch.ones(few, wide, device=device)
    sums = seconds_of(partial(NormalEquations.of, x, y), device) * tokens / few * times**2
    equations = NormalEquations.of(x, y[:, :OUTPUTS])
    solution = seconds_of(partial(equations.solve, y[:, :OUTPUTS], ridge=1.0), device) * times**3
    return original.config.depth * (sums + (2 * len(RIDGES) + 1) * solution)


def _fingerprint(windows: Sequence[Tensor]) -> str:
    content = b"".join(tokens.cpu().numpy().tobytes() for tokens in windows)
    return hashlib.sha256(content).hexdigest()


def _tested_result(
    original: models.HessblocksForCausalLM,
    pair: Mapping[str, Any],
    tests: Mapping[str, Tensor],
    settings: SimplifySettings,
) -> dict[str, Any]:
    """Measure the result on texts by which nothing was chosen, its size and its speed."""
    texts = [{"text": name, **_on_text(original, pair, tokens)} for name, tokens in tests.items()]
    both = original, pair["removed"]  # healing changes no size
    before, after = numbers_of(both, next(iter(tests.values())), settings.tokens)
    shares = ("layer_parameters", "operations", "cache")
    return {
        "texts": texts,
        "updates": settings.steps,
        "before": before,
        "after": after,
        "saved": 1 - after["parameters"] / before["parameters"],
        **{name: 1 - after[name] / before[name] for name in shares},
    }


def _on_text(
    original: models.HessblocksForCausalLM, changed: Mapping[str, Any], tokens: Tensor
) -> dict[str, Any]:
    held_out = Held(original, tokens)
    measured: dict[str, Any] = {
        "tokens": tokens.numel(),
        "window": tokens.shape[1],
        "perplexity": math.exp(held_out.before.value),
    }
    for name, model in changed.items():
        cost = held_out.cost(list(model.model.layers), 0)
        loss = held_out.before.value + cost.loss.value
        if not (math.isfinite(cost.kl.value) and loss < LARGEST):
            stage, advice = ADVICE[name]
            raise RunError(
                f"{stage}: the model has a KL divergence of {cost.kl.value:.3g} nats per token; "
                f"{advice}"
            )
        measured[name] = {
            "kl": cost.kl.value,
            "kl_error": cost.kl.standard_error,
            "perplexity": math.exp(loss),
        }
    return measured


def _command(source: str, data: str, settings: SimplifySettings) -> str:
    """Write the command with all options that differ from their defaults, without folders."""
    words, plain = ["hessblocks", "simplify", source, "--data", data], asdict(SimplifySettings())
    for name, value in asdict(settings).items():
        if value != plain[name] or name == "save":
            text = Path(value).name if name == "also" else value
            text = ",".join(value) if isinstance(value, tuple) else str(text)
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join(words)


def _label(settings: SimplifySettings) -> str:
    """Name the settings that the result depends on: `save`, and others that are not the default."""
    words, plain = [str(settings.save)], SimplifySettings()
    for name in OF_MODEL:
        if (value := getattr(settings, name)) != getattr(plain, name):
            words += [name, *([] if value is True else [str(value)])]
    return "-".join(words)


def _is_label(name: Any) -> bool:
    """Tell whether a name from a file may stand in a path."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) is not None


def _earlier(folder: Path, run: str, store: storage.Store, to: str, label: str) -> dict[Path, Path]:
    """Map results of this run with other settings to the paths that they are renamed to."""
    model, file, fault = folder / "model", folder / "model.gguf", ""
    labels = dict[Path, Any]()
    if os.path.lexists(model) and not (fault := storage.check_manifest(model, name=model.name)):
        seal = storage.remembered_in(model)
        fault = "" if seal.get("run") == run else "is of another run"
        labels[model] = seal.get("label")
    if not fault and os.path.lexists(file):
        if file.is_file() and (record := store.get(_key_of(file))):
            labels[file] = record.rows[0].get("label") if record.rows else None
        elif to == "gguf":
            model, fault = file, "was not written by this run, or has changed since"
    paths = {
        path: path.with_name(f"model-{name if _is_label(name) else 'earlier'}{path.suffix}")
        for path, name in labels.items()
        if name != label
    }
    if taken := [path for path in paths.values() if os.path.lexists(path)]:
        fault = fault or f"its name as an earlier result, {taken[0].name}, is taken"
    if fault:
        raise ArgumentError(
            f"--out: {model} would be replaced, but {fault}; move it away, or choose another "
            "folder."
        )
    return paths


def _key_of(file: Path) -> str:
    """Make the key by which the store tells that this run wrote a GGUF file."""
    return f"model.gguf {storage.sha256(file)}"


def _save(
    model: Any,
    folder: Path,
    seal: dict[str, Any],
    saved: Any,
    command: str,
    tokenizer: Any,
    summary: Mapping[str, Any],
) -> None:
    """Save a model, as one of its family where that can hold it, with tokenizer and card."""
    about = {"base_model": saved.name, "license": saved.licence}
    test, kept = summary["texts"][0], summary["texts"][0][summary["kept"]]
    kind = (model.config.family or {}).get("model_type", "model")
    facts = {
        "made from": f"a pretrained {kind}, {about['base_model']}",
        "made by": command,
        "parameters saved": f"{summary['saved']:.1%}",
        "KL divergence from it, nats per token": f"{kept['kl']:.3g}",
        "perplexity": f"{kept['perplexity']:.4g}, before {test['perplexity']:.4g}",
        "removed": "; ".join(f"layer {row['layer']}: {row['gone']}" for row in summary["layers"]),
        **({"weights it was made from": summary["stored"]} if summary["stored"] else {}),
        "opened by": f"transformers, as any {kind}",
        "licence": about["license"] or "that of the model it was made from, whose files name none",
    }
    try:
        family = models.to_family(model)
    except ArgumentError:  # layers of different sizes
        family = None
        model.config.opened_by = facts["opened by"] = OPENED
    with saving(folder) as temporary:
        (family or model).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        _write_card(temporary, kind, facts, **about)
        storage.write_manifest(temporary, storage.identity_in(folder.parent), folder.name, seal)


def _summary(name: str, model: Any, removals: table.Removals) -> dict[str, Any]:
    rows = removals.to_rows()
    saving = [row for row in rows if row["nats_per_percent"] is not None]
    return {
        "command": "simplify",
        "model": name,
        "depth": model.config.depth,
        "parameters": sum(p.numel() for p in model.parameters()),
        "removals": rows,
        "cheapest": sorted(saving, key=lambda row: row["nats_per_percent"])[:CHEAPEST],
        "said": str(removals),
        "stored": models.stored_words(model.config),
    }


def _write_card(folder: Path, kind: str, facts: Mapping[str, Any], **about: Any) -> None:
    """Write the card, with facts as a table; `about` are the Hub's metadata, None if unknown."""
    about |= {"pipeline_tag": "text-generation", "tags": [kind, "hessblocks"]}
    rows = "\n".join(f"| {_shown(name)} | {_shown(value)} |" for name, value in facts.items())
    data = ModelCardData(**about).to_yaml().strip()
    text = f"---\n{data}\n---\n\n# A {kind} with fewer parameters\n\n"
    storage.write_text(folder / storage.CARD, f"{text}| | |\n| --- | --- |\n{rows}\n")


def _shown(value: Any) -> str:
    """Format a value for Markdown, on one line, with all markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&$@:])", r"\\\1", printable(str(value)))
