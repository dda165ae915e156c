"""Base class of results: a one-line summary, rows for pandas or notebooks, files to save and read.

A JSON file holds the class name of a result and its fields. A safetensors file holds them as JSON
in its metadata, and the tensors in binary form.
"""

from __future__ import annotations

import abc
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import safetensors.torch
import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage.files import atomic_path, damaged, parse_json, read_object, write_text
from hessblocks.storage.tables import write_table
from hessblocks.typed import JSON, typed

if TYPE_CHECKING:
    import pandas as pd

KIND = "hessblocks"
"""Key of the class name in the file of a result."""
DTYPES = {str(entry): entry for entry in vars(torch).values() if isinstance(entry, torch.dtype)}
SHOWN = 20
"""Most rows of a table in a notebook."""


class Tabular(abc.ABC):
    """Result that prints as one line and has a table of rows.

    Examples:
        >>> class Squares(Tabular):
        ...     def to_rows(self):
        ...         return [{"n": n, "square": n * n} for n in range(3)]
        ...     def __str__(self):
        ...         return "3 squares"
        >>> Squares()
        3 squares
    """

    rows_alone: ClassVar[bool] = False
    """Whether files hold only the rows, since other fields are models or functions."""

    @abc.abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """List tidy rows: one value per row, with the columns that identify it."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Describe the result on one line."""

    def __repr__(self) -> str:
        """Describe the result on one line."""
        return str(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Convert the rows to a pandas data frame.

        Returns:
            A data frame with the rows of `to_rows`.

        Raises:
            RunError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise RunError("to_dataframe: pandas is not installed; pip install pandas") from error
        return pd.DataFrame(self.to_rows())

    def save(self, path: str | Path) -> None:
        """Write the result to a file for `hessblocks.read`, or its rows to a CSV table.

        Args:
            path: path that ends in .json, .safetensors (for results with tensors, such as
                spectra) or .csv (rows only). The file is written whole or not at all.

        Raises:
            ArgumentError: `path` has another ending, or is JSON for a result with tensors.
            RunError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix == ".csv":
            rows = self.to_rows()
            write_table(path, list(dict.fromkeys(name for row in rows for name in row)), rows)
            return
        tensors: dict[str, Tensor] = {}
        kind, content = self._content()
        written: dict[str, Any] = {KIND: kind, "fields": _plain(content, tensors)}
        if path.suffix == ".safetensors":
            # clones: safetensors refuses views that share a storage
            copies = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
            with atomic_path(path) as temporary:
                save_file(copies, temporary, metadata={KIND: json.dumps(written)})
        elif path.suffix == ".json" and not tensors:
            write_text(path, json.dumps(written, indent=1) + "\n")
        else:
            raise ArgumentError(
                "path: expected a name that ends in .csv, .safetensors, or without tensors .json, "
                f"got {str(path)!r}"
            )

    def _content(self) -> tuple[str, dict[str, Any]]:
        """Return class name and fields for the file; those of `Rows` if only rows are stored."""
        if is_dataclass(self) and not self.rows_alone:
            names = [field.name for field in fields(self)]
            return type(self).__name__, {name: getattr(self, name) for name in names}
        return Rows.__name__, {"line": str(self), "rows": self.to_rows()}

    def _first(self, count: int) -> tuple[list[dict[str, Any]], int]:
        """Return the first rows and the number of all rows; subclasses avoid making long tables."""
        rows = self.to_rows()
        return rows[:count], len(rows)

    def _repr_html_(self) -> str | None:
        """Show the summary line and the first rows in a notebook, if pandas is installed."""
        if find_spec("pandas") is None:
            return None  # the notebook shows the line
        import pandas as pd

        rows, count = self._first(SHOWN)
        frame = pd.DataFrame(rows).astype(object).fillna("")
        table = frame.to_html(index=False, float_format="{:.4g}".format)
        hidden = count - SHOWN
        rest = f"<p>and {hidden:,} more rows: .to_rows(), .to_dataframe()</p>" if hidden > 0 else ""
        return f"<p>{escape(str(self))}</p>{table}{rest}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Rows(Tabular):
    """Rows of a result that cannot be rebuilt from a file, such as a training callback."""

    line: str
    """Summary line of the result."""
    rows: Sequence[Mapping[str, float | bool | str | None]]
    """Rows of the result."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return [dict(row) for row in self.rows]

    def __str__(self) -> str:
        """Return the summary line."""
        return self.line


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Convert a value to JSON; a tensor is added to `tensors` and replaced by its name there."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        pairs = [(_plain(key, tensors), _plain(entry, tensors)) for key, entry in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key, _ in pairs) else pairs
    if isinstance(value, list | tuple):
        return [_plain(entry, tensors) for entry in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name), tensors) for field in fields(value)}
    if hasattr(value, "detach"):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu()
        return name
    return str(value)  # a path, or a dtype of torch


def read_result(path: Path, kinds: Mapping[str, type[Tabular]]) -> Tabular:
    """Read a result that `Tabular.save` wrote; nothing in the file is executed.

    Args:
        path: JSON or safetensors file.
        kinds: class name in the file → class.

    Returns:
        The result, with its tensors on the CPU.

    Raises:
        ArgumentError: `path` has another ending.
        RunError: the file cannot be read, is damaged, or is not of one of these classes.
    """
    if path.suffix not in (".json", ".safetensors"):
        raise ArgumentError(
            f"path: expected a .json or .safetensors file, got {str(path)!r}; .csv holds rows alone"
        )
    try:
        if path.suffix == ".json":
            written, tensors = read_object(path), dict[str, Tensor]()
        else:
            tensors, metadata = opened(path)
            written = parse_json(metadata[KIND])
        result: Tabular = _fields(kinds[written[KIND]], written["fields"], tensors)
        str(result), result._first(1)  # these fail if the fields do not fit together
    except (RunError, MemoryError):
        raise
    except Exception as error:  # any error: the file may have any content
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise damaged(path, None, f"not a result that hessblocks saved ({why})") from error
    return result


def _fields(kind: Any, content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Build a result from its stored fields; a tensor stands there by its name in `tensors`."""
    converter, lengths = JSON.copy(), dict[str, int]()
    converter.register_structure_hook_func(
        lambda hint: hasattr(hint, "dim_str"),
        lambda name, hint: _fitting(tensors[name], hint.dim_str.split(), lengths),
    )
    converter.register_structure_hook(torch.dtype, lambda name, _: DTYPES[name])
    if is_dataclass(kind) and isinstance(kind, type):
        return typed(converter, kind, content)
    hints = get_type_hints(kind.__init__)
    return kind(**{name: typed(converter, hints[name], entry) for name, entry in content.items()})


def _fitting(tensor: Tensor, names: Sequence[str], lengths: dict[str, int]) -> Tensor:
    """Return the tensor; raise ValueError if an axis differs from another axis of its name."""
    pairs = [] if "..." in names else zip(names, tensor.shape, strict=True)
    alike = all(lengths.setdefault(name, length) == length for name, length in pairs)
    if not (alike and tensor.is_floating_point()):
        raise ValueError(f"got {tensor.dtype} of shape {tuple(tensor.shape)} beside {lengths}")
    return tensor


NamedTensors = dict[str, Shaped[Tensor, "..."]]


def write_tensors(path: Path, tensors: NamedTensors, run: str) -> None:
    """Write tensors, whole or not at all.

    Args:
        path: file to write.
        tensors: tensors by name.
        run: identity of the run.

    Raises:
        RunError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(tensors, metadata={"of": _tag(run, tensors)}))


def read_tensors(path: Path, run: str) -> NamedTensors:
    """Read the tensors of a run.

    Args:
        path: file of `write_tensors`.
        run: identity of the run.

    Returns:
        The tensors by name.

    Raises:
        RunError: the file is damaged, or of another run.
    """
    try:
        tensors, metadata = opened(path)
        if metadata == {"of": _tag(run, tensors)}:
            return tensors
    except (SafetensorError, OSError):
        pass
    raise RunError(f"{path}: damaged, or of another run; remove it and run the same command again.")


def opened(path: Path) -> tuple[NamedTensors, dict[str, str]]:
    """Read the tensors of a safetensors file by name, and its metadata."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _tag(run: str, tensors: NamedTensors) -> str:
    # safetensors itself has no checksum
    return f"{run} {hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()}"
