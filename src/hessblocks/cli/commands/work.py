"""Carry out a command: load data, do the work, write the report, print the results."""

import glob
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hessblocks import report
from hessblocks.cli import terminal
from hessblocks.cli.commands.finished_calls import FINISHED, answers, described_call, written
from hessblocks.cli.interruption import interruptible
from hessblocks.cli.options import WORDS
from hessblocks.data import load_corpus
from hessblocks.errors import RunError
from hessblocks.report import write_report
from hessblocks.settings import DataSettings, SharedSettings
from hessblocks.storage import COMMAND, load_results, read_object, write_json


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
    comparison = report.compare_results(load_results(out))
    lost = all(row.diverged and row.final_loss is None for row in comparison.rows)
    seconds = time.perf_counter() - start
    shares = (f"{name} {100 * spent / seconds:.0f} %" for name, spent in progress.seconds.items())
    terminal.show(
        report.summary(comparison, seconds=seconds),
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

    A call like one that has finished prints what its folder holds, and what was said then.

    Args:
        command: name of the command.
        function: `package:name` of what does the work, imported when needed; it takes `progress`,
            and `finish` to call at the end.
        given: its arguments.
        as_json: print one JSON object instead of tables.
    """
    start, progress, page = time.perf_counter(), terminal.ScreenProgress(), report.PAGES[command]
    show_warning = warnings.showwarning

    def warn(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if category is UserWarning or category.__module__.startswith("hessblocks"):
            progress.notes.append(f"warning: {message}")
        show_warning(message, category, *where, **more)

    def finish(folder: Path) -> None:
        with progress.stage("report"):
            page.write(folder)
            with suppress(OSError, RunError):  # without a note, an equal call measures again
                if call and call == described_call(command, given):  # else a file changed meanwhile
                    note = {"call": call, "wrote": written(folder, given), "said": progress.notes}
                    write_json(folder / FINISHED, note)

    with interruptible(), warnings.catch_warnings():
        warnings.showwarning = warn
        with progress.stage("earlier calls"):
            call = described_call(command, given)
            pattern = glob.escape(str(given["out"] or "")).replace("{model}", "*") or "runs/*"
            folders = map(Path, glob.glob(pattern) if call else ())
            folder = next((path for path in folders if answers(path, call, given)), None)
        if folder:
            progress.note(f"{folder} holds the results of this call; nothing is measured again")
            for words in read_object(folder / FINISHED)["said"]:
                progress.note(f"said then: {words}")
            results = page.read(folder)
        else:
            measure = resolve_name(f"hessblocks.{function}")
            results = measure(**given, progress=progress, finish=finish)
    seconds, summarised = time.perf_counter() - start, page.summary(results)
    terminal.show(
        {**summarised, "seconds": round(seconds, 3)},
        page.lines(results),
        [f"{seconds:.0f} s", "", f"report  {Path(summarised['out'], 'report.html')}"],
        as_json=as_json,
    )


def _lines(comparison: report.Comparison) -> Iterator[report.Table | str]:
    yield from report.headline(comparison)
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
