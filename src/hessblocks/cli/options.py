"""Options of the commands, taken from the fields of settings: name, type, range, default and help.

`taking` reads a command's signature. A parameter that is a dataclass of settings becomes one option for
each field, and the command is given the settings; `Of` takes a single field. What remains is written
with typer as usual.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from hessblocks.settings import (
    AtLeast,
    ByOptimiser,
    NoOption,
    Repeated,
    kinds,
    make,
    option,
)

GOES_ON = "Run folder; the same one again goes on where it stopped."
Out = Annotated[Path, typer.Option(help=GOES_ON)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Tracker = Annotated[
    str,
    typer.Option(help="Tracker that losses go to as well: tensorboard, wandb, trackio or none."),
]


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What a command shows."""

    json: bool = False
    """Print one JSON object and nothing else on standard output."""
    traceback: bool = False
    """Show the Python traceback of an error."""


@dataclass(frozen=True)
class Of:
    """Marks a parameter as the field of the same name."""

    settings: type
    """The dataclass that has the field."""


def taking(command: Callable[..., None]) -> Callable[..., None]:
    """A decorator that spells out the fields of settings in a command's signature."""
    own = inspect.signature(command, eval_str=True).parameters
    types = {
        name: getattr(one.annotation, "__origin__", one.annotation) for name, one in own.items()
    }

    def spelt_out(**given: Any) -> None:
        values = {n: _made(t, given) if is_dataclass(t) else given[n] for n, t in types.items()}
        command(**values)

    spelt = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in own.items()
        for option in _spelt(one, types[name])
    ]
    spelt_out.__name__, spelt_out.__doc__ = command.__name__, command.__doc__
    spelt_out.__signature__ = inspect.Signature(spelt)  # type: ignore[attr-defined]
    spelt_out.__annotations__ = {one.name: one.annotation for one in spelt}
    return spelt_out


def _spelt(parameter: inspect.Parameter, kind: Any) -> list[inspect.Parameter]:
    """The options in the place of a parameter; itself where it is written with typer."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    if is_dataclass(kind):
        return [option_of(*one) for one in _fields(kind)]
    single = [option_of(mark.settings, parameter.name) for mark in marks if isinstance(mark, Of)]
    return single or [parameter]


def _fields(settings: Any, prefix: str = "") -> Iterator[tuple[Any, str, str]]:
    """Every field of settings that is an option, and of what is nested in them: its dataclass, name and prefix."""
    for name, kind in kinds(settings).items():
        if is_dataclass(kind.type):
            yield from _fields(kind.type, kind.prefix)
        elif not kind.mark(NoOption):
            yield settings, name, prefix


def _made(settings: Any, given: Mapping[str, Any], prefix: str = "") -> Any:
    """The settings, from the values of all options."""
    values = {}
    for name, kind in kinds(settings).items():
        if is_dataclass(kind.type):
            values[name] = _made(kind.type, given, kind.prefix)
        elif prefix + name in given:
            values[name] = given[prefix + name]
    return make(settings, values)


def option_of(settings: Any, name: str, prefix: str = "") -> inspect.Parameter:
    """The option of a field.

    Args:
        settings: a dataclass.
        name: of the field.
        prefix: before the option's name.

    Returns:
        A parameter as typer reads it.
    """
    kind, help_text = kinds(settings)[name], meanings(settings)[name]
    type_, default, least = kind.type, getattr(settings, name), kind.mark(AtLeast)
    if kind.several:
        type_, default = str, ",".join(default)
    if own := kind.mark(ByOptimiser):
        type_, default = type_ | None, None
        help_text += f" [default: {_by_optimiser(own.defaults)}]"
    if repeated := kind.mark(Repeated):
        type_, default = list[str], list(default)
    told = typer.Option(
        option(repeated.name if repeated else prefix + name),
        help=help_text,
        min=least.least if least else None,
        max=least.most if least else None,
        show_default=default not in (None, []),
    )
    return inspect.Parameter(
        prefix + name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[type_, told],
        default=default,
    )


def _by_optimiser(defaults: Mapping[str, float]) -> str:
    if len(defaults) == 1:
        return f"{next(iter(defaults.values())):g}"
    return ", ".join(f"{value:g} for {name}" for name, value in defaults.items())


@cache
def meanings(settings: Any) -> dict[str, str]:
    """The line under each field of a dataclass, those of its bases among them."""
    found = {}
    for base in reversed(settings.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, line in pairwise(getattr(node, "body", [])):
            if isinstance(field, ast.AnnAssign) and isinstance(line, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(line.value).split())
    return found
