"""What `make release` builds: archives and wheels that work in an empty environment, far from the
repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_first_time import REPORT, SCRIPT, save_llama
from tests.test_readme import README, packaged

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path) -> str:
    """What a command prints, which succeeds without the repository on its path."""
    ran = subprocess.run(
        list(map(str, words)), cwd=cwd, env=PLAIN, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the library, made from the archive."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the studies."""
    return built(ROOT / "experiments", tmp_path_factory.mktemp("studies"))


def built(project: Path, folder: Path) -> Path:
    """The wheel of a project."""
    if find_spec("build") is None:
        pytest.skip("not installed: build; the extra `dev` has it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLAIN, "PIP_CONSTRAINT", str(CONSTRAINTS))
        run(sys.executable, "-m", "build", "--outdir", folder, cwd=project)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (made,) = folder.glob("*.whl")
    return made


def test_the_packaged_readme_leads_to_nothing_that_an_index_lacks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        _, _, page = archive.read(name).decode().partition("\n\n")
    relative = r"\]\((?!https://)[^)]+\)"
    assert len(re.findall(relative, README)) > 20
    assert re.findall(relative, page) == []
    kept = r"\[[^]]+\]\(https://[^)]+\)"
    assert re.findall(kept, page) == re.findall(kept, README) != []
    *_, last = re.findall(r"\[([^]]+)\]\((?!https://)", README)
    assert f"[{last}]" not in page
    assert f" {last} (`" in page, "the words of a link stay, with the path of the page"
    assert "hessblocks quantise model.gguf" in page
    assert "## Neighbours" in page
    blocks = re.findall(r"```.*?```", page, re.DOTALL)
    assert blocks == re.findall(r"```.*?```", packaged(), re.DOTALL) != []
    assert page.strip() == packaged().strip()


@pytest.mark.parametrize("project", ["", "experiments"])
def test_types_templates_and_tables_travel_with_the_wheels(
    wheel: Path, studies: Path, project: str
) -> None:
    with zipfile.ZipFile(studies if project else wheel) as archive:
        names = {name for name in archive.namelist() if "dist-info" not in name}
    package = "hessblocks_studies" if project else "hessblocks"
    assert {f"{package}/py.typed", f"{package}/__init__.pyi"} <= names
    source = ROOT / project / "src"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert names == {name for name in there if "__pycache__" not in name}


def interpreter(name: str) -> str:
    """A Python of this version that starts; the test is skipped where there is none."""
    said = "import sys; print('python%d.%d' % sys.version_info[:2])"
    for found in filter(None, (sys.executable, shutil.which(name))):
        ran = subprocess.run([found, "-c", said], capture_output=True, text=True, check=False)
        if ran.stdout.strip() == name:
            return found
    pytest.skip(f"no {name} that starts on this machine: the wheel is not tried with it")


@pytest.mark.parametrize("name", ["python3.11", "python3.13"])
def test_the_wheels_work_in_an_empty_environment(
    wheel: Path, studies: Path, tmp_path: Path, name: str
) -> None:
    run(interpreter(name), "-m", "venv", "empty", cwd=tmp_path)
    programs = tmp_path / "empty" / "bin"
    run(programs / "pip", "install", "--quiet", "--constraint", CONSTRAINTS, wheel, cwd=tmp_path)
    place = run(
        programs / "python", "-c", "import hessblocks; print(hessblocks.__file__)", cwd=tmp_path
    )
    assert Path(place.strip()).is_relative_to(tmp_path)
    assert re.fullmatch(
        r"hessblocks \d+\.\d+\.\d+\n", run(programs / "hessblocks", "--version", cwd=tmp_path)
    )
    assert "sas-p" in run(programs / "hessblocks", "presets", cwd=tmp_path)
    lean = run(programs / "pip", "list", cwd=tmp_path)
    assert not {"plotly", "ray", "datasets"} & set(lean.split())
    lacking = subprocess.run(
        [programs / "hessblocks", "reproduce"],
        env=PLAIN,
        capture_output=True,
        text=True,
        check=False,
    )
    assert lacking.returncode == 2
    assert lacking.stderr.endswith("is not installed; run pip install hessblocks-studies.\n")
    run(
        programs / "pip",
        "install",
        "--quiet",
        "--constraint",
        CONSTRAINTS,
        wheel,
        studies,
        cwd=tmp_path,
    )
    assert "fig3a" in run(programs / "hessblocks", "reproduce", "--list", cwd=tmp_path)
    code = "import torch, hessblocks as hb; x, w = torch.randn(2, 5, 8), torch.randn(3, 8, 4)\n"
    code += "print(hb.attention_hessian(x, *w, target=torch.randn(2, 5, 4)).dense().shape)"
    assert "[96, 96]" in run(programs / "python", "-c", code, cwd=tmp_path)
    save_llama(tmp_path)
    assert run(programs / "python", "-c", SCRIPT, cwd=tmp_path)
    assert (tmp_path / REPORT).exists()
