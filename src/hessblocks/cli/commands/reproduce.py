"""`hessblocks reproduce`: figures and tables of both papers by name, and one page for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.settings import words

if TYPE_CHECKING:
    from hessblocks.studies import StudyResult

ALL = "all"


@options.taking
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="A study, several with commas, or all.", show_default=False),
    ] = None,
    *,
    list_names: Annotated[
        bool, typer.Option("--list", help="List the studies and what each is of.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop (minutes) or paper (published settings).")
    ] = "laptop",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Repetitions; the scale's own by default.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes, one thread each; as many as there are cores by default.",
            show_default=False,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to measure on: host:port, ray://host:port or auto.",
            show_default=False,
        ),
    ] = None,
    out: options.Out = Path("runs/reproduce"),
    screen: options.Screen,
) -> None:
    """Measure a figure or table again and show it beside what was published."""
    from hessblocks import studies

    if list_names or name is None:
        _list(as_json=screen.json)
        return
    from hessblocks.cli.terminal import make_reporter
    from hessblocks.report import write_gallery

    names = _names(name)
    start = time.perf_counter()
    with (
        contextlib.redirect_stdout(sys.stderr),
        interruptible(", and `hessblocks report` shows what there is"),
        make_reporter() as reporter,
    ):
        try:
            results = studies.run_studies(
                names,
                out=out,
                scale=scale,
                seeds=seeds,
                workers=workers or (None if ray else _cores()),
                ray=ray,
                reporter=reporter,
            )
        except studies.FailedPointsError:
            with contextlib.suppress(HessblocksError):  # nothing to show is not what went wrong
                write_gallery(out, studies.names())
            raise
    page = write_gallery(out, studies.names())
    seconds = time.perf_counter() - start
    if screen.json:
        print(json.dumps(_summary(results, out, scale, seconds), allow_nan=False))
        return
    _show(results, page, seconds)


def _names(name: str) -> list[str]:
    from hessblocks.studies import find, names

    if name == ALL:
        return list(names())
    chosen = words(name)
    if not chosen:
        raise ArgumentError(f"name: expected a study, got {name!r}; known: {', '.join(names())}.")
    return [find(part).name for part in dict.fromkeys(chosen)]


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _list(*, as_json: bool) -> None:
    from hessblocks.cli.terminal import console, plain_table
    from hessblocks.studies import find, names

    studies = [find(name) for name in names()]
    if as_json:
        fields = ("name", "title", "source", "published")
        rows = [{field: getattr(study, field) for field in fields} for study in studies]
        print(json.dumps({"command": "reproduce", "studies": rows}))
        return
    screen = console()
    screen.print(
        plain_table(("name", "of", "what"), [(s.name, s.source, s.title) for s in studies], left=3)
    )


def _summary(
    results: Sequence[StudyResult], out: Path, scale: str, seconds: float
) -> dict[str, Any]:
    return {
        "command": "reproduce",
        "out": str(out),
        "scale": scale,
        "seconds": round(seconds, 3),
        "studies": {
            result.name: {
                "points": result.points,
                "measured": result.measured,
                "retried": result.retried,
                "seconds": round(result.seconds, 3),
                "checks": [asdict(check) for check in result.checks],
            }
            for result in results
        },
    }


def _show(results: Sequence[StudyResult], page: Path, seconds: float) -> None:
    from hessblocks.cli.terminal import console, plain_table
    from hessblocks.report import VERDICTS

    rows = [
        (result.name, check.fact, check.expected, check.ours, VERDICTS[check.holds])
        for result in results
        for check in result.checks
    ]
    screen = console()
    screen.print(plain_table(("study", "fact", "expected", "ours", "verdict"), rows, left=5))
    measured = sum(result.measured for result in results)
    kept = sum(result.points for result in results) - measured
    retried = sum(result.retried for result in results)
    again = f", {retried} started again after a worker died" if retried else ""
    screen.print(f"{seconds:.0f} s: {measured} points measured, {kept} were there{again}")
    screen.print(f"report  {page}", soft_wrap=True)
