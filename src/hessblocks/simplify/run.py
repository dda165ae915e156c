"""Simplify a saved model as `hessblocks simplify` does: table of removals, plan, healing, test."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Int
from safetensors import SafetensorError
from torch import Tensor

from hessblocks import models, storage
from hessblocks.conventions import AnyPath
from hessblocks.data import Windows, documents_of, encoded, start_words, template_start
from hessblocks.errors import ArgumentError, RunError, duration
from hessblocks.progress import Progress
from hessblocks.quiet import quiet
from hessblocks.settings import SimplifySettings, make
from hessblocks.simplify.healing import heal
from hessblocks.simplify.kinds import KINDS
from hessblocks.simplify.passes import Held
from hessblocks.simplify.place import saved_between
from hessblocks.simplify.plan import Plan
from hessblocks.simplify.table import Removals, check_kinds, check_removals, measure_removals
from hessblocks.training import claimed, resolve_device

CHEAPEST = 60
"""Removals that summary.json and the page list as the cheapest."""
FREE_SETTINGS = ("save", "steps", "towards", "learning_rate", "batch")
"""Settings that a later call in the same folder may change: no measured removal depends on them."""
SPLITS = (0.8, 0.9)
"""Shares of the text at which its training and validation parts end; the rest is for the test."""
PASSES_PER_UPDATE = 4
"""Time of an update of the healing, in forward passes: one of the model, one of the original, and
two for the backward pass."""


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
    """Measure every removal, make the cheapest until enough is saved, heal, and test the result.

    The first four fifths of the text are for training: weights are refitted and healed on them. The
    next tenth is for validation: removals are measured and chosen on it. The last tenth is for the
    test of the result, and no choice depends on it.

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
        That of `measure_removals`, further measurements for each step of the plan, and the healing.
        The folder keeps measured layers and the steps of the plan, so that the same call resumes. A
        call with another `save` or healing measures no removal again. An interrupted
        healing starts over.
    """
    progress, settings = progress or Progress(), make(SimplifySettings, given)
    check_kinds(settings.kinds)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        model, saved = models.load_saved(source, "causal-lm")
        has_blocks = isinstance(model, models.HessblocksForCausalLM)
        original: Any = model if has_blocks else models.from_pretrained_blocks(model)
        original.to(resolve_device(device))
        tokenizer = saved.tokenizer(needed=True)
        windows = text_parts(original, tokenizer, texts, settings)
        fitting, validation, test, healing = windows
        check_removals(original, fitting, validation)
    folder = Path(out or Path("runs", f"simplify-{saved.name.replace('/', '-')}"))
    config = {
        "command": "simplify",
        "source": source,
        "model": {"name": saved.name, "fingerprint": models.fingerprint(original)},
        "data": str(data),
        **asdict(settings),
        "kinds": list(settings.kinds or KINDS),
        "windows": _fingerprint(windows),
        "device": original.device.type,
    }
    with claimed(folder, config, free=FREE_SETTINGS):
        store = storage.mended_store(folder)
        first = [] if settings.bare else template_start(tokenizer)
        words = models.stored_words(original.config), start_words(tokenizer, first)
        for word in filter(None, words):
            progress.note(word)
        progress.note(_cost(original, validation, settings, store))
        with progress.stage("removals", total=original.config.depth):
            table = measure_removals(
                original,
                fitting,
                validation,
                kinds=settings.kinds,
                store=store,
                done=lambda done, _: progress.step(done, None),
            )
        table.save(folder / "removals.csv")
        summary = _summary(saved.name, original, table)
        if settings.save:
            with progress.stage("plan"):
                plan = Plan(original, fitting, validation, table.rows)
                plan.run(settings.save, store)
            with progress.stage("healing"):
                summary |= _healed(plan, original, test, healing, settings, folder, tokenizer)
        storage.write_json(folder / "summary.json", summary)
        if finish:
            finish(folder)
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
        ArgumentError: there is no tokenizer, its tokens exceed the vocabulary of the model, the
            windows are longer than the context, or the text has too few windows.
    """
    if tokenizer is None:
        raise ArgumentError("MODEL: no tokenizer beside it; save the tokenizer into its folder.")
    limit = models.context_of(model)
    if limit is not None and settings.tokens > limit:
        raise ArgumentError(f"--tokens: {settings.tokens} are longer than the context of {limit}.")
    ids = encoded(tokenizer, texts)
    if len(ids) and ids.max() >= model.config.vocab_size:
        raise ArgumentError("MODEL: its tokenizer gives tokens beyond the vocabulary of the model.")
    first = [] if settings.bare else template_start(tokenizer)
    ends = [int(share * len(ids)) for share in SPLITS]
    parts = (ids[: ends[0]], ids[ends[0] : ends[1]], ids[ends[1] :])
    training, *held_out = (Windows(part, settings.tokens, first) for part in parts)
    seed, count = settings.seed, settings.sequences
    windows = [
        training.drawn(settings.fitted, seed, "--fitted", "the first four fifths of the text"),
        *(part.drawn(count, seed, "--sequences", "a tenth of the text") for part in held_out),
        training.drawn(len(training), seed),
    ]
    return tuple(tokens.to(model.device) for tokens in windows)


def _cost(
    model: models.HessblocksForCausalLM,
    validation: Tensor,
    settings: SimplifySettings,
    store: storage.Store,
) -> str:
    """Estimate the time of measurements and healing from two passes: all layers, and the last."""
    layers = list(model.model.layers)
    left = sum(store.get(f"layer {number}") is None for number in range(len(layers)))
    if not (left or settings.save):
        return "every removal is measured already"
    held_out = Held(model, validation)
    held_out.cost(layers, 0)  # the first pass is slower
    whole, last = (_seconds(partial(held_out.cost, layers[n:], n)) for n in (0, len(layers) - 1))
    count = left * len({*settings.kinds} or KINDS)
    table = duration(count * (whole + last) / 2)
    clauses = [f"{count} removals at most: {table}, besides refits"]
    if settings.save:
        ratio = settings.steps * settings.batch * settings.tokens / validation.numel()
        clauses += ["the cheapest are measured again after each step"]
        clauses += [f"healing: about {duration(ratio * whole * PASSES_PER_UPDATE)}"]
    return "; ".join(clauses)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _fingerprint(windows: Sequence[Tensor]) -> str:
    content = b"".join(tokens.cpu().numpy().tobytes() for tokens in windows)
    return hashlib.sha256(content).hexdigest()


def _healed(
    plan: Plan,
    original: models.HessblocksForCausalLM,
    test: Tensor,
    text: Tensor,
    settings: SimplifySettings,
    folder: Path,
    tokenizer: Any,
) -> dict[str, Any]:
    """Heal the model of a plan, measure its cost on test windows before and after, and save it."""
    held_out, start = Held(original, test), time.perf_counter()
    teacher = original if settings.towards == "logits" else None
    healed: Any = heal(
        plan.model,
        teacher,
        text,
        layers=plan.touched,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        batch=settings.batch,
        seed=settings.seed,
    )
    seconds = time.perf_counter() - start
    summary: dict[str, Any] = {
        "steps": [asdict(step) for step in plan.steps],
        "sum_alone": sum(step.alone for step in plan.steps),
        "kl_chosen": plan.steps[-1].kl,
        "saved": plan.saved,
        "loss_before": held_out.before.value,
        "healing_seconds": seconds,
        "healed_layers": len(plan.touched),
        "layers_left": plan.model.config.depth,
        **saved_between(original, plan.model, settings.tokens),
    }
    for name, model in (("removed", plan.model), ("healed", healed)):
        cost = held_out.cost(list(model.model.layers), 0)
        if not math.isfinite(cost.kl.value):
            raise RunError(
                f"healing: the KL divergence of the {name} model is not finite; try a lower "
                "--learning-rate"
            )
        summary[name] = {
            "kl": cost.kl.value,
            "kl_error": cost.kl.standard_error,
            "loss": cost.loss.value,
            "loss_error": cost.loss.standard_error,
        }
    _save(healed, folder / "model", tokenizer, summary)
    return summary


def _save(model: Any, folder: Path, tokenizer: Any, summary: Mapping[str, Any]) -> None:
    """Save a model with its tokenizer, a card that tells what was removed, and a manifest."""
    facts = {
        "made from": f"a pretrained {(model.config.family or {}).get('model_type', 'model')}",
        "parameters saved": f"{summary['saved']:.1%}",
        "KL divergence from it, nats per token": f"{summary['healed']['kl']:.3g}",
        "removed": "; ".join(f"{s['kind']} of layer {s['layer']}" for s in summary["steps"]),
    }
    with storage.atomic_folder(folder) as temporary, quiet():
        try:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
        except SafetensorError as error:  # safetensors' word for a full disk
            raise RunError(f"--out: {folder} cannot be written ({error}).") from error
        models.write_card(temporary, model, facts)
        storage.write_manifest(temporary, storage.identity_in(folder.parent), folder.name, {})


def _summary(name: str, model: Any, table: Removals) -> dict[str, Any]:
    rows = table.to_rows()
    saving = [row for row in rows if row["nats_per_percent"] is not None]
    ranked = sorted(saving, key=lambda row: row["nats_per_percent"])
    return {
        "command": "simplify",
        "model": name,
        "depth": model.config.depth,
        "parameters": sum(p.numel() for p in model.parameters()),
        "removals": rows,
        "cheapest": ranked[:CHEAPEST],
        "said": str(table),
        "stored": models.stored_words(model.config),
    }
