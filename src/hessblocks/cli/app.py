"""The `hessblocks` command: its sub-commands, and how errors and warnings reach the user."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hessblocks._version import __version__
from hessblocks.cli.commands import COMMANDS
from hessblocks.cli.extensions import other_commands
from hessblocks.cli.interruption import signals_interrupt
from hessblocks.errors import ArgumentError, HessblocksError, out_of_memory
from hessblocks.escape import printable, printable_lines
from hessblocks.malloc import keep_freed_memory
from hessblocks.settings import option

COMPLETE = "_HESSBLOCKS_COMPLETE"
"""Set by the shell where it asks which words may come next."""
GONE = {
    "finetune": "finetune: is no command any more; transformers' Trainer does it in a few lines, see "
    "examples/classify_a_table.py of the repository."
}
"""Commands of before, and what to do in their place."""
app = typer.Typer(
    name="hessblocks",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"hessblocks {__version__}")
        raise typer.Exit


@app.callback()
def hessblocks(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Transformer blocks, simplified, and the curvature of their loss."""


_UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a wrong command line; it has no public name in every version."""
OWN = {command.__name__: app.command()(command) for command in COMMANDS}
"""Name → command of this distribution."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the words after `hessblocks`; those of this process by default.

    Returns:
        Exit status: 0 done, 1 failed, 2 wrong arguments, 128 + number of a signal.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed_memory()
    with warnings.catch_warnings(), signals_interrupt() as came:
        warnings.showwarning = _show_warning
        try:
            if words and words[0] in GONE:
                raise ArgumentError(GONE[words[0]])
            if os.environ.get(COMPLETE):
                _add_other_commands()
                app(prog_name="hessblocks")
            _add_other_commands(words[0] if words else "")
            command = typer.main.get_command(app)
            with command.make_context("hessblocks", words.copy()) as context:
                command.invoke(context)
            sys.stdout.flush()
        except _UsageError as error:
            if words:
                _complain(_said(error), words)
            else:
                error.show()  # the help
            return 2
        except HessblocksError as error:
            _complain(_named(error, words), words)
            return error.exit_status
        except typer.Exit as end:
            return end.exit_code
        except SystemExit as end:  # rich, where nobody reads what it prints
            return end.code if isinstance(end.code, int) else 0
        except (OSError, MemoryError, RuntimeError) as error:
            return _failed(error, words)
        except KeyboardInterrupt as interruption:
            _complain(str(interruption) or "interrupted; start the same command again.", words)
            return 128 + (came or [signal.SIGINT])[0]
    return 0


def _add_other_commands(asked: str = "") -> None:
    """Add the commands of other distributions, unless one of our own is asked for: reading them takes time."""
    if asked in OWN:
        return
    there = {each.name for each in app.registered_commands}
    for name, command in other_commands(asked):
        if name not in OWN.keys() | there:
            app.command(name)(command)


def _said(error: Any) -> str:
    """What is wrong with the command line; an unknown option may be the initials of one, as lr of learning-rate."""
    if hasattr(error, "possibilities") and error.ctx:
        known = [name for taken in error.ctx.command.params for name in taken.opts]
        initials = {
            name: "".join(word[0] for word in name[2:].split("-") if word) for name in known
        }
        meant = [name for name in known if initials[name] == error.option_name.lstrip("-")]
        error.possibilities = meant or error.possibilities
    said: str = error.format_message()
    return said


def _failed(error: OSError | MemoryError | RuntimeError, words: Sequence[str]) -> int:
    """One sentence on what the machine refused; anything else is a fault of ours and is shown whole."""
    if out_of_memory(error):
        _complain("out of memory; make the model, the batch or the sequences smaller.", words)
        return 1
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:  # closed or full; the interpreter must not try again
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    what, why = error.filename or "standard output", error.strerror or error
    _complain(f"{what}: {why}; free some space or permit it, and run again.", words)
    return 1


def _complain(message: str, words: Sequence[str]) -> None:
    """One sentence on standard error; the traceback before it where it was asked for.

    Of several processes (torchrun) the first speaks.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if "--traceback" in words:
        traceback.print_exc()
    print(f"hessblocks: {printable(message)}", file=sys.stderr)


def _named(error: HessblocksError, words: Sequence[str]) -> str:
    """What is wrong; a setting that does not fit is named as it was typed, `--batch-size`."""
    field, _, rest = str(error).partition(":")
    is_setting = isinstance(error, ArgumentError) and option(field) in _options(words)
    return f"{option(field)}:{rest}" if is_setting else str(error)


def _options(words: Sequence[str]) -> set[str]:
    """The options of the command that was typed; a study may have the name of another one's."""
    commands = getattr(typer.main.get_command(app), "commands", {})
    typed = commands.get(words[0]) if words else None
    return {name for taken in typed.params for name in taken.opts} if typed else set()


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    """A warning of ours as one line on standard error; of others only what concerns users."""
    if category.__module__.startswith("hessblocks") or category is UserWarning:
        ours = category.__module__.startswith("hessblocks")
        shown = (printable if ours else printable_lines)(str(message))
        print(f"hessblocks: warning: {shown}", file=sys.stderr)
