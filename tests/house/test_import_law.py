"""Imports point one way: a room imports only what stands below it, and through its face."""

from pathlib import Path

import pytest

from tests.house.source import (
    BOTH,
    ROOT,
    STUDIES,
    Import,
    circle,
    files,
    imports,
    module_of,
    package_of,
    targets,
)

BASE = {
    "attention_calls",
    "errors",
    "conventions",
    "escape",
    "malloc",
    "progress",
    "quiet",
    "statistics",
}
BASE |= {"typed", "_version"}
"""Modules at the root, below all packages; `tests` below hold them to importing nothing but each
other."""
OPEN = {"settings", "storage"}
"""Packages that import no other, so that all may import them."""
LAW: dict[str, set[str]] = {
    "architectures": set(),
    "settings": set(),
    "storage": set(),
    "figures": set(),
    "drawing": {"figures"},
    "linalg": {"figures", "drawing"},
    "blocks": set(),
    "signal": {"figures", "drawing"},
    "data": set(),
    "theory": {"linalg"},
    "models": {"architectures", "blocks"},
    "curvature": {"architectures", "linalg", "theory", "figures", "drawing"},
    "tensor_formats": set(),
    "export": {"blocks", "models", "tensor_formats"},
    "bill": {"blocks", "linalg", "curvature", "tensor_formats", "export", "figures", "drawing"},
    "training": {"blocks", "models", "data", "curvature", "signal"},
    "report": {"figures", "drawing"},
    "inspection": {
        "blocks", "models", "data", "linalg", "theory", "curvature", "tensor_formats", "export",
        "bill", "signal", "training",
    },
    "simplify": {"blocks", "models", "data", "linalg", "export", "training"},
    "cli": {
        "linalg", "blocks", "theory", "curvature", "tensor_formats", "export", "bill", "signal",
        "models", "data", "training", "inspection", "report", "simplify",
    },
}  # fmt: skip
"""Package → the packages that it may import; the base and the settings are open to all."""
ROOMS: dict[str, set[str]] = {
    "linalg.operators": set(),
    "linalg.kronecker": {"operators"},
    "linalg.estimators": {"operators"},
    "linalg.spectra": {"operators", "estimators"},
    "curvature.attention": set(),
    "curvature.closed": {"attention"},
    "curvature.model_state": set(),
    "curvature.groups": {"model_state"},
    "curvature.losses": {"closed"},
    "curvature.witness": {"groups"},
    "curvature.products": {"closed", "groups", "model_state", "losses", "witness"},
    "curvature.sampled": {"groups", "model_state", "products", "losses"},
    "curvature.last_layer": {"closed", "groups", "model_state", "products", "losses"},
    "curvature.exact": {"groups", "model_state", "products", "last_layer", "losses"},
    "cli.commands": set(),
}
"""Room of a package → the rooms beside it that it may import."""
STUDY_ROOMS: dict[str, set[str]] = {
    "engine": set(),
    "data": set(),
    "shared": {"engine", "data"},
    "masked": {"data", "shared"},
    "growth": {"engine", "data", "shared"},
    "hessian_paper": {"engine", "data", "shared", "growth"},
    "blocks_paper": {"engine", "data", "shared", "masked"},
    "our_questions": {"engine", "data", "shared", "growth"},
    "pretrained": {"engine", "data", "shared"},
    "bill": {"engine", "data", "shared"},
    "gallery": set(),
}
"""Room of the second distribution → the rooms beside it that it may import."""
TERMINAL = "hessblocks.cli.terminal"
"""The one module that the studies enter: it loads torch, so that the face of its package does not
import it."""
INSIDE: dict[tuple[str, str], str] = {}
"""(file, module) → why the file reaches past a face; at most ten."""


def packages() -> list[str]:
    return sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())


def test_a_package_imports_only_what_stands_below_it() -> None:
    upwards = {}
    for package in packages():
        below = LAW[package] | BASE | OPEN | {package}
        for path in files(ROOT / package):
            parts = [[*one.module.split("."), str(one.name)] for one in imports(path)]
            if above := {part[1] for part in parts} - below:
                upwards[str(path.relative_to(ROOT))] = sorted(above)
    assert upwards == {}


def test_an_open_package_imports_no_other() -> None:
    assert not any(LAW[package] for package in OPEN)


def test_the_law_has_no_circle_and_names_every_package() -> None:
    assert set(LAW) == set(packages())
    assert not circle({Path(p): {Path(q) for q in below} for p, below in LAW.items()})


def test_the_base_modules_import_nothing_of_ours_but_each_other() -> None:
    for name in BASE:
        for one in imports(ROOT / f"{name}.py"):
            assert one.module.removeprefix("hessblocks.") in BASE, f"{name} imports {one.module}"


def test_a_room_imports_only_the_rooms_below_it() -> None:
    rooms = {
        str(p.parent.relative_to(ROOT)).replace("/", ".") for p in ROOT.glob("*/*/__init__.py")
    }
    assert rooms == set(ROOMS)
    for room, below in ROOMS.items():
        package, _, own = room.partition(".")
        for path in files(ROOT / package / own):
            for one in imports(path):
                parts = [*one.module.split("."), one.name][1:]
                if parts[0] == package and f"{package}.{parts[1]}" in ROOMS:
                    assert parts[1] in below | {own}, (
                        f"{path.relative_to(ROOT)} imports {one.module}"
                    )


def test_a_room_of_the_studies_imports_only_the_rooms_below_it() -> None:
    assert {path.parent.name for path in STUDIES.glob("*/__init__.py")} == set(STUDY_ROOMS)
    for room, below in STUDY_ROOMS.items():
        for path in files(STUDIES / room):
            for one in imports(path, STUDIES):
                asked = [*one.module.split("."), str(one.name)][1]
                assert asked in below | {room}, f"{path.relative_to(STUDIES)} imports {one.module}"


def foreign_inside(root: Path) -> dict[str, set[str]]:
    """File → what it imports of the core besides its packages' faces and the modules at the core's
    root."""
    found = {path: {name for one in imports(path) if (name := inner(one))} for path in files(root)}
    return {str(path.relative_to(root)): names for path, names in found.items() if names}


def inner(one: Import) -> str:
    """The module inside a package that an import enters; empty where it stays outside."""
    place = ROOT.joinpath(*one.module.split(".")[1:])
    face = place / "__init__.py"
    offered = face.is_file() and one.name in {own.name for own in imports(face)}
    own = one.name and not offered and (place / f"{one.name}.py", place / one.name / "__init__.py")
    name = f"{one.module}.{one.name}" if own and any(map(Path.is_file, own)) else one.module
    return name if name.count(".") > 1 and name != TERMINAL else ""


def test_the_studies_enter_the_core_by_its_faces() -> None:
    assert foreign_inside(STUDIES) == {}


def test_the_core_does_not_know_the_studies() -> None:
    assert [path for path in files() if imports(path, STUDIES)] == []


@pytest.mark.parametrize(
    "line",
    [
        "from hessblocks.curvature.map import curvature_map",
        "from hessblocks.curvature import map",
        "def f():\n    import hessblocks.linalg.operators.operator",
        "from hessblocks.cli import extensions",
    ],
)
def test_a_planted_import_of_the_inside_is_seen(tmp_path: Path, line: str) -> None:
    root = plant(tmp_path / "hessblocks_toy", a__user=line)
    assert set(foreign_inside(root)) == {"a/user.py"}
    root = plant(tmp_path / "hessblocks_good", a__user="from hessblocks.curvature import Hessian")
    assert foreign_inside(root) == {}


def reaches_past_a_face(root: Path) -> set[tuple[str, str]]:
    """(file, module) of every import that names a module inside a package which the file is not
    in."""
    names = {module_of(path, root): path for path in files(root)}
    found = set()
    for path in files(root):
        home = package_of(path, root)
        for one in imports(path, root):
            inside = one.module
            asked = f"{one.module}.{one.name}"
            offered = {own.name for own in imports(names[one.module], root)}
            if asked in names and names[asked].name != "__init__.py" and one.name not in offered:
                inside = asked  # the module itself is imported
            face = inside.rpartition(".")[0] if names[inside].name != "__init__.py" else inside
            while face != root.name and not f"{home}.".startswith(f"{face}."):
                if face != inside:
                    found.add((str(path.relative_to(root)), inside))
                face, inside = face.rpartition(".")[0], face
    return found


def test_a_package_is_entered_by_its_face() -> None:
    assert len(INSIDE) <= 10
    assert reaches_past_a_face(ROOT) == set(INSIDE)
    assert reaches_past_a_face(STUDIES) == set()


@pytest.mark.parametrize("root", BOTH, ids=lambda root: root.name)
def test_no_file_stands_in_a_circle(root: Path) -> None:
    assert [str(path.relative_to(root)) for path in circle(targets(root))] == []


def plant(root: Path, **sources: str) -> Path:
    for name, text in sources.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, root):
            (folder / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return root


def test_a_planted_import_past_a_face_is_seen(tmp_path: Path) -> None:
    root = plant(tmp_path / "toy", a__inner="x = 1", b__user="from toy.a.inner import x")
    assert reaches_past_a_face(root) == {("b/user.py", "toy.a.inner")}
    root = plant(tmp_path / "other", a__inner="x = 1", b__user="from other.a import inner")
    assert reaches_past_a_face(root) == {("b/user.py", "other.a.inner")}


@pytest.mark.parametrize(
    "back",
    [
        "from toy.a.first import x",
        "def f():\n    from toy.a.first import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.a import first",
    ],
)
def test_a_planted_circle_is_seen(tmp_path: Path, back: str) -> None:
    root = plant(tmp_path / "toy", a__first="from toy.b.second import y", b__second=back)
    assert {path.stem for path in circle(targets(root))} == {"first", "second"}
