"""Simplify a saved model in a folder, as `hessblocks simplify` does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from hessblocks import models, storage
from hessblocks.conventions import AnyPath
from hessblocks.curvature import duration
from hessblocks.data import Windows, documents_of, encoded
from hessblocks.errors import ArgumentError
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

SHOWN = 60
"""Removals in summary.json and on the page, the cheapest first; removals.csv has them all."""
FREE = ("save", "samples", "steps", "towards", "learning_rate", "batch")
"""Settings that later calls in the same folder may change: no measured removal depends on them."""
PARTS = (0.8, 0.9)
"""Shares of the text at which the part for fitting and healing, and that for choosing, ends."""

PASSES = 4
"""Forward passes that an update of the healing costs: its own, the original's, and two back."""


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
    """Measure every removal, make the cheapest until enough is saved, heal, and judge the result.

    The text is cut in three. Weights are refitted and healed on its first four fifths. Removals are
    measured and chosen on the next tenth. The result is judged on the last tenth, which no choice
    depended on.

    Args:
        source: a folder that `save_pretrained` wrote, a GGUF file, or a name in the local Hugging
            Face cache.
        data: file or folder of text.
        out: run folder, `runs/simplify-MODEL` by default. It is new, or holds an earlier call with
            the same model, text, kinds and windows.
        device: cpu, cuda or auto.
        progress: told which stage runs, and how far it is.
        finish: called with the folder at the end, as to write its page.
        **given: fields of `hessblocks.settings.SimplifySettings`, such as `save=0.15, steps=200`.

    Returns:
        The content of summary.json, and the folder as `out`.

    Raises:
        ArgumentError: a setting out of range, a model that cannot be simplified, a text too short,
            a `save` above what can be removed, or another run in `out`.
        RunError: a file is damaged, a number is not finite, or `out` cannot be written.

    Cost:
        That of `measure_removals`, some further measurements for each step of the plan, and the
        healing. The folder keeps measured layers and the steps of the plan, so the same call
        resumes. A call with another `save`, healing or `samples` measures no removal again. An
        interrupted healing starts over.
    """
    progress, settings = progress or Progress(), make(SimplifySettings, given)
    check_kinds(settings.kinds)
    with progress.stage("model and data"):
        texts = documents_of(Path(data))
        model, saved = models.load_saved(source, "causal-lm")
        own = isinstance(model, models.HessblocksForCausalLM)
        original: Any = model if own else models.from_pretrained_blocks(model)
        original.to(resolve_device(device))
        tokenizer = saved.tokenizer()
        parts = text_parts(original, tokenizer, texts, settings)
        fitted, chosen, judged, healing = parts
        check_removals(original, fitted, chosen)
    folder = Path(out or Path("runs", f"simplify-{saved.name.replace('/', '-')}"))
    config = {
        "command": "simplify",
        "source": source,
        "model": {"name": saved.name, "fingerprint": models.fingerprint(original)},
        "data": str(data),
        **asdict(settings),
        "windows": _fingerprint(parts),
        "device": original.device.type,
    }
    with claimed(folder, config, free=FREE):
        store = storage.mended_store(folder)
        progress.note(_cost(original, chosen, settings, store))
        with progress.stage("removals", total=original.config.depth):
            table = measure_removals(
                original,
                fitted,
                chosen,
                kinds=settings.kinds,
                samples=settings.samples,
                seed=settings.seed,
                store=store,
                done=lambda done, _: progress.step(done, None),
            )
        table.save(folder / "removals.csv")
        found = _summary(saved.name, original, table)
        if settings.save:
            with progress.stage("plan"):
                plan = Plan(original, fitted, chosen, table.rows)
                plan.run(settings.save, store)
            with progress.stage("healing"):
                found |= _healed(plan, original, judged, healing, settings, folder, tokenizer)
        storage.write_json(folder / "summary.json", found)
        if finish:
            finish(folder)
    return {**found, "out": str(folder)}


def text_parts(
    model: Any, tokenizer: Any, texts: Sequence[Any], settings: SimplifySettings
) -> tuple[Int[Tensor, "_ tokens"], ...]:
    """Draw the windows that a simplification fits, chooses, judges and heals on.

    Args:
        model: model that reads the windows; they are moved to its device.
        tokenizer: the model's tokenizer.
        texts: documents, as `hessblocks.data.documents_of` reads them.
        settings: numbers and length of the windows, and the seed.

    Returns:
        Token ids of four sets of windows: to fit weights, to choose removals, to judge the result,
        and to heal. The last are all windows of the part that the first are drawn from.

    Raises:
        ArgumentError: no tokenizer, one with tokens beyond the model's vocabulary, windows longer
            than the context, or a text of too few windows.
    """
    if tokenizer is None:
        raise ArgumentError("MODEL: no tokenizer beside it; save the tokenizer into its folder.")
    limit = models.context_of(model)
    if limit is not None and settings.tokens > limit:
        raise ArgumentError(f"--tokens: {settings.tokens} are longer than the context of {limit}.")
    ids = encoded(tokenizer, texts)
    if len(ids) and ids.max() >= model.config.vocab_size:
        raise ArgumentError("MODEL: its tokenizer gives tokens beyond the vocabulary of the model.")
    ends = [int(share * len(ids)) for share in PARTS]
    parts = (ids[: ends[0]], ids[ends[0] : ends[1]], ids[ends[1] :])
    first, *others = (Windows(part, settings.tokens) for part in parts)
    seed, count = settings.seed, settings.sequences
    drawn = [
        first.drawn(settings.fitted, seed, "--fitted", "the first four fifths of the text"),
        *(one.drawn(count, seed, "--sequences", "a tenth of the text") for one in others),
        first.drawn(len(first), seed),
    ]
    return tuple(one.to(model.device) for one in drawn)


def _cost(
    model: models.HessblocksForCausalLM,
    chosen: Tensor,
    settings: SimplifySettings,
    store: storage.Store,
) -> str:
    """Estimate the minutes of table and healing, from passes through all layers and the last."""
    layers = list(model.model.layers)
    left = sum(store.get(f"layer {number}") is None for number in range(len(layers)))
    if not (left or settings.save):
        return "every removal is measured already"
    held = Held(model, chosen)
    held.cost(layers, 0)  # the first takes longer
    whole, last = (_seconds(partial(held.cost, layers[n:], n)) for n in (0, len(layers) - 1))
    count = left * len(settings.kinds or KINDS)
    table = duration(count * (whole + last) / 2)
    told = [f"{count} removals at most: {table}, besides refits and forecasts"]
    if settings.save:
        updates = settings.steps * settings.batch * settings.tokens / chosen.numel()
        told += ["the cheapest are measured again after each step"]
        told += [f"healing: about {duration(updates * whole * PASSES)}"]
    return "; ".join(told)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _fingerprint(parts: Sequence[Tensor]) -> str:
    every = b"".join(part.cpu().numpy().tobytes() for part in parts)
    return hashlib.sha256(every).hexdigest()


def _healed(
    plan: Plan,
    original: models.HessblocksForCausalLM,
    judged: Tensor,
    text: Tensor,
    settings: SimplifySettings,
    folder: Path,
    tokenizer: Any,
) -> dict[str, Any]:
    """Heal the model of a plan, judge it on the last tenth of the text, and write it."""
    judge, start = Held(original, judged), time.perf_counter()
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
    found: dict[str, Any] = {
        "steps": [asdict(step) for step in plan.steps],
        "sum_alone": sum(step.alone for step in plan.steps),
        "kl_chosen": plan.steps[-1].kl,
        "saved": plan.saved,
        "loss_before": judge.before.value,
        "healing_seconds": seconds,
        "healed_layers": len(plan.touched),
        "layers_left": plan.model.config.depth,
        **saved_between(original, plan.model, settings.tokens),
    }
    for name, model in (("removed", plan.model), ("healed", healed)):
        cost = judge.cost(list(model.model.layers), 0)
        found[name] = {
            "kl": cost.kl.value,
            "kl_error": cost.kl.standard_error,
            "loss": cost.loss.value,
            "loss_error": cost.loss.standard_error,
        }
    _write(healed, folder / "model", tokenizer, found)
    return found


def _write(model: Any, place: Path, tokenizer: Any, found: Mapping[str, Any]) -> None:
    said = {
        "made from": f"a pretrained {(model.config.family or {}).get('model_type', 'model')}",
        "parameters saved": f"{found['saved']:.1%}",
        "KL divergence from it, nats per token": f"{found['healed']['kl']:.3g}",
        "removed": "; ".join(f"{step['kind']} of layer {step['layer']}" for step in found["steps"]),
    }
    with storage.atomic_folder(place) as temporary, quiet():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        models.write_card(temporary, model, said)


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
        "cheapest": ranked[:SHOWN],
        "said": str(table),
    }
