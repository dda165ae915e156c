"""What docs/make_site.py makes of other files; the site around it is built by slow tests."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import hessblocks as hb

ROOT = Path(__file__).parents[2]
LACKING = [name for name in ("mkdocs", "jupytext", "griffe") if not find_spec(name)]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    found = spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert found
    assert found.loader
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(maker: ModuleType) -> dict[str, str]:
    """Name → content."""
    return dict(maker.made())


@pytest.mark.slow
def test_each_example_is_there_as_it_is_as_a_notebook_and_as_a_page(made: dict[str, str]) -> None:
    for script in (ROOT / "examples").glob("*.py"):
        cells = json.loads(made[f"examples/{script.stem}.ipynb"])["cells"]
        code = "\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "code")
        text = script.read_text(encoding="utf-8")
        wanted = [line for line in text.splitlines() if line and line[0] != "#"]
        assert [line for line in code.splitlines() if line and line[0] != "#"] == wanted
        assert made[f"examples/{script.name}"] == text
        assert made[f"examples/{script.stem}.md"].startswith("# ")


def test_the_reference_has_a_page_of_each_package_and_every_public_name(
    made: dict[str, str],
) -> None:
    packages = {path.stem for path in (ROOT / "src" / "hessblocks").iterdir()}
    offered = {name for name in hb.__all__ if callable(getattr(hb, name))} - packages
    assert len(offered) > 50
    for name in offered:
        assert re.search(rf"`hb\.{name}`\]\([^)]+\): [A-Z]", made["api/index.md"]), name
    pages = [text for name, text in made.items() if name.startswith("api/")]
    assert len(pages) > 10


def test_indices_stand_below_the_line_and_code_stays_as_it_is(maker: ModuleType) -> None:
    given = "The H_o of W_Q and `w_query`"
    assert maker.with_indices(given) == "The H<sub>o</sub> of W<sub>Q</sub> and `w_query`"
