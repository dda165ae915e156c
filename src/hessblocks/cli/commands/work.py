"""Carry out a command: load data, do the work, write the report, print the results."""

import glob
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hessblocks._version import __version__
from hessblocks.cli import terminal
from hessblocks.cli.interruption import interruptible
from hessblocks.cli.options import WORDS
from hessblocks.data import load_corpus
from hessblocks.errors import RunError
from hessblocks.report import (
    PAGES,
    Comparison,
    Table,
    compare_results,
    headline,
    summary,
    write_report,
)
from hessblocks.settings import BUILT_IN, DataSettings, SharedSettings
from hessblocks.storage import (
    COMMAND,
    load_results,
    read_object,
    sha256,
    write_json,
)

FINISHED = "finished.json"
"""Note in a run folder of a finished call: its arguments, and digests of what it read and wrote."""
READ = ("source", "model", "data", "merge", "against", "also")
"""Arguments that may be files."""


def carry_out(
    work: Callable[..., None],
    settings: SharedSettings,
    out: Path,
    text: DataSettings,
    following: str,
    *,
    as_json: bool,
) -> None:
    """Load the data, train, write the report, and print the results.

    Args:
        work: `training.compare` or `training.train`.
        settings: settings of the training.
        out: run folder.
        text: settings of the training text.
        following: command that is suggested next.
        as_json: print one JSON object instead of the table.

    Raises:
        RunError: every run diverged.
    """
    start, progress = time.perf_counter(), terminal.ScreenProgress()

    def finish(folder: Path) -> None:
        write_json(folder / COMMAND, {"words": list(WORDS.get())})
        with progress.stage("report"):
            write_report(folder)

    with interruptible():
        with progress.stage("data"):
            corpus = load_corpus(text.data, text.vocab_size)
        work(settings, corpus, out, progress, finish=finish)
    comparison = compare_results(load_results(out))
    lost = all(row.diverged and row.final_loss is None for row in comparison.rows)
    seconds = time.perf_counter() - start
    shares = (f"{name} {100 * spent / seconds:.0f} %" for name, spent in progress.seconds.items())
    terminal.show(
        summary(comparison, seconds=seconds),
        [*_lines(comparison), f"{seconds:.0f} s: {', '.join(shares)}"],
        ["", f"report  {out / 'report.html'}", *([] if lost else [f"next    {following}"])],
        as_json=as_json,
        width=terminal.WIDE,
    )
    if lost:
        where = (
            f"{row.preset}, seed {seed}: {row.causes[seed]}"
            for seed in comparison.seeds
            for row in comparison.rows
            if seed in row.causes
        )
        raise RunError(f"every run diverged ({'; '.join(where)}). Try a lower --learning-rate.")


def measure_in_folder(
    command: str, function: str, given: Mapping[str, Any], *, as_json: bool
) -> None:
    """Measure in a folder, write its page, and print the results.

    A call with the same files as one that has finished prints what its folder holds.

    Args:
        command: name of the command.
        function: `package:name` of what does the work, imported when needed; it takes `progress`,
            and `finish` to call at the end.
        given: its arguments.
        as_json: print one JSON object instead of tables.
    """
    start, progress, page = time.perf_counter(), terminal.ScreenProgress(), PAGES[command]

    def finish(folder: Path) -> None:
        with progress.stage("report"):
            page.write(folder)
            if call and call == _call(given):  # else a file changed meanwhile
                write_json(folder / FINISHED, {"call": call, "wrote": _wrote(folder, given)})

    with interruptible():
        call = _call(given)
        if folder := _finished(command, call, given):
            progress.note(f"{folder} holds the results of this call; nothing is measured again")
            results = page.read(folder)
        else:
            results = resolve_name(f"hessblocks.{function}")(
                **given, progress=progress, finish=finish
            )
    seconds, summarised = time.perf_counter() - start, page.summary(results)
    terminal.show(
        {**summarised, "seconds": round(seconds, 3)},
        page.lines(results),
        [f"{seconds:.0f} s", "", f"report  {Path(summarised['out'], 'report.html')}"],
        as_json=as_json,
    )


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a call, with digests of the files that it reads; empty if some are elsewhere."""
    named = {name: given.get(name) for name in READ}
    paths = {name: Path(path) for name, path in named.items() if path and path not in BUILT_IN}
    if not all(path.exists() for path in paths.values()):  # in a cache, or a preset
        return {}
    files = {name: _digests(path) for name, path in paths.items()}
    call = {"versions": [__version__, sys.version], "given": given, "files": files}
    described: dict[str, Any] = json.loads(json.dumps(call, default=str))
    return described


def _digests(path: Path) -> dict[str, str]:
    """Compute the SHA-256 of a file, or of the files below a folder."""
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    files = (p for p in paths if p.is_file() and not p.name.startswith((".hessblocks", FINISHED)))
    return {str(file.relative_to(path)): sha256(file) for file in files}


def _wrote(folder: Path, given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Compute the digests of all that a call has written."""
    paths = {"folder": folder, **({"file": given["file"]} if "file" in given else {})}
    return {name: _digests(path) for name, path in paths.items()}


def _finished(command: str, call: Mapping[str, Any], given: Mapping[str, Any]) -> Path | None:
    """Find the folder of an equal call that has finished, if all that it wrote is as it was."""
    pattern = glob.escape(str(given["out"] or f"runs/{command}-{{model}}")).replace("{model}", "*")
    for folder in map(Path, glob.glob(pattern) if call else ()):
        with suppress(OSError, RunError):  # no note, or a damaged one
            note = read_object(folder / FINISHED)
            if note["call"] == call and note["wrote"] == _wrote(folder, given):
                return folder
    return None


def _lines(comparison: Comparison) -> Iterator[Table | str]:
    yield from headline(comparison)
    yield terminal.comparison_table(comparison)
    several = f"; ±: standard error over {len(comparison.seeds)} seeds"
    yield (
        "loss: validation, nats per token; tokens/s: per second of processor time on a CPU, summed "
        f"over threads{several if len(comparison.seeds) > 1 else ''}"
    )
    if comparison.rate_words:
        yield comparison.rate_words
    if any(row.before for row in comparison.rows):
        yield (
            "heterogeneity: Frobenius norm of the largest Hessian block over that of the smallest, "
            "one Hessian block a parameter group; of one seed with its 95 % interval"
        )
    if zeros := comparison.zero_groups:
        yield zeros
