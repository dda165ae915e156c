"""The pages of results are what the committed stores give, and the quickstart's commands run."""

import importlib.util
import json
import lzma
import re
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace

import pytest
from matplotlib.image import imread

from hessblocks import drawing
from hessblocks.cli.app import main
from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies.catalogue import FINISHED, REPLACED, names
from hessblocks_studies.engine import POINTS
from hessblocks_studies.gallery import VERDICTS
from hessblocks_studies.runner import run_studies
from tests.models.gguf_files import tiny_llama, write

DOCS = Path(__file__).parents[2] / "docs"


def quickstart() -> list[list[str]]:
    """The words of every command of the quickstart."""
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:--vocab-size")  # the text has few words, as the model has
def test_every_command_of_the_quickstart_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    model = tiny_llama()
    model.config.max_position_embeddings = 2048
    write(model, tmp_path / "model.gguf")
    (tmp_path / "text.txt").write_text("abc and so on, with other words. " * 9000, "utf-8")
    commands = quickstart()
    assert len(commands) == 6
    for program, *words in commands:
        assert program == "hessblocks"
        assert main(words) == 0, words
    runs = "quantise-model-IQ4_NL", "cache-model", "simplify-model", "curvature-model", "compare"
    for name in runs:
        assert (tmp_path / "runs" / name / "report.html").exists(), name


def script(name: str) -> ModuleType:
    """A script of the docs as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make_results() -> ModuleType:
    return script("make_results")


def draw_nothing(script: ModuleType, patch: pytest.MonkeyPatch) -> None:
    """Let a script, which took its `draw` before `blank`, draw blank pictures too."""
    patch.setattr(script, "draw", lambda figure, *_, **__: drawing.draw(figure))


@pytest.mark.usefixtures("blank")
def test_the_page_of_results_shows_what_is_there_and_lists_what_is_missing(
    tmp_path: Path, make_results: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_nothing(make_results, monkeypatch)
    page_of_results(tmp_path, make_results)


@pytest.mark.slow
def test_the_page_of_results_is_drawn(tmp_path: Path, make_results: ModuleType) -> None:
    """Its pictures are small with their content too."""
    page_of_results(tmp_path, make_results)


def page_of_results(tmp_path: Path, make_results: ModuleType) -> None:
    """Make the pages of two studies, of which one lacks points and the other goes later."""
    run_studies(["mlp", "histograms"], out=tmp_path / "runs", scale="smoke", seeds=1)
    points = tmp_path / "runs" / "mlp" / POINTS
    points.write_bytes(b"".join(points.read_bytes().splitlines(keepends=True)[:-5]))
    assert main(["report", str(tmp_path / "runs")]) == 0
    make_results.main(tmp_path / "runs", tmp_path / "docs")
    index = tmp_path / "docs" / "results.md"
    page = index.read_text()
    for name in names():
        assert (f"- {name}: " in page) == (name != "histograms")
    assert "- mlp: 5 of 200 points. `hessblocks reproduce mlp --scale smoke --seeds 1`" in page
    assert "`hessblocks reproduce speed`" in page
    for target in re.findall(r"\]\((results/[^)]+)\)", page):
        assert (tmp_path / "docs" / target).stat().st_size < 1_000_000
    assert len(re.findall(r"\]\(results/\w+\.md\): [A-Z]", page)) == 2
    shutil.rmtree(tmp_path / "runs" / "histograms")
    make_results.main(tmp_path / "runs", tmp_path / "docs")
    assert index.read_text() == page, "what is gone is kept"
    assert "uperseded" not in page
    told = tmp_path / "docs" / "results" / "histograms.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"revision": 0}))
    for _ in range(2):
        make_results.main(tmp_path / "runs", tmp_path / "docs")
    (line,) = (one for one in index.read_text().splitlines() if "[histograms](" in one)
    assert line.endswith("; superseded.*")
    kept = (tmp_path / "docs" / "results" / "histograms.md").read_text()
    assert kept.count(make_results.SUPERSEDED) == 1
    assert kept.startswith("# ")


STUDIES = sorted(
    path.name.removesuffix("-figure.json") for path in DOCS.glob("results/*-figure.json")
)


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_of_a_study_has_the_numbers_of_its_file(
    name: str, make_results: ModuleType
) -> None:
    told = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    page = (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8")
    rows = [
        (check["fact"], check["expected"], check["ours"], VERDICTS[check["holds"]])
        for check in told["checks"]
    ]
    head = ("fact", "expected", "ours", "verdict")
    assert not rows or make_results.table(head, rows) in page
    words = [verdict for *_, verdict in rows]
    counts = ((words.count(word), word) for word in VERDICTS.values())
    tally = ", ".join(f"{word}: {count}" for count, word in counts if count) or "no facts yet"
    assert f"Facts: {tally}." in page
    index = (DOCS / "results.md").read_text(encoding="utf-8")
    assert make_results.item(DOCS / "results", name, told, old="uperseded" in page) in index
    assert (DOCS / "results" / f"{name}-small.png").stat().st_size < 40_000


DRAWN = sorted(
    path.name.removesuffix("-figure.json") for path in DOCS.glob("results/*-figure.json")
)


@pytest.mark.parametrize(
    "name", [n if n == "fig3a" else pytest.param(n, marks=pytest.mark.slow) for n in DRAWN]
)
def test_pictures_are_what_the_stored_figure_gives(
    name: str, tmp_path: Path, make_results: ModuleType
) -> None:
    shutil.copy(DOCS / "results" / f"{name}-figure.json", tmp_path)
    make_results.draw_study(tmp_path, name)
    made = sorted(tmp_path.glob("*.png"))
    assert made
    for picture in made:
        shown, drawn = imread(DOCS / "results" / picture.name), imread(picture)
        assert shown.shape == drawn.shape
        assert (abs(shown - drawn) > 0.2).mean() < 1e-3


def test_the_finding_of_a_study_is_a_sentence_without_numbers(make_results: ModuleType) -> None:
    assert {*make_results.FINDINGS} == {*names(), *FINISHED}
    assert [name for name in make_results.FINDINGS if name not in FINISHED] == [*names()]
    for finding in make_results.FINDINGS.values():
        assert re.fullmatch(r"[A-Z][^.]{30,100}\.", finding)
        assert not re.search(r"\d(?!\d)", finding.replace("width 64", "").replace("width 256", ""))


def test_the_share_of_undecided_facts_is_counted_and_told(
    tmp_path: Path, make_results: ModuleType
) -> None:
    """Of living studies, and of all; a fact that is no longer decided changes both."""
    said = make_results.undecided(DOCS / "results")
    assert f"\n{said}\n" in (DOCS / "results.md").read_text("utf-8")
    folder = tmp_path / "results"
    shutil.copytree(DOCS / "results", folder, ignore=shutil.ignore_patterns("*.png", "stores"))
    counts = [int(count) for count in re.findall(r"(\d+) of \d+ \(", said)]
    for name, more in (("mlp", [1, 1]), ("trial", [0, 1])):
        told = json.loads((folder / f"{name}.json").read_text("utf-8"))
        check = next(check for check in told["checks"] if check["holds"])
        check["holds"] = None
        (folder / f"{name}.json").write_text(json.dumps(told))
        now = [int(c) for c in re.findall(r"(\d+) of \d+ \(", make_results.undecided(folder))]
        assert [b - a for a, b in zip(counts, now, strict=True)] == more
        counts = now


def test_no_results_without_studies(tmp_path: Path, make_results: ModuleType) -> None:
    with pytest.raises(ArgumentError, match=r"RUNS: .* holds no study"):
        make_results.main(tmp_path, tmp_path)


@pytest.fixture
def made_pages(tmp_path: Path) -> tuple[ModuleType, Path]:
    """What makes pages from results, and a copy of what is committed, its tables made anew."""
    mine, folder = script("make_pages"), tmp_path / "docs"
    (folder / "results").mkdir(parents=True)
    studies = {study for made in (*mine.TABLES, *mine.PICTURES) for study in made.studies}
    files = {
        *(table.page for table in mine.TABLES),
        *(f"results/{study}.json" for study in studies),
        *(f"results/{study}-figure.json" for each in mine.PICTURES for study in each.studies),
    }
    for name in files:
        shutil.copyfile(DOCS / name, folder / name)
    mine.write_tables(folder)
    return mine, folder


@pytest.mark.usefixtures("blank")
def test_pages_have_the_numbers_of_their_studies(
    made_pages: tuple[ModuleType, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written again from the committed results, they stay as they are."""
    draw_nothing(made_pages[0], monkeypatch)
    written_again(*made_pages)


@pytest.mark.slow
def test_pictures_of_pages_are_drawn(made_pages: tuple[ModuleType, Path]) -> None:
    written_again(*made_pages)


def written_again(mine: ModuleType, folder: Path) -> None:
    """Hold the texts to the committed ones, and draw the pictures that they show."""
    texts = {table.page: (folder / table.page).read_text("utf-8") for table in mine.TABLES}
    assert texts == {page: (DOCS / page).read_text("utf-8") for page in texts}
    mine.write_pictures(folder / "results")
    for each in mine.PICTURES:
        for picture in (f"results/{each.name}.png", f"results/{each.name}-narrow.png"):
            assert (folder / picture).read_bytes().startswith(b"\x89PNG")
            assert picture in "".join(texts.values())


def test_other_numbers_change_a_page(made_pages: tuple[ModuleType, Path]) -> None:
    mine, folder = made_pages
    changed = (
        ("trial", "sas", ("comparison.md",)),
        ("simplification", "op", ("findings.md",)),
        ("optimisers", "op, sgd", ("findings.md",)),
        ("optimisers", "sas, sgd", ("findings.md",)),
    )
    old: list[tuple[str, str]] = []
    for study, variant, pages in changed:
        file = folder / "results" / f"{study}.json"
        data = json.loads(file.read_text())
        line = next(line for line in data["tables"]["losses"] if line["variant"] == variant)
        gone = f"| {line['final_loss']:.3f} ± {line['standard_error']:.3f} |"
        old += [(page, gone) for page in pages]
        line |= {"final_loss": 1.25, "standard_error": None}
        file.write_text(json.dumps(data))
    mine.write_tables(folder)
    for page, gone in old:
        before = (DOCS / page).read_text(encoding="utf-8")
        after = (folder / page).read_text(encoding="utf-8")
        count = [name for name, _ in old].count(page)
        assert (before.count(gone), after.count("| 1.250 |")) == (1, count)
        assert gone not in after


def test_another_clock_changes_a_page(made_pages: tuple[ModuleType, Path]) -> None:
    mine, folder = made_pages
    file = folder / "results" / "speed.json"
    data = json.loads(file.read_text())
    own = {"variant": "sas-p", "width": 512}
    line = next(line for line in data["tables"]["speeds"] if own.items() <= line.items())
    cell = f"{line['training_speed']:.2f} / {line['decoding_speed']:.2f} |\n"
    line["decoding_speed"] = 2.5
    file.write_text(json.dumps(data))
    before = (folder / "comparison.md").read_text("utf-8")
    mine.write_tables(folder)
    after = (folder / "comparison.md").read_text("utf-8")
    assert after == before.replace(cell, f"{line['training_speed']:.2f} / 2.50 |\n") != before
    assert before.count(cell) == 1


def test_pages_name_optimisers_as_the_figure_does(made_pages: tuple[ModuleType, Path]) -> None:
    mine, _ = made_pages
    figure = json.loads((DOCS / "results" / "optimisers-figure.json").read_text("utf-8"))
    (ticks,) = (panel["ticks"] for panel in figure["panels"] if panel["title"] == "runs")
    assert {*mine.OPTIMISERS.values()} == {*ticks}


def test_a_panel_that_is_gone_is_named(made_pages: tuple[ModuleType, Path]) -> None:
    mine, _ = made_pages
    study = mine.study(DOCS / "results", "trial")
    with pytest.raises(RunError, match="trial: its figure has no panel 'narrower'"):
        study.panel("narrower")


@pytest.mark.usefixtures("blank")
def test_pages_of_finished_studies_stay_as_they_are(
    tmp_path: Path, make_results: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where RUNS holds one; each is in the index, and names the commit and the command."""
    draw_nothing(make_results, monkeypatch)
    run_studies(["histograms"], out=tmp_path / "runs", scale="smoke", seeds=1)
    shutil.copytree(tmp_path / "runs" / "histograms", tmp_path / "runs" / "trial")
    shutil.copytree(DOCS / "results", tmp_path / "docs" / "results")
    make_results.main(tmp_path / "runs", tmp_path / "docs")
    index = (tmp_path / "docs" / "results.md").read_text("utf-8")
    for name in FINISHED:
        page = (tmp_path / "docs" / "results" / f"{name}.md").read_text("utf-8")
        assert page == (DOCS / "results" / f"{name}.md").read_text("utf-8")
        assert f"`git checkout {FINISHED[name]}`" in page
        assert f"hessblocks reproduce {FORMER.get(name, name)} " in page
        kind = "replaced" if name in REPLACED else "finished"
        assert re.search(rf"\[{name}\]\(results/{name}\.md\): .*; {kind}; ", index)
        assert (DOCS / "results" / "stores" / name).is_dir()


FORMER = {"ladder-first": "ladder"}
"""Finished study → its name at the commit with its code."""
STORES = sorted({path.name for path in (DOCS / "results" / "stores").iterdir()} - {*FINISHED})


@pytest.mark.parametrize("name", STORES)
@pytest.mark.usefixtures("blank")
def test_results_are_those_of_the_committed_points(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store of many rows is packed: no file of the repository is above 1 MB."""
    shutil.copytree(DOCS / "results" / "stores" / name, tmp_path / name)
    for packed in (tmp_path / name).glob("*.xz"):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    own = json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8"))
    place = {"scale": "laptop", "seeds": own["seeds"]}
    asked = {"command": "reproduce", "studies": {name: place}}
    (tmp_path / "config.json").write_text(json.dumps(asked))
    if "**Superseded**" in (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8"):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            main(["report", str(tmp_path)])
        assert "its tables stay as they are" in capsys.readouterr().err
        return
    assert main(["report", str(tmp_path)]) == 0
    found, told = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / name / "summary.json", DOCS / "results" / f"{name}.json")
    )
    assert found["points"] == told["points"]
    assert found["checks"] == told["checks"]
    assert found["tables"] == told["tables"]


def test_results_of_edited_code_are_refused(make_results: ModuleType) -> None:
    def section(name: str, commit: str | None) -> SimpleNamespace:
        return SimpleNamespace(name=name, environment={"commit": commit})

    make_results.check_commits([section("fig3a", "0123abc")])
    for commit in ("0123abc-dirty", None):
        with pytest.raises(ArgumentError, match="fig3a was measured by code that is in no commit"):
            make_results.check_commits([section("fig3a", commit)])


def test_evenness_on_the_page_is_that_of_its_file() -> None:
    told = json.loads((DOCS / "results" / "evenness.json").read_text(encoding="utf-8"))
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert script("measure_evenness").table(told) in page


@pytest.mark.parametrize("healing", [0, 30])
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("plan", "the plan"),
        ("similar states", "layers of similar states (ShortGPT)"),
        ("random", "random layers or MLP units"),
        ("last layers", "last layers"),
        ("magnitude", "MLP units of small weights"),
        (
            "units by activation",
            "equal shares of MLP units by activation, refitted (no baseline)",
        ),
    ],
)
def test_the_page_of_simplify_has_the_measured_costs(rule: str, words: str, healing: int) -> None:
    told = json.loads((DOCS / "results" / "simplify-pretrained.json").read_text(encoding="utf-8"))
    kl = [
        row
        for row in told["tables"]["together"]
        if (row["rule"], row["quantity"], row["healing"]) == (rule, "KL", healing)
    ]
    means = (
        fmean(row["value"] for row in kl if row["layers"] == layers) for layers in (2, 4, 6, 10)
    )
    page = (DOCS / "simplify.md").read_text(encoding="utf-8").replace("**", "")
    assert f"| {words} | {' | '.join(f'{one:.2g}' for one in means)} |" in page
