"""Say in one sentence what is wrong with a command line."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from cyclopts import (
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from hessblocks.errors import unknown_name

EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}


def sentence(error: CycloptsError) -> str:
    """Say what is wrong, which names are known and which of them is near."""
    match error:
        case UnknownCommandError(unused_tokens=[name, *_], app=app):
            if name.startswith("-"):
                return f"No such option: {name}"
            return _unknown_command(name, [each for each in app or () if not each.startswith("-")])
        case UnknownOptionError(token=token, argument_collection=arguments):
            return _unknown_option(token, arguments)
        case UnusedCliTokensError(unused_tokens=[*words]):
            return f"{' '.join(words)}: nothing more was expected here; an option begins with --."
        case MissingArgumentError(argument=Argument() as argument):
            known = ", ".join(_known(argument))
            end = f"; known: {known}." if known else "."
            return f"{_name(argument)}: expected a value, got none{end}"
        case CoercionError(argument=Argument() as argument, token=token) if token:
            return _unfit(argument, token)
        case ValidationError(argument=Argument() as argument, exception_message=reason):
            return f"{_name(argument)}: {reason}"
    return " ".join(str(error).split())


def _unknown_command(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"No such command {name!r}.{hint} Known: {', '.join(known)}."


def _unknown_option(token: Any, arguments: Iterable[Argument]) -> str:
    """Name the options that are near, or whose initials were given, as lr of learning-rate."""
    given = token.keyword or token.value
    known = [name for argument in arguments if argument.parse for name in argument.names]
    if token.source != "cli":
        given, place = f"--{given.strip('[]')}", f" in {token.source}"
    else:
        given, place = given.partition("=")[0], ""
    initials = [
        name for name in known if "".join(w[:1] for w in name[2:].split("-")) == given.lstrip("-")
    ]
    near = initials or difflib.get_close_matches(given, known)
    hint = f" (Possible options: {', '.join(near)})" if near else ""
    return f"No such option: {given}{place}{hint}"


def _unfit(argument: Argument, token: Any) -> str:
    name = _name(argument)
    if argument.parameter.choices:
        return str(unknown_name(name, token.value, _known(argument)))
    place = "" if token.source == "cli" else f" in {token.source}"
    hints = (argument.hint, *get_args(argument.hint))
    kinds = [kind for kind in EXPECTED if kind in hints]
    expected = EXPECTED[kinds[0]] if kinds else "another value"
    return f"{name}: expected {expected}, got {token.value!r}{place}."


def _name(argument: Argument) -> str:
    """Name an option as it is typed; a positional one without dashes."""
    name = argument.names[0]
    return name if argument.field_info.is_keyword_only else name.lstrip("-")


def _known(argument: Argument) -> tuple[str, ...]:
    """List the values that an option may have, or those that the shell is offered."""
    offered: tuple[str, ...] = getattr(argument.parameter.completer, "names", ())
    return argument.get_choices() or offered
