"""Turn the settings dataclasses of a command into options of cyclopts.

`taking` passes the dataclasses in a command's signature to cyclopts. Each class becomes a panel of
the help. Each field becomes an option with the field's type, default and docstring. `_parameter`
adds completions, converters, choices and the panel.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from hessblocks import settings
from hessblocks.cli import checks
from hessblocks.cli.checks import PRESETS
from hessblocks.conventions import PARTS

WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""Words of the present command, after `hessblocks`."""
KNOWN = {
    "preset": PRESETS,
    "presets": PRESETS,
    "device": ("auto", "cpu", "cuda"),
    "report_to": settings.TRACKERS,
    "size_of": settings.SIZES["gguf"],
    "position": ("learned", "sinusoidal", "rotary", "no"),
    "parts": PARTS,
    "curvature_groups": settings.ROLES,
}
"""Field or parameter → shell completions; other values may be valid too."""
CHECKS: dict[str, Callable[[Any], str]] = {
    "data": checks.text, "also": checks.text, "merge": checks.saved, "against": checks.saved,
    "original": checks.saved,
}  # fmt: skip
"""Field → check of what is typed."""
SHARES = ("save", "warmup")
"""Fields that may be typed in percent."""


@dataclass(frozen=True)
class Names:
    """Shell completion of names, also after a comma."""

    names: tuple[str, ...]

    def __call__(self, context: Any) -> Iterator[str]:
        """Yield completions of the last word of a list with commas."""
        before, comma, _ = context.incomplete.rpartition(",")
        return (f"{before}{comma}{name}" for name in self.names)


def completer(name: str) -> Names | None:
    """Return the shell completion of a field or parameter; None if it has none."""
    return Names(KNOWN[name]) if name in KNOWN else None


def listed(_: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read words with commas, of the last option where it is repeated."""
    return settings.words(tokens[-1].value)


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number; cyclopts would take 2.5 for 2."""
    try:
        return int(tokens[-1].value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {tokens[-1].value!r}") from None


def share(_: Any, tokens: Sequence[Token]) -> float:
    """Read a share: 0.15, or 15%."""
    word = tokens[-1].value
    try:
        return float(f"{word[:-1]}e-2" if word.endswith("%") else word)
    except ValueError:
        raise ValueError(f"expected a share such as 0.15 or 15%, got {word!r}") from None


def within(help_text: str, *ranges: settings.Range) -> Parameter:
    """Make the parameter of an integer option that is not a field of settings."""

    def check(_: Any, value: int) -> None:
        for mark in ranges:
            if refusal := mark.refusal(value):
                raise ValueError(refusal)

    return Parameter(converter=whole, validator=check, help=help_text)


def several(name: str) -> Parameter:
    """Make the parameter of a tuple option that is typed as words with commas."""
    return Parameter(
        converter=listed,
        n_tokens=1,
        metavar="A,B,...",
        show_default=",".join,
        completer=completer(name),
    )


def checked(check: Callable[[Any], str], **more: Any) -> Parameter:
    """Make the parameter of an option whose value is checked before torch is loaded."""

    def validate(_: Any, value: Any) -> None:
        if value not in (None, ()) and (refusal := check(value)):
            raise ValueError(refusal)

    return Parameter(validator=validate, **more)


PRESETS_HELP = (
    "Names of blocks, with commas; `hessblocks presets` lists them. Brackets set fields of one "
    "block: sas[mlp.gated=true]. FILE.json is a block of your own, the output of "
    "BlockConfig.to_dict()."
)
RESUMES = "Run folder; a run that was stopped there is resumed."
SAVED = (
    "A folder that save_pretrained wrote, a GGUF file, or a name in the local Hugging Face cache"
)
Model = Annotated[str, checked(checks.saved, name="MODEL", help=f"{SAVED}.")]
Text = Annotated[Path, checked(checks.text, help="File or folder of text, typical for the model.")]
Out = Annotated[Path, checked(checks.out, help=RESUMES)]
Device = Annotated[
    str, checked(checks.device, help="auto, cpu or cuda.", completer=completer("device"))
]
SeedOption = Annotated[int, within("Random seed of weights and data order.", *settings.SEED)]
Tracker = Annotated[
    str,
    checked(
        checks.tracker,
        help="Experiment tracker for the losses: tensorboard, wandb, trackio or none.",
        completer=completer("report_to"),
    ),
]


def out_of(command: str) -> Parameter:
    """Make the parameter of --out whose default is named by the model or block."""
    return checked(checks.out, help=f"{RESUMES} [default: runs/{command}]", show_default=False)


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Output."""

    json: bool = False
    """Print only one JSON object on standard output."""
    traceback: bool = False
    """Show the Python traceback of an error."""


def taking(command: Callable[..., object]) -> None:
    """Let cyclopts read the settings of a command from options; a second call changes nothing."""
    signature = inspect.signature(command, eval_str=True)
    read = [
        _panel(parameter, order) if is_dataclass(parameter.annotation) else parameter
        for order, parameter in enumerate(signature.parameters.values())
    ]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in read}
    command.__signature__ = signature.replace(parameters=read)  # type: ignore[attr-defined]


def _panel(parameter: inspect.Parameter, order: float) -> inspect.Parameter:
    kind: Any = parameter.annotation
    return parameter.replace(annotation=_described(kind, order), default=settings.make(kind, {}))


def _described(record: Any, order: float) -> Any:
    """Make a subclass of a settings class with annotations for cyclopts; it builds the settings."""
    fields = {}
    for name, kind in settings.kinds(record).items():
        if is_dataclass(kind.type):
            fields[name] = _described(kind.type, order + 0.5)
        else:
            # settings turn words into numbers themselves; pydantic, if imported, would refuse them
            shown = tuple[Any, ...] if kind.several else kind.type
            fields[name] = Annotated[shown, _parameter(record, name, kind, order)]

    def from_options(_: type, **values: Any) -> Any:
        return settings.make(record, values)

    def unused(self: Any, **_: Any) -> None:
        """Replace the settings' `__init__`, whose annotations cyclopts cannot resolve here."""

    body = {"__new__": from_options, "__init__": unused, "__annotations__": fields}
    return Annotated[_Described(record.__name__, (record,), body), Parameter(name="*")]


class _Described(type):
    """Metaclass of these subclasses; instances of the settings count as their instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Accept instances of the settings, since pydantic, if imported, checks them."""
        return isinstance(instance, cls.__mro__[1])


def _parameter(record: Any, name: str, kind: settings.FieldKind, order: float) -> Parameter:
    """Make a field's `Parameter`: name, panel, choices, converter and completion."""
    if kind.mark(settings.NoOption):
        return Parameter(parse=False)
    repeated, choices = kind.mark(settings.Repeated), kind.mark(settings.OneOf)
    default = getattr(record, name)
    marks = [several(name) if kind.several else Parameter(completer=completer(name))]
    if choices and kind.several:
        marks.append(Parameter(completer=Names(choices.names)))
    elif choices:
        marks.append(Parameter(choices=choices.names))
    if kind.type in (int, int | None):
        marks.append(Parameter(converter=whole))
    elif name in SHARES:
        marks.append(Parameter(converter=share))
    elif default_of := kind.mark(settings.ByOptimiser):
        marks.append(Parameter(show_default=lambda _: default_of.text))
    if name in CHECKS:
        marks.append(checked(CHECKS[name]))
    if default is False or default == ():
        marks.append(Parameter(show_default=False))
    flag = settings.option(repeated.name if repeated else settings.prefix(record) + name)
    return Parameter.combine(*marks, Parameter(name=flag, group=_group(record, name, order)))


def _group(record: Any, name: str, order: float) -> Group:
    """Make the panel of a field; its title is the first docstring line of the declaring class."""
    bases = record.__mro__[-2::-1]
    number = next(i for i, base in enumerate(bases) if name in inspect.get_annotations(base))
    title = str(bases[number].__doc__).partition("\n")[0].rstrip(".")
    return Group(title, sort_key=order + number / 10)
