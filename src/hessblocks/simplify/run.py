"""Simplify a saved model in a folder, as `hessblocks simplify` does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from hessblocks import models, storage
from hessblocks.conventions import AnyPath
from hessblocks.data import Windows, documents_of, encoded
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.quiet import quiet
from hessblocks.settings import SimplifySettings, make
from hessblocks.simplify.healing import heal
from hessblocks.simplify.passes import Held
from hessblocks.simplify.place import saved_between
from hessblocks.simplify.plan import Plan
from hessblocks.simplify.table import Removals, check_kinds, check_removals, measure_removals
from hessblocks.training import claimed, resolve_device

SHOWN = 60
"""Removals in summary.json and on the page, the cheapest first; removals.csv has them all."""
FREE = ("save", "samples", "steps", "towards", "learning_rate", "batch")
"""Settings that may change from call to call in one folder: they leave what was measured alone."""
PARTS = (0.8, 0.9)
"""Shares of the text at which that of fitting and healing ends, and that of choosing."""


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
    """Price every removal, take the cheapest until enough is saved, heal, and judge.

    The text is cut in three: weights are refitted and healed on its first four fifths, removals are
    chosen on the next tenth, and the result is judged on the last, which nothing was chosen by.

    Args:
        source: a folder that `save_pretrained` wrote, a GGUF file, or a name in the local Hugging
            Face cache.
        data: file or folder of text.
        out: run folder, new or of a call with the same model, text, kinds and windows;
            runs/simplify-MODEL by default.
        device: cpu, cuda or auto.
        progress: told what is going on.
        finish: given the folder when all is done.
        **given: of `hessblocks.settings.SimplifySettings`, such as `save=0.15, steps=200`.

    Returns:
        What summary.json then holds.

    Raises:
        ArgumentError: settings, a model or a text that do not fit, more to save than can go, or
            another run in `out`.
        RunError: damaged files, numbers that are not finite, or `out` cannot be written.

    Cost:
        That of `measure_removals`, some further measurements a step, and the healing. Measured
        layers and steps are kept: the same call goes on, and one with another target, healing or
        number of samples needs no new table. A healing that was interrupted begins again.
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
    """Draw windows to fit on, to choose by, to judge by, and all windows to heal on.

    Args:
        model: on whose device they shall be.
        tokenizer: its own.
        texts: documents, as `hessblocks.data.documents_of` reads them.
        settings: how many windows, and how long.

    Returns:
        The four.

    Raises:
        ArgumentError: no tokenizer, windows longer than the context, or a text of fewer windows.
    """
    if tokenizer is None:
        raise ArgumentError("MODEL: it has no tokenizer beside it; save it into the folder.")
    limit = models.context_of(model)
    if limit is not None and settings.tokens > limit:
        raise ArgumentError(f"--tokens: {settings.tokens} are longer than the context of {limit}.")
    ids = encoded(tokenizer, texts)
    if len(ids) and ids.max() >= model.config.vocab_size:
        raise ArgumentError("MODEL: its tokenizer gives tokens that it does not know.")
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
    """Heal, judge on the last tenth of the text, and write the model."""
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
