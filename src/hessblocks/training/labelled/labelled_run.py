"""Fine-tuning a saved model on labelled text, in a run folder that goes on where it stopped."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import DataCollatorWithPadding, EvalPrediction

from hessblocks.conventions import AnyPath
from hessblocks.data import LabelledFile, Row, load_labelled
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models import Saved, fingerprint
from hessblocks.progress import Progress
from hessblocks.quiet import quiet
from hessblocks.settings import FinetuneSettings, ModelSettings, RunSettings
from hessblocks.storage import (
    read_finished_lines,
    remedy,
    remembered_in,
    sealed_folder,
    warn_of_another_environment,
)
from hessblocks.training import ranks
from hessblocks.training.folder import RunFolder, claimed, continued, prune, save_model
from hessblocks.training.labelled.classifier import Classifier, Encoded, classifier_of
from hessblocks.training.preparation import check_tracker, closed_tracker, in_float32
from hessblocks.training.trainer import Recorder, RunTrainer, run_arguments


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How well held-out texts are sorted."""

    accuracy: float
    """Share of right answers."""
    loss: float
    """Mean cross-entropy in nats a text."""


@dataclass(frozen=True, kw_only=True)
class Finetuned:
    """A fine-tuned classifier and what it was worth on held-out texts."""

    folder: Path
    """With the model and its tokeniser, as Hugging Face reads them."""
    classes: tuple[str, ...]
    """Names of its outputs, in order."""
    train: int
    """Texts learnt from."""
    held_out: int
    """Texts held out."""
    cut: int
    """Texts of both that were longer than the model takes, and were cut."""
    new: tuple[str, ...]
    """Weights that were drawn anew: those of the head, as a rule."""
    commonest: str
    """The label that most training texts have."""
    reference: Judged
    """Of always answering with the shares of the labels in the training texts, the commonest one first."""
    before: Judged
    """Of the model before its first step."""
    after: Judged
    """Of the model that was saved."""


@in_float32()
def finetune_saved(
    source: str,
    data: AnyPath,
    settings: FinetuneSettings,
    out: AnyPath,
    progress: Progress,
    *,
    device: str = "cpu",
    report_to: str = "none",
) -> Finetuned:
    """Train a saved model to classify the texts of a file, or what is left of it.

    Args:
        source: a classifier, or any model on which transformers puts the head of one: a folder, a run folder of
            `hessblocks train`, or a name in the local Hugging Face cache.
        data: labelled rows, as `hessblocks.data.load_labelled` reads them.
        settings: columns, held-out share and training.
        out: run folder, new or of the same run.
        progress: told what is going on.
        device: cpu or cuda.
        report_to: tensorboard, wandb, trackio or none.

    Returns:
        The classifier's folder and its scores.

    Raises:
        ArgumentError: a model, file or setting that does not fit, or another run in `out`.
        RunError: damaged files, a loss that is no number, or `out` cannot be written.
    """
    data, out = Path(data), Path(out)
    if ranks.asked_for() > 1:
        raise ArgumentError("finetune: works in one process; start it without torchrun.")
    check_tracker(report_to)
    with progress.stage("data"):
        saved = Saved.at(source)
        rows = load_labelled(data, settings.text, settings.label, settings.held_out, settings.seed)
    with progress.stage("model"):
        classifier = classifier_of(saved, rows.classes, settings.seed)
        limit = classifier.limit(settings.tokens)
        train, cut = classifier.encode(rows.train, limit)
        held_out, cut_too = classifier.encode(rows.held_out, limit)
    run = RunSettings(
        preset=saved.name,
        seed=settings.seed,
        model=ModelSettings(context=limit or 2),
        training=settings.training(len(train)),
        device=device,
        report_to=report_to,
    )
    config = {
        "command": "finetune",
        "source": {"name": saved.name, "fingerprint": fingerprint(classifier.model)},
        "classes": classifier.classes,
        "data": {
            "name": rows.name,
            "fingerprint": rows.fingerprint,
            "tokens": _digest(classifier, (*train, *held_out)),
        },
        "settings": asdict(settings),
        "device": device,
    }
    with claimed(out, config) as folder:
        lines = _finished(folder)
        if lines is None:
            with progress.stage("training", saved.name, run.training.steps):
                _train(classifier, train, held_out, run, folder, rows, progress)
            lines = _finished(folder) or []
        prune(folder.checkpoints, kept=0)
    before, *_, after = [line for line in lines if line["split"] == "validation"]
    shares = Counter(row.label for row in rows.train)
    return Finetuned(
        folder=folder.model,
        classes=classifier.classes,
        train=len(train),
        held_out=len(held_out),
        cut=cut + cut_too,
        new=classifier.new,
        commonest=shares.most_common(1)[0][0],
        reference=_reference(shares, rows.held_out),
        before=Judged(accuracy=before["accuracy"], loss=before["loss"]),
        after=Judged(accuracy=after["accuracy"], loss=after["loss"]),
    )


def _digest(classifier: Classifier, examples: Sequence[Encoded]) -> str:
    """SHA-256 of what the tokeniser made of the texts, and of how it pads them."""
    digest = hashlib.sha256()
    for one in (classifier.tokenizer.pad_token_id, classifier.tokenizer.padding_side, *examples):
        digest.update(repr(one).encode())
    return digest.hexdigest()


def _finished(folder: RunFolder) -> list[dict[str, Any]] | None:
    """The losses of a finished run, None where it is not finished; files that are not what was written are refused."""
    found = sealed_folder(folder.model, folder.identity)
    if found.state == "missing" and not folder.model.exists():
        return None
    if not found.usable:
        raise RunError(f"{found.sentence}; {remedy(found, folder.path)}.")
    ended = remembered_in(folder.model)["lines"]
    return read_finished_lines(folder.metrics, folder.identity, ended[folder.metrics.name])


def _train(
    classifier: Classifier,
    train: Sequence[Encoded],
    held_out: Sequence[Encoded],
    run: RunSettings,
    folder: RunFolder,
    rows: LabelledFile,
    progress: Progress,
) -> None:
    """Train from the newest whole checkpoint, or from the start, and save the model."""
    checkpoint = continued(folder, run.preset)
    warn_of_another_environment(folder.environment)
    recorder = Recorder(
        run,
        folder,
        checkpoint=checkpoint,
        listener=lambda line: progress.step(line["step"], line["loss"]),
    )
    cache = (
        classifier.model.config.use_cache if hasattr(classifier.model.config, "use_cache") else None
    )
    with quiet():
        trainer = RunTrainer(
            model=classifier.model,
            args=run_arguments(
                run, folder.checkpoints, len(held_out), include_num_input_tokens_seen="non_padding"
            ),
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=DataCollatorWithPadding(classifier.tokenizer),
            compute_metrics=_accuracy,
            preprocess_logits_for_metrics=lambda logits, _: (
                logits[0] if isinstance(logits, tuple) else logits
            ),
        )
    trainer.args.prediction_loss_only = False
    trainer.model_accepts_loss_kwargs = False  # mean over the batch's own texts
    with closed_tracker(run.report_to):
        recorder.record(trainer)
    if found := recorder.divergence:
        raise RunError(
            f"{run.preset}: diverged at step {found.step}: the {found.words} {found.verb} not finite; no model is "
            f"saved. Try a lower --learning-rate than {run.training.learning_rate:g} in a new --out."
        )
    if cache is not None:  # the Trainer turns it off, also in the model that is saved
        classifier.model.config.use_cache = cache
    save_model(classifier.model, classifier.tokenizer, folder, _told(run, rows))


def _accuracy(found: EvalPrediction) -> Mapping[str, float]:
    """Share of right answers; not a number where a logit is none."""
    logits, labels = np.asarray(found.predictions), np.asarray(found.label_ids)
    right = float((logits.argmax(axis=-1) == labels).mean())
    return {"accuracy": right if np.isfinite(logits).all() else float("nan")}


def _reference(shares: Counter[str], held_out: Sequence[Row]) -> Judged:
    """Accuracy of the commonest label, and cross-entropy of the labels' shares, both of the training texts."""
    commonest, total = shares.most_common(1)[0][0], shares.total()
    return Judged(
        accuracy=float(np.mean([row.label == commonest for row in held_out])),
        loss=float(-np.mean([np.log(shares[row.label] / total) for row in held_out])),
    )


def _told(run: RunSettings, rows: LabelledFile) -> dict[str, Any]:
    """What the model's card says of its training."""
    return {
        "begun from": run.preset,
        "data": f"{rows.name}, SHA-256 {rows.fingerprint[:16]}...",
        "labels": ", ".join(rows.classes),
        "updates": f"{run.training.steps} of {run.training.batch_size} texts",
        "optimiser": f"adamw, peak learning rate {run.training.learning_rate:g}, linear decay",
        "seed": run.seed,
    }
