"""Run the `hessblocks` command: its sub-commands, and the output of errors and warnings."""

import os
import signal
import sys
import tomllib
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import cyclopts
from cyclopts import App, Argument, ArgumentCollection, CycloptsError, Group, Parameter
from rich.console import Console

from hessblocks._version import __version__
from hessblocks.cli import checks, extensions
from hessblocks.cli.commands import COMMANDS
from hessblocks.cli.interruption import signals_interrupt
from hessblocks.cli.options import WORDS, taking
from hessblocks.errors import ArgumentError, HessblocksError, out_of_memory
from hessblocks.escape import printable, printable_lines
from hessblocks.malloc import keep_freed_memory
from hessblocks.settings import option


def no_empty_path(_: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse an empty path, which would mean the current folder."""
    for argument in arguments:
        if "Path" in str(argument.hint) and any(not token.value for token in argument.tokens):
            raise ArgumentError(f"{_name(argument)}: expected a file or folder, got ''.")


TASKS = tomllib.loads(Path(__file__).with_name("tasks.toml").read_text(encoding="utf-8"))
"""Name → what users do, in the order of the help."""
TITLES = dict.fromkeys(task["group"] for task in TASKS.values() if "group" in task)
GROUPS = {title: Group(title, sort_key=rank) for rank, title in enumerate(TITLES)}
"""Panels of the help."""


class Commands(App):
    """App with options from settings, whose completion in bash falls back to files."""

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """Read the options of this command, since those of all take long."""
        if self.default_command:
            taking(self.default_command)
        return super().assemble_argument_collection(**options)

    def generate_completion(self, **options: Any) -> str:
        """Generate the script of a shell."""
        script = super().generate_completion(**options)
        return script.replace("complete -F", "complete -o default -F")


app = Commands(
    name="hessblocks",
    help="Quantise, prune and study transformers by what each weight does to the loss.",
    help_format="plaintext",
    help_epilogue="Examples:\n"
    + "\n".join(TASKS[name]["example"] for name in ("quantise", "cache", "curvature", "compare")),
    version=f"hessblocks {__version__}",
    version_flags=["--version"],
    default_parameter=Parameter(
        negative=(), allow_repeating=True, json_list=False, json_dict=False
    ),
    config=[no_empty_path],
    group_parameters=Group("Options", sort_key=-1),
    print_error=False,
    exit_on_error=False,
    verbose=False,
)
SHELL = Group("Options", sort_key=len(GROUPS) + 1)
"""Last panel of the help, after the commands."""
for flag in ("--help", "--version"):
    app[flag].group = (SHELL,)
app.register_install_completion_command(
    group=SHELL, help="Complete commands, options and names in this shell."
)


@app.command(name="--show-completion", group=SHELL)
def show_completion(shell: Literal["bash", "zsh", "fish", "powershell"] | None = None) -> None:
    """Print the script that completes commands in a shell."""
    print(app.generate_completion(shell=shell))


OWN = {command.__name__: command for command in COMMANDS}
"""Commands of this distribution."""
for rank, (name, task) in enumerate(TASKS.items()):
    if name in OWN:
        app.command(
            OWN[name],
            group=GROUPS[task["group"]],
            sort_key=rank,
            usage=f"Usage: hessblocks {name} {task['usage']}",
            help_epilogue=f"Example: {task['example']}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: words after `hessblocks`; None: the arguments of this process.

    Returns:
        Exit status: 0 success, 1 failure, 2 wrong arguments, 128 + number of a signal.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    WORDS.set(tuple(words))
    keep_freed_memory()
    # on a busy machine, threads of torch that spin while they wait take it from those that compute
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with warnings.catch_warnings(), signals_interrupt() as came:
        warnings.showwarning = _show_warning
        try:
            _add_other_commands(words[0] if words else "")
            if not words:
                app.help_print([], console=Console(stderr=True))
                return 2
            command, bound, _ = app.parse_args(words)
            bound.apply_defaults()
            command(*bound.args, **bound.kwargs)
            sys.stdout.flush()
        except CycloptsError as error:
            _complain(sentence(error), words)
            return 2
        except HessblocksError as error:
            _complain(_named(error, words), words)
            return error.exit_status
        except SystemExit as end:  # rich exits so when its output pipe is closed
            return end.code if isinstance(end.code, int) else 0
        except (OSError, MemoryError, RuntimeError) as error:
            return _failed(error, words)
        except KeyboardInterrupt as interruption:
            _complain(str(interruption) or "interrupted; start the same command again.", words)
            return 128 + (came or [signal.SIGINT])[0]
    return 0


def _add_other_commands(word: str) -> None:
    """Add the commands of other distributions, unless the user asked for one of ours."""
    if word in OWN:
        return
    if lacking := extensions.lacking_for(word):
        raise ArgumentError(f"{word}: {lacking}")
    group = Group(f"From {extensions.STUDIES}", sort_key=len(GROUPS))
    for name, command in extensions.load_all(extensions.COMMANDS).items():
        if name not in app:
            app.command(command, name=name, group=group)


def _failed(error: OSError | MemoryError | RuntimeError, words: Sequence[str]) -> int:
    """Explain an error of memory, disk or files in one sentence; re-raise any other error."""
    if out_of_memory(error):
        _complain("out of memory; make the model, the batch or the sequences smaller.", words)
        return 1
    if not isinstance(error, OSError):
        raise error
    # standard output is closed or its disk is full: the interpreter must not flush it at exit
    if error.filename is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    path, reason = error.filename or "standard output", error.strerror or error
    _complain(f"{path}: {reason}; free some space or permit it, and run again.", words)
    return 1


def _complain(message: str, words: Sequence[str]) -> None:
    """Print one sentence on standard error, after the traceback if --traceback is given.

    Among several processes (torchrun) only the first prints.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if "--traceback" in words:
        traceback.print_exc()
    print(f"hessblocks: {printable(message)}", file=sys.stderr)


def _named(error: HessblocksError, words: Sequence[str]) -> str:
    """Write the message of an error; a field that is an option gets the name that users type."""
    field, _, rest = str(error).partition(":")
    if not isinstance(error, ArgumentError) or not words or words[0] not in app:
        return str(error)
    arguments = app[words[0]].assemble_argument_collection()
    is_option = any(option(field) in argument.names for argument in arguments)
    return f"{option(field)}:{rest}" if is_option else str(error)


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    """Print our own warnings, and any UserWarning of others, on standard error."""
    ours = category.__module__.startswith("hessblocks")
    if ours or category is UserWarning:
        shown = (printable if ours else printable_lines)(str(message))
        print(f"hessblocks: warning: {shown}", file=sys.stderr)


def sentence(error: CycloptsError) -> str:
    """Write a parsing error on one line."""
    match error:
        case cyclopts.ValidationError(argument=Argument() as argument, exception_message=reason):
            return f"{_name(argument)}: {reason}"
        case cyclopts.MissingArgumentError(argument=Argument() as argument, command_chain=chain):
            lack = "has no value" if _name(argument) in WORDS.get() else "is missing"
            names = chain or ("",)
            usage = TASKS.get(names[-1], {}).get("usage", "--help")
            return f"{_name(argument)} {lack}; type hessblocks {' '.join([*names, usage])}"
        case cyclopts.UnusedCliTokensError(unused_tokens=[*words]):
            blocks = WORDS.get()[:1] == ("compare",) and not checks.blocks(words)
            then = f"type --presets {','.join(words)}" if blocks else "an option begins with --"
            return f"{' '.join(words)}: nothing more was expected here; {then}."
    return " ".join(str(error).split())


def _name(argument: Argument) -> str:
    """Return the name of an option as a user types it; a positional argument has no dashes."""
    name = argument.names[0]
    return name if argument.field_info.is_keyword_only else name.lstrip("-")
