"""Run `hessblocks reproduce`: figures and tables of both papers by name, and one page."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from hessblocks.cli import Names, interruptible, options
from hessblocks.errors import ArgumentError, HessblocksError, main_memory
from hessblocks.settings import OneOf, at_least, check_ranges, words

if TYPE_CHECKING:
    from hessblocks_studies import StudyResult

ALL = "all"
WORKER = 2_000_000_000
"""Memory in bytes per worker: torch and a point of the laptop scale."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Extent of the measurement, and where it runs."""

    scale: Annotated[str, OneOf(("smoke", "laptop", "paper"))] = "laptop"
    """smoke (seconds), laptop (seconds to hours) or paper (the published settings)."""
    seeds: Annotated[int | None, at_least(1)] = None
    """Repetitions; by default those of the scale."""
    workers: Annotated[int | None, at_least(1)] = None
    """Processes, one thread each; by default one per core, as far as memory allows 2 GB each."""
    ray: str | None = None
    """Ray cluster to measure on: host:port, ray://host:port or auto."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)


def _complete(context: Any) -> Iterator[str]:
    """Complete names of studies in the shell, also after a comma."""
    from hessblocks_studies import names

    return Names((*names(), ALL))(context)


def reproduce(
    name: Annotated[
        str | None,
        Parameter(help="A study, several with commas, or all.", completer=_complete),
    ] = None,
    /,
    *,
    list_names: Annotated[
        bool,
        Parameter(name="--list", help="List the studies and what each is of.", show_default=False),
    ] = False,
    effort: Effort,
    out: options.Out = Path("runs/reproduce"),
    screen: options.Screen,
) -> None:
    """Measure a figure or table again and show it beside what was published.

    Example: hessblocks reproduce fig3a --scale smoke
    """
    import hessblocks_studies as studies

    if list_names or name is None:
        _list(as_json=screen.json)
        return
    from hessblocks.cli.terminal import show
    from hessblocks_studies.gallery import write_gallery
    from hessblocks_studies.study_bars import make_reporter

    names, start = _names(name), time.perf_counter()
    _say_costs(names, effort.scale)
    if not effort.workers and not effort.ray:
        effort = replace(effort, workers=_workers())
    also = ", and `hessblocks report` shows what there is"
    with interruptible(also), make_reporter() as reporter:
        try:
            results = studies.run_studies(names, out=out, reporter=reporter, **asdict(effort))
        except studies.FailedPointsError:
            with contextlib.suppress(HessblocksError):  # do not replace the first error
                write_gallery(out, studies.names())
            raise
    page = write_gallery(out, studies.names())
    seconds = time.perf_counter() - start
    show(
        _summary(results, out, effort.scale, seconds),
        _lines(results, seconds),
        [f"report  {page}"],
        as_json=screen.json,
    )


def _names(name: str) -> list[str]:
    from hessblocks_studies import find, names

    if name == ALL:
        return list(names())
    chosen = words(name)
    if not chosen:
        raise ArgumentError(f"name: expected a study, got {name!r}; known: {', '.join(names())}.")
    return [find(part).name for part in dict.fromkeys(chosen)]


def _say_costs(names: Sequence[str], scale: str) -> None:
    """Say on standard error what studies of many hours are expected to cost in all."""
    from hessblocks_studies import find

    for name in names:
        if cost := find(name).costs.get(cast("Any", scale)):
            print(f"{name}: {cost}, resumed where it was stopped", file=sys.stderr, flush=True)


def _workers() -> int:
    """Count the cores that this process may use, limited by the memory for workers."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return max(1, min(cores, main_memory() // WORKER))


def _list(*, as_json: bool) -> None:
    from hessblocks.cli.terminal import plain_table, show
    from hessblocks_studies import find, names

    studies = [find(name) for name in names()]
    fields = ("name", "title", "source", "published", "costs")
    rows = [{field: getattr(study, field) for field in fields} for study in studies]
    table = plain_table(
        ("name", "of", "what"), [(s.name, s.source, s.title) for s in studies], left=3
    )
    show({"command": "reproduce", "studies": rows}, [table], as_json=as_json)


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
                **{name: getattr(result, name) for name in ("points", "measured", "retried")},
                "seconds": round(result.seconds, 3),
                "checks": [asdict(check) for check in result.checks],
            }
            for result in results
        },
    }


def _lines(results: Sequence[StudyResult], seconds: float) -> Iterator[Any]:
    from hessblocks.cli.terminal import plain_table
    from hessblocks_studies.gallery import VERDICTS

    rows = [
        (result.name, check.fact, check.expected, check.ours, VERDICTS[check.holds])
        for result in results
        for check in result.checks
    ]
    yield plain_table(("study", "fact", "expected", "ours", "verdict"), rows, left=5)
    measured = sum(result.measured for result in results)
    kept = sum(result.points for result in results) - measured
    retried = sum(result.retried for result in results)
    again = f", {retried} started again after a worker died" if retried else ""
    yield f"{seconds:.0f} s: {measured} points measured, {kept} were there{again}"
