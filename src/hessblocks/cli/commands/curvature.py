"""`hessblocks curvature`: norms, map and spectra of any causal language model, group by group."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessblocks.cli.terminal import interruptible, options
from hessblocks.errors import ArgumentError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

    from hessblocks.conventions import Part
    from hessblocks.inspection import CurvatureRunSettings, Sample, Subject

SHOWN = 40
"""Groups in the terminal's table; the page has them all."""


def curvature(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder that save_pretrained wrote, a name in the local Hugging Face cache, or "
            "preset:NAME for a block of `hessblocks presets` at initialisation.",
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="Held-out text: python-code (Python's standard library), a file or folder, or random "
            "(tokens drawn uniformly)."
        ),
    ] = "python-code",
    groups: Annotated[
        str, typer.Option(help="Patterns of group names with commas, such as '*.attention.query'.")
    ] = "*",
    level: Annotated[
        str, typer.Option(help="How finely parameters are grouped: role, head or tensor.")
    ] = "role",
    parts: Annotated[
        str, typer.Option(help="Parts of the Hessian with commas: outer, functional, full.")
    ] = "outer,functional,full",
    probes: Annotated[int, typer.Option(min=4, help="Random vectors a group.")] = 16,
    sequences: Annotated[int, typer.Option(min=1, help="Held-out sequences.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each sequence.")] = 32,
    spectrum: Annotated[
        bool, typer.Option("--spectrum", help="Density of the eigenvalues of each group's block.")
    ] = False,
    whole_map: Annotated[
        bool, typer.Option("--map", help="Norms of all blocks between two groups.")
    ] = False,
    depth: options.Depth = 4,
    width: options.Width = 128,
    heads: options.Heads = 4,
    vocab_size: options.VocabSize = options.VOCABULARY,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder; the same one again goes on where it stopped. "
            "[default: runs/curvature-MODEL]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Random seed of a preset's weights, the windows and the probes."),
    ] = 0,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            help="Gigabytes to use besides model and data; less takes longer and changes no number. "
            "[default: a quarter of the machine's memory]",
            show_default=False,
        ),
    ] = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Measure the curvature of a causal language model; --depth to --vocab-size are for presets."""
    wanted = _parts(parts)
    from hessblocks.inspection import CurvatureRunSettings, Sample
    from hessblocks.training import resolve_device

    sample = Sample(data=data, sequences=sequences, tokens=tokens, seed=seed)
    sizes = {"depth": depth, "width": width, "heads": heads, "vocab_size": vocab_size}
    settings = CurvatureRunSettings(
        parts=wanted, probes=probes, map=whole_map, spectrum=spectrum, level=level, seed=seed
    )
    start = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr), interruptible():
        limit = None if memory_limit is None else int(memory_limit * 1e9)
        page = _carry_out(
            source, sample, sizes, groups, settings, resolve_device(device), limit, out
        )
    _show(page, time.perf_counter() - start, as_json=as_json)


def _carry_out(
    source: str,
    sample: Sample,
    sizes: Mapping[str, int],
    patterns: str,
    settings: CurvatureRunSettings,
    device: str,
    memory_limit: int | None,
    out: Path | None,
) -> Path:
    """Measure, record and report; returns the page."""
    from hessblocks.cli.terminal import make_progress
    from hessblocks.curvature import Problem, parameter_groups, select_groups
    from hessblocks.inspection import CurvatureRun
    from hessblocks.report import write_curvature_report
    from hessblocks.training import claimed

    progress = make_progress()
    with progress.stage("model and data"):
        subject, batch = _subject_and_batch(source, sample, sizes, settings.seed)
        known = parameter_groups(subject.model, level=settings.level)
        names = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
        if not names:
            raise ArgumentError("--groups: expected patterns with commas, got none.")
        selected = select_groups(known, names)
    config = {
        "command": "curvature",
        "source": source,
        "model": {
            "name": subject.name,
            "parameters": sum(group.size for group in known.values()),
            "fingerprint": subject.fingerprint(),
        },
        "data": {"name": sample.data, "sequences": sample.sequences, "tokens": sample.tokens},
        "groups": list(selected),
        "curvature": {**asdict(settings), "parts": list(settings.parts)},
        "device": device,
    }
    folder = out or Path("runs", f"curvature-{subject.name.replace('/', '-')}")
    model = subject.model.to(device)
    problem = Problem(model, batch, loss="causal-lm", memory_limit=memory_limit)
    _ = problem.plan  # refuses a limit that is too low before the folder is made
    with claimed(folder, config):
        CurvatureRun(subject.name, problem, selected, settings, folder).complete(progress)
        with progress.stage("report"):
            return write_curvature_report(folder)


def _parts(text: str) -> tuple[Part, ...]:
    from hessblocks.conventions import PARTS

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise unknown_name("--parts", name, PARTS)
    if not names:
        raise ArgumentError(f"--parts: expected one or more of {', '.join(PARTS)}, got none.")
    return tuple(part for part in PARTS if part in names)


def _subject_and_batch(
    source: str, sample: Sample, sizes: Mapping[str, int], seed: int
) -> tuple[Subject, dict[str, Tensor]]:
    """The model, and tokens that it knows."""
    from hessblocks.inspection import (
        corpus_batch,
        encoded_batch,
        fresh_model,
        preset_of,
        random_batch,
        saved_model,
    )

    preset = preset_of(source)
    if preset is None:
        subject = saved_model(source)
        if subject.context is not None and sample.tokens > subject.context:
            raise ArgumentError(
                f"--tokens: {sample.tokens} are longer than the context of {subject.context} of "
                f"{subject.name}; ask for fewer."
            )
        draw = random_batch if sample.random else encoded_batch
        return subject, draw(subject, sample)
    sizes = {**sizes, "context": sample.tokens}
    if sample.random:
        subject = fresh_model(preset, sizes, seed)
        return subject, random_batch(subject, sample)
    corpus = sample.corpus(sizes["vocab_size"])
    subject = fresh_model(preset, {**sizes, "vocab_size": corpus.vocab_size}, seed)
    return subject, corpus_batch(corpus, sample)


def _show(page: Path, seconds: float, *, as_json: bool) -> None:
    from hessblocks.cli.terminal import console, curvature_table, summary_lines
    from hessblocks.storage import load_curvature

    results = load_curvature(page.parent)
    if as_json:
        print(json.dumps(results.summary(seconds=seconds), allow_nan=False))
        return
    screen = console()
    screen.print(curvature_table(results, SHOWN))
    for line in summary_lines(results, SHOWN):
        screen.print(line)
    screen.print(f"{seconds:.0f} s\n\nreport  {page}", soft_wrap=True)
