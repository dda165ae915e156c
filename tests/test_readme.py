"""The README says what is: its code runs, its links lead somewhere, its commands and packages
exist."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import hessblocks as hb
from hessblocks.cli.app import app
from hessblocks.curvature import exact_last_block
from hessblocks.theory import attention_hessian
from tests.curvature.architectures import MODELS, batch_of
from tests.curvature.cases import stir
from tests.curvature.test_families import EVERYDAY
from tests.models.gguf_files import tiny_llama, write
from tests.theory.cases import CASES, arguments
from tests.theory.kinds import DAILY
from tests.theory.test_cases import MORE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ESTIMATORS = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= 600
    assert "hb.extreme_eigenvalues(" in README
    visible = re.sub(r"```.*?```|\]\([^)]*\)|<[^>]*>", " ", README, flags=re.DOTALL)
    numbers = re.findall(r"(?<![\w.])\d[\d.,]*", visible)
    assert len(numbers) <= 0.03 * len(visible.split())


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    write(tiny_llama(), tmp_path / "model.gguf")  # the real one: tests/test_examples.py
    (tmp_path / "text.txt").write_text("abc and so on. " * 200, encoding="utf-8")
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "curvature.png").stat().st_size > 10_000
    assert "times (95 % interval" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_the_page_of_estimators_prints_what_is_shown() -> None:
    code, shown = (blocks(language, ESTIMATORS)[0] for language in ("python", "text"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "estimators.md", "exec"), {})
    assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
    pairs = zip(NUMBER.findall(printed.getvalue()), NUMBER.findall(shown), strict=True)
    for got, expected in pairs:
        assert float(got) == pytest.approx(float(expected), rel=0.3)


def test_every_link_to_a_file_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert targets
    assert not missing


def test_every_command_exists() -> None:
    known = {name for name in app if not name.startswith("-")}
    named = set(re.findall(r"`hessblocks ([a-z]+)", README))
    assert named == known | {"reproduce"}


@pytest.mark.filterwarnings("ignore:exact_last_block")
def test_the_numbers_of_compared_blocks_are_so() -> None:
    groups = {c.name: attention_hessian(**arguments(c)).groups for c in CASES + MORE}
    for name, make in MODELS.items():
        model = stir(make())
        groups[name] = exact_last_block(model, *batch_of(model)).groups
    counts = {name: 3 * len(own) * (len(own) + 1) // 2 for name, own in groups.items()}
    everyday = sum(counts[name] for name in (*DAILY, *EVERYDAY))
    slow = sum(counts.values()) - everyday
    assert (
        f"`make test` compares {everyday:,} closed-form blocks with autodiff, `make test-slow` "
        f"{slow:,} more." in (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    )


def test_the_citation_is_of_this_version_and_of_both_papers() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == hb.__version__
    papers = cited["references"]
    assert {paper["url"] for paper in papers} == set(re.findall(r"https://arxiv[^)]+", README))
    for paper in papers:
        assert f"[*{paper['title'].partition('? ')[0].rstrip('?')}" in " ".join(README.split())


def test_every_name_of_the_library_exists() -> None:
    for name in set(re.findall(r"\bhb\.(\w+)", README)):
        assert getattr(hb, name) is not None


def packaged() -> str:
    """The long description of an index, by the rules of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    first, last = hook["fragments"]
    assert first == {"path": "README.md"}
    text = README + str(last["text"])
    for rule in hook["substitutions"]:
        text, count = re.subn(rule["pattern"], rule["replacement"], text)
        assert count or rule["pattern"].startswith("!"), f"{rule['pattern']} changes nothing"
    return text


def test_the_packaged_readme_is_whole_without_pictures_and_relative_links() -> None:
    """An index has neither the pages nor the pictures that the README leads to, and no clone."""
    text = packaged()
    assert set(re.findall(r"`hessblocks ([a-z]+)", text)) == set(
        re.findall(r"`hessblocks ([a-z]+)", README)
    )
    assert "<img" not in text
    assert "pip install 'hessblocks[quantise]'\n" in text
    assert not re.search("clone|-e |constraints", text)
    paths = re.findall(r"\(`([^`]+\.(?:md|cff))`\)", text)
    assert {*paths} == {*re.findall(r"\]\(((?!https?:)[^)#]+)", README)}
    assert all((ROOT / path).is_file() for path in paths)
    assert re.findall(r"\]\((?!https?:)", text) == []
