"""Measure curvature or signal of a model, as `hessblocks curvature` and `signal` do."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from torch import nn

from hessblocks import curvature, storage
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection import opening
from hessblocks.inspection.curvature_run import CurvatureRun
from hessblocks.inspection.spending import Subjects, chosen, free_memory
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection, InspectionSettings, SignalInspection, make
from hessblocks.signal import propagate
from hessblocks.training import claimed, resolve_device

SIGNAL_COLUMNS = ("model", "seed", "layer", "quantity", "role", "value", "method")
MEASURED = ("level", "loss", "seed")
"""Settings in config.json under `curvature`, besides the spending."""
Finish = Callable[[Path], object]
Measuring = TypeVar("Measuring", bound=InspectionSettings)


def measure_curvature(
    model: opening.ModelSource,
    data: str | Path | opening.TokenBatch = "python-code",
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Finish | None = None,
    **fields: Any,
) -> storage.CurvatureResults:
    """Measure Frobenius norms of H, H_o and H_f by parameter group, their map and eigenvalues.

    By default norms and map are those of H, H_o and H_f by probes for a model of at most 10 million
    parameters, and those of H_o by 64 sampled gradients for a larger one. The three largest
    eigenvalues of H of all groups together follow, with at most 40 products each, 10 for a larger
    model. Each group is stored in the run folder once it is measured, so that the same call resumes
    where it stopped.

    Args:
        model: a causal language model, a folder that `save_pretrained` wrote, a name in the local
            Hugging Face cache, or `preset:NAME` for a block at initialisation.
        data: `python-code`, a file or folder of text, `random`, or {"input_ids": (sequences,
            tokens)}.
        out: run folder, new or of the same measurement; `{model}` is replaced by the model's name.
            None: a temporary folder, which is removed.
        device: cpu, cuda or auto; auto does not move a model that is given as an object.
        progress: shows stages and costs.
        finish: called with the folder at the end, while it is still locked for this process.
        **fields: fields of `hessblocks.settings.CurvatureInspection`, such as `probes=32,
            parts=["full"]`.

    Returns:
        All results in the folder, with those of earlier calls.

    Raises:
        ArgumentError: a field is unknown, sizes are given without a preset, model or data do not
            fit, `out` contains another run, or `finish` is given without `out`.
        RunError: a file is damaged, the loss is not finite, or `out` cannot be written.

    Cost:
        `probes` products with H, H_o and H_f for each group; or, for H_o alone, four times as many
        gradients for all groups together. `progress` first shows the estimated cost in gradients
        and bytes. `memory_limit` limits the gigabytes.

    Examples:
        >>> import hessblocks as hb
        >>> sizes = {"width": 16, "heads": 2, "vocab_size": 20, "sequences": 2, "tokens": 8}
        >>> found = hb.measure_curvature("preset:sas-p", "random", depth=1, probes=4, **sizes)
        >>> len(found.norms), found.parts
        (9, ('outer', 'functional', 'full'))
        >>> max(found.norms, key=lambda group: found.norms[group]["full"].value)  # most curved
        'embedding.token'
    """
    if out is None:
        if finish:
            raise ArgumentError("finish: what it writes would be lost; give the folder as out=...")
        with TemporaryDirectory(prefix="hessblocks-") as temporary:
            fields |= {"device": device, "progress": progress}
            return measure_curvature(model, data, out=Path(temporary, "run"), **fields)
    progress = progress or Progress()
    settings, batch = _settings(CurvatureInspection, data, fields)
    if settings.loss == "classification" and batch is None:
        raise ArgumentError(
            "--loss: classification needs labelled data; from Python, give measure_curvature a "
            "batch with labels and a model of hb.load(source, task='classification')."
        )
    device = _device(model, device)
    with progress.stage("model and data"):
        subject, tokens = opening.opened(model, settings, batch, settings.loss)
        for words in opening.told(subject, settings, batch):
            progress.note(words)
        if settings.loss == "masked-lm" and batch is None:
            tokens = opening.masked(tokens, subject, settings.seed)
        all_groups = curvature.parameter_groups(subject.model, level=settings.level)
        selected = curvature.select_groups(all_groups, settings.groups)
    folder = Path(str(out).replace("{model}", subject.name.replace("/", "-")))
    subjects = _subjects(settings, placed(device, subject.model), tokens, selected, device)
    with progress.stage("plan"):  # before the folder is made: this refuses too low a memory limit
        spending = chosen(subjects, settings, folder, progress)
    measured = {name: getattr(settings, name) for name in MEASURED}
    config = {
        "command": "curvature",
        "source": _source_name(model),
        "model": {
            "name": subject.name,
            "parameters": sum(group.size for group in all_groups.values()),
            **subject.digests(),
        },
        "data": _described(settings, tokens) | ({} if subject.ours else {"text": "whole"}),
        "groups": list(selected),
        "curvature": measured | spending.to_config(settings),
        "device": device,
    }
    with claimed(folder, config, finish=finish):
        CurvatureRun(subject.name, subjects, settings, spending, folder, progress).complete()
    return storage.load_curvature(folder)


def _subjects(
    settings: CurvatureInspection,
    model: nn.Module,
    tokens: Any,
    groups: Mapping[str, curvature.ParameterGroup],
    device: str,
) -> Subjects:
    """Make two problems of one model: norms use the whole memory limit, single products half."""
    gigabytes = settings.memory_limit  # the default, 40 %, keeps the process with model within half
    limit = int(1e9 * min(gigabytes, 1e9)) if gigabytes else 2 * free_memory(device) // 5
    problem = partial(curvature.Problem, model, tokens, loss=settings.loss)
    together = {"": curvature.merge("all groups", list(groups.values()))}
    return Subjects(
        problem=problem(memory_limit=limit),
        products=problem(memory_limit=max(1, limit // 2)),
        groups=groups,
        units=groups if settings.each_group else together,
        limit=limit // 2,
    )


def measure_signal(
    models: opening.ModelSource | Sequence[opening.ModelSource],
    data: str | Path | opening.TokenBatch = "python-code",
    *,
    out: AnyPath | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Finish | None = None,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Measure signal propagation through the layers of one or several models.

    Args:
        models: models, each as in `measure_curvature`; `preset:NAME-plain` is a block with plain
            softmax attention.
        data: as in `measure_curvature`, the same for every model.
        out: folder for config.json, environment.json and results.csv; results of an earlier call
            are replaced. None: write nothing.
        device: as in `measure_curvature`.
        progress: shows stages.
        finish: called with the folder at the end, while it is still locked for this process.
        **fields: fields of `hessblocks.settings.SignalInspection`, such as `depth=64,
            jacobian_steps=0`.

    Returns:
        One measured value per row: model, seed, layer (empty for the inputs), quantity, role,
        value, method.

    Raises:
        ArgumentError: a field is unknown, sizes are given without a preset, model or data do not
            fit, there is no model, or `out` contains other files.
        RunError: a file is damaged, or `out` cannot be written.

    Cost:
        One forward and one backward pass, and `jacobian_steps` products with each layer's Jacobian.

    Examples:
        >>> import hessblocks as hb
        >>> sizes = {"width": 16, "heads": 2, "vocab_size": 20, "sequences": 2, "tokens": 8}
        >>> rows = hb.measure_signal("preset:pre-ln", "random", depth=8, jacobian_steps=0, **sizes)
        >>> similar = [row["value"] for row in rows if row["quantity"] == "token_similarity"]
        >>> len(similar), similar[-1] > similar[0]  # tokens grow alike from layer to layer
        (9, True)
    """
    progress = progress or Progress()
    sources = [models] if isinstance(models, str | Path | nn.Module) else list(models)
    if not sources:
        raise ArgumentError("MODEL: expected a folder or preset:NAME, got none.")
    settings, batch = _settings(SignalInspection, data, fields)
    devices = [_device(source, device) for source in sources]
    out = None if out is None else Path(out)
    if out:
        _check_folder(out)
    with progress.stage("models and data"):
        loaded = [opening.opened(source, settings, batch, beside=sources) for source in sources]
        for subject, _ in loaded:
            for words in opening.told(subject, settings, batch):
                progress.note(f"{subject.name}: {words}")
    names = _distinct([subject.name for subject, _ in loaded], sources)
    rows: list[dict[str, Any]] = []
    for name, (subject, tokens), target in zip(names, loaded, devices, strict=True):
        with progress.stage("signal", name):
            labelled = {**tokens, "labels": curvature.causal_labels(tokens)}
            model = placed(target, subject.model)
            signal = propagate(model, labelled, jacobian_steps=settings.jacobian_steps)
        rows += [{"model": name, "seed": settings.seed, **row} for row in signal.to_rows()]
    if out:
        config = {
            "command": "signal",
            "models": dict(zip(names, map(_source_name, sources), strict=True)),
            "digests": {
                name: {**subject.digests(), "tokens": _fingerprint(tokens)}
                for name, (subject, tokens) in zip(names, loaded, strict=True)
            },
            "rows": len(rows),
            "sizes": {name: getattr(settings, name) for name in opening.OF_PRESETS},
            "data": _described(settings, batch),
            "jacobian_steps": settings.jacobian_steps,
            "seed": settings.seed,
            "device": devices[0],
        }
        with storage.held(out):
            _check_folder(out)
            storage.write_json(out / "config.json", config)
            storage.write_json(out / "environment.json", storage.environment())
            storage.write_table(out / "results.csv", SIGNAL_COLUMNS, rows)
            if finish:
                finish(out)
    return rows


def _settings(
    kind: type[Measuring], data: str | Path | opening.TokenBatch, fields: Mapping[str, Any]
) -> tuple[Measuring, opening.TokenBatch | None]:
    """Make the settings, with the shape of a given batch; return the batch too, or None."""
    if isinstance(data, str | Path):
        return make(kind, {**fields, "data": str(data)}), None
    ids = data.get("input_ids")
    if ids is None or ids.ndim != 2:
        raise ArgumentError(
            "data: expected the name of a text, or input_ids of shape (sequences, tokens)."
        )
    settings = make(kind, {**fields, "data": "batch"})
    return replace(settings, sequences=ids.shape[0], tokens=ids.shape[1]), data


def _described(settings: InspectionSettings, batch: opening.TokenBatch | None) -> dict[str, Any]:
    """Describe the tokens for config.json."""
    digest = {"fingerprint": _fingerprint(batch)} if batch else {}
    shape = {"sequences": settings.sequences, "tokens": settings.tokens}
    return {"name": settings.data, **shape, **digest}


def _fingerprint(batch: opening.TokenBatch) -> str:
    every = (f"{name}{tuple(rows.shape)}{rows.tolist()}" for name, rows in sorted(batch.items()))
    return hashlib.sha256("".join(every).encode()).hexdigest()


def _source_name(source: opening.ModelSource) -> str:
    return type(source).__name__ if isinstance(source, nn.Module) else str(source)


def _device(source: opening.ModelSource, device: str) -> str:
    if isinstance(source, nn.Module) and device == "auto":
        return next(source.parameters()).device.type
    return resolve_device(device)


def placed(device: str, model: nn.Module) -> nn.Module:
    """Move a model to a type of device, unless it is on a device of this type already."""
    return model if next(model.parameters()).device.type == device else model.to(device)


def _distinct(names: Sequence[str], sources: Sequence[opening.ModelSource]) -> list[str]:
    """Make names distinct: replace equal ones by their sources, and number equal sources."""
    count = Counter(names)
    longer = [
        _source_name(source) if count[name] > 1 else name
        for name, source in zip(names, sources, strict=True)
    ]
    return [
        f"{name} {longer[: index + 1].count(name)}" if longer.count(name) > 1 else name
        for index, name in enumerate(longer)
    ]


def _check_folder(out: Path) -> None:
    """Refuse a folder with links, or with other contents than a run of `hessblocks signal`."""
    storage.refuse_links(out)
    try:
        empty = not out.exists() or all(path.name.startswith(".") for path in out.iterdir())
        ours = empty or storage.read_object(out / "config.json").get("command") == "signal"
    except (RunError, NotADirectoryError):
        ours = False
    if not ours:
        raise ArgumentError(
            f"--out: {out} holds something other than a run of `hessblocks signal`; choose a new "
            "or empty folder."
        )
