"""Write self-contained HTML pages from templates."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.escape import printable_lines
from hessblocks.figures import Figure, Heatmap, page_text
from hessblocks.storage import read_object, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

ABSENT = "–"
"""Text for a missing value."""
TEN = 10
"""Most rows of a table on the terminal; the page shows as many, and folds the rest."""


def write_page(
    folder: AnyPath,
    template: str,
    package: str = "hessblocks.report",
    files: Sequence[str] = (),
    **content: Any,
) -> Path:
    """Write report.html into a folder; all text that is not marked as safe is escaped.

    Args:
        folder: folder of the results.
        template: name of the template, which fills the blocks of base.html.
        package: package whose folder `templates` contains the template.
        files: files with the numbers of the page, which links those that exist.
        **content: variables of the template, with `title`, `heading` and `headline`.

    Returns:
        The path of report.html.

    Raises:
        RunError: the file cannot be written.
    """
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("hessblocks.report")]),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = Path(folder, "report.html")
    files = [name for name in files if Path(folder, name).exists()]
    write_text(page, templates.get_template(template).render(content, files=files))
    return page


Row = TypeVar("Row")
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows."""


def table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> Table:
    """Make headings and cells of rows, without empty columns; a column maps a row to its cell."""
    listed = list(rows)
    cells = {heading: [cell(row) for row in listed] for heading, cell in columns.items()}
    shown = {heading: column for heading, column in cells.items() if {*column} - {"", ABSENT}}
    return tuple(shown), list(zip(*shown.values(), strict=True))


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Page of a command, and what the terminal shows of its results."""

    write: Callable[[AnyPath], Path]
    """Writes figures/*.png, figures/*.svg and report.html of a folder, from its files alone."""
    lines: Callable[[Any], list[Table | str]]
    """Makes sentences and tables for the terminal."""
    summary: Callable[[Any], dict[str, Any]] = dict
    """Makes the JSON object of the results, with their folder as `out`."""
    read: Callable[[Path], Any] = lambda out: read_object(out / "summary.json") | {"out": str(out)}
    """Reads the results of a finished folder."""


def summary_page(
    command: str,
    files: Sequence[str],
    headline: Callable[[Mapping[str, Any]], tuple[str, ...]],
    table: Callable[[Mapping[str, Any]], Table],
    content: Callable[[Path, Mapping[str, Any]], dict[str, Any]],
) -> RunPage:
    """Make the page of a command that writes summary.json.

    Args:
        command: name of the command and of its template.
        files: files with the numbers of the page, which links them if they exist.
        headline: makes sentences from summary.json.
        table: makes the main table.
        content: draws figures into the folder, and makes further variables of the template.

    Returns:
        The page; its `write` raises `RunError` where a file is missing or damaged.
    """

    def write(folder: AnyPath) -> Path:
        folder = Path(folder)
        results, config, environment = (
            read_object(folder / f"{name}.json") for name in ("summary", "config", "environment")
        )
        try:
            if results["model"] == "model":  # as a run of `train` calls it: name the run too
                results["model"] = "/".join(Path(config["source"]).parts[-2:])
            return write_page(
                folder,
                f"{command}.html",
                title=f"hessblocks {command}: {results['model']}",
                headline=headline(results),
                table=table(results),
                found=results,
                files=files,
                settings=config,
                environment=environment,
                **content(folder, results),
            )
        except (KeyError, TypeError, UndefinedError) as error:
            fault = f"no {error}" if isinstance(error, KeyError) else error
            raise RunError(
                f"{folder}: damaged ({fault}); run the same `hessblocks {command}` again."
            ) from error

    def lines(results: Mapping[str, Any]) -> list[Table | str]:
        columns, rows = table(results)
        more = [f"{len(rows) - TEN} more rows on the page"] if len(rows) > TEN else []
        return [*headline(results), *([(columns, rows[:TEN])] if rows else []), *more]

    return RunPage(write=write, lines=lines)


def layer_map(maps: Mapping[str, Mapping[str, tuple[float, ...]]], label: str) -> Figure | None:
    """Draw maps of numbers over layers: a panel per title, a row per kind; None without kinds."""
    panels = [
        Heatmap(
            title=title,
            values=tuple(kinds.values()),
            label=label,
            rows=tuple(kinds),
            columns=tuple(map(str, range(len(next(iter(kinds.values())))))),
        )
        for title, kinds in maps.items()
        if kinds
    ]
    if not panels:
        return None
    size = (9, 1.4 + 0.3 * len(panels[0].rows))
    return Figure(title="", caption="", panels=tuple(panels), size=size, columns=1)


def log10(value: float | None) -> float:
    """Take the logarithm for a map of colours, where NaN is left blank."""
    return math.log10(value) if value and value > 0 else math.nan


def _visible(value: Any) -> Any:
    """Make the control characters of a text visible, unless it is marked as safe."""
    return printable_lines(value) if type(value) is str else value


def inlined(picture: bytes) -> str:
    """Encode an SVG in base64 for an image tag, where scripts do not run."""
    return base64.b64encode(picture).decode("ascii")


def drawn_picture(figure: Figure | Drawn | None, folder: AnyPath, name: str) -> list[str]:
    """Draw a figure to figures/<name>.png and .svg of a folder, and encode it for its page.

    Args:
        figure: figure as data, or a figure of matplotlib; None draws nothing.
        folder: folder of the page.
        name: file name without suffix.

    Returns:
        Images encoded by `inlined`, without title and caption: for wide screens and, of a figure as
        data, for phones.

    Raises:
        RunError: a file cannot be written.
    """
    if figure is None:
        return []
    from hessblocks.drawing import draw, page_picture, write_picture  # importing matplotlib is slow

    phone = [draw(figure.for_phone(), 0)] if isinstance(figure, Figure) else []
    drawn = draw(figure) if isinstance(figure, Figure) else figure
    write_picture(drawn, Path(folder, "figures"), name)
    return [inlined(page_picture(drawing)) for drawing in (drawn, *phone)]


def shown_figure(figure: Figure, folder: AnyPath) -> dict[str, Any]:
    """Draw a figure to files and for its page; return variables of the template."""
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": Markup(page_text(figure.caption)),
        "picture": drawn_picture(figure, folder, figure.name),
    }
