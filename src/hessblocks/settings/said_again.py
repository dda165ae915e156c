"""The words that give a command the settings that it had before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from hessblocks.settings.field_marks import ByOptimiser, NoOption, Repeated, kinds, option


def said_again(settings: Any, values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The options that give a command these settings, where they are not the defaults.

    Args:
        settings: a dataclass.
        values: by field, nested ones as mappings, as config.json has them too; what is left out is not said.
        prefix: before the options' names.

    Returns:
        Options and their values.
    """
    said: list[str] = []
    for name, kind in kinds(settings).items():
        value = values.get(name)
        if value is None or kind.mark(NoOption):
            continue
        if is_dataclass(kind.type):
            said += said_again(kind.type, value if isinstance(value, Mapping) else {}, kind.prefix)
        elif repeated := kind.mark(Repeated):
            entries = value if isinstance(value, list | tuple) else ()
            said += [word for one in entries for word in (option(repeated.name), str(one))]
        elif kind.several and isinstance(value, list | tuple):
            if tuple(value) != getattr(settings, name):
                said += [option(prefix + name), ",".join(map(str, value))]
        else:
            own = kind.mark(ByOptimiser)
            usual = own.defaults.get(str(values.get("optimiser")), value) if own else None
            default = usual if own else getattr(settings, name)
            if value != default:
                said += (
                    [option(prefix + name)]
                    if value is True
                    else [option(prefix + name), str(value)]
                )
    return said
