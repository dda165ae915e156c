"""The recipes of CONTRIBUTING.md, each done in a copy of the packages: what they name is enough,
and all of it needed."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house.recipes import PRESET, RECIPES, Recipe
from tests.house.source import BOTH, ROOT, circle, files, targets
from tests.house.test_import_law import reaches_past_a_face
from tests.house.test_rooms import crowded

TOP = ROOT.parents[1]
PAGE = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
LONG = {"study", "figure", "preset", "part", "architecture"}
"""Their proofs load models, run a whole study or write a whole page."""
RUN = """
import importlib.util, json, os, sys, tempfile, traceback
import torch
import hessblocks as hb

assert hb.__file__.startswith(os.environ["PYTHONPATH"].split(":")[0]), hb.__file__
studies = importlib.util.find_spec("hessblocks_studies").origin
assert studies.startswith(os.environ["PYTHONPATH"].split(":")[1]), studies
said = {}
for name, proof in json.load(sys.stdin).items():
    torch.manual_seed(0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            exec(proof, {"hb": hb, "torch": torch, "folder": folder})
        said[name] = ""
    except Exception:
        said[name] = traceback.format_exc()
print(json.dumps(said))
"""


def sections() -> dict[str, str]:
    """Text of each recipe of the page, by the word after 'To add a'."""
    found = re.split(r"^### To add an? ([\w ]+)\n", PAGE, flags=re.MULTILINE)[1:]
    texts = [text.partition("\n## ")[0] for text in found[1::2]]
    return dict(zip(found[::2], texts, strict=True))


def follow(recipe: Recipe, top: Path) -> None:
    """Write what a recipe says into a copy of the packages."""
    for name, pairs in recipe.edits.items():
        path = top / name
        for line, text in pairs:
            if not line:
                assert not path.exists(), f"{name} is there already"
                path.write_text(text, encoding="utf-8")
                continue
            before = path.read_text(encoding="utf-8")
            assert before.count(line) == 1, f"{name} has {before.count(line)} lines {line!r}"
            path.write_text(before.replace(line, text + line), encoding="utf-8")


def proved(top: Path, recipes: tuple[Recipe, ...] = RECIPES) -> dict[str, str]:
    """What went wrong with each proof, empty where nothing did."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps({recipe.name: recipe.proof for recipe in recipes}),
        env={**os.environ, "PYTHONPATH": f"{top}/src:{top}/experiments/src:{TOP}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return said


def copied(top: Path) -> Path:
    """Copy both packages into a folder, at their places; returns the folder."""
    for root in BOTH:
        place = top / root.relative_to(TOP)
        shutil.copytree(root, place, ignore=shutil.ignore_patterns("__pycache__"))
    return top


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of both packages, in which all recipes were followed."""
    made = copied(tmp_path_factory.mktemp("recipes"))
    for recipe in RECIPES:
        follow(recipe, made)
    return made


@pytest.fixture(scope="module")
def said(top: Path) -> Callable[[bool], dict[str, str]]:
    """What went wrong with the proofs that are long, or with the others: a process for each."""

    @functools.cache
    def of(long: bool) -> dict[str, str]:
        return proved(top, tuple(one for one in RECIPES if (one.name in LONG) == long))

    return of


def test_each_recipe_of_the_page_is_followed() -> None:
    assert set(sections()) == {recipe.name for recipe in RECIPES}


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in LONG else [])
        for one in RECIPES
    ],
)
def test_a_recipe_that_is_followed_works(
    recipe: Recipe, said: Callable[[bool], dict[str, str]]
) -> None:
    assert said(recipe.name in LONG)[recipe.name] == ""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_names_the_files_that_it_touches(recipe: Recipe) -> None:
    named = set(re.findall(r"`((?:experiments/)?src/[\w./]+)`", sections()[recipe.name]))
    new = {name for name, pairs in recipe.edits.items() if not pairs[0][0]}
    folders = {f"{Path(name).parent}/" for name in new}
    assert named == set(recipe.edits) - new | folders


@pytest.mark.parametrize("root", BOTH, ids=lambda root: root.name)
def test_what_is_added_keeps_the_laws(top: Path, root: Path) -> None:
    package = top / root.relative_to(TOP)
    assert not circle(targets(package))
    assert not crowded(package)
    assert reaches_past_a_face(package) <= reaches_past_a_face(root)
    assert len(files(package)) > len(files(root))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PRESET], ids=lambda recipe: recipe.name)
def test_a_recipe_that_is_not_followed_is_seen(recipe: Recipe, tmp_path: Path) -> None:
    assert "AssertionError" in proved(copied(tmp_path), (recipe,))[recipe.name]
