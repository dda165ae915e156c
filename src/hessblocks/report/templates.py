"""Pages of HTML that need no other file and no network: one environment for all templates."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from hessblocks.conventions import AnyPath
from hessblocks.escape import printable_lines
from hessblocks.storage import write_text


def write_page(
    folder: AnyPath, template: str, package: str = "hessblocks.report", **content: Any
) -> Path:
    """Write report.html of a folder; everything that is not marked as safe is escaped.

    Args:
        folder: of the results.
        template: name of the page's template, which fills the blocks of base.html.
        package: whose folder `templates` holds it.
        **content: what the template shows, with `title`, `heading` and `headline`.

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
    write_text(page, templates.get_template(template).render(content))
    return page


def _visible(value: Any) -> Any:
    """Control characters of a text are shown; what is marked as safe stays."""
    return printable_lines(value) if type(value) is str else value


def inlined(picture: bytes) -> str:
    """Encode an SVG in base64, to stand inside the page as an image; scripts do not run there."""
    return base64.b64encode(picture).decode("ascii")
