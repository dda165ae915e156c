"""The page's words and markup, without a browser."""

import base64
import re
from html.parser import HTMLParser

import pytest

from hessblocks.errors import ArgumentError, RunError
from hessblocks.report import compare_results, headline
from hessblocks.report.comparison_figures import all_figures
from hessblocks.report.page import write_report
from hessblocks.storage.folder_results import load_results
from tests.report.few_pictures import draw_only
from tests.report.folders import Folder

HOSTILE = "<script>alert('x')</script>"
NAMES = {"gap", "curvature", "loss-steps"}


class Tags(HTMLParser):
    """Counts elements, collects identifiers and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src")]


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        draw_only(patch, ["loss-steps"], phone=False)
        return write_report(Folder(seeds=(0, 1)).write(tmp_path_factory.mktemp("run")))


@pytest.mark.slow  # all figures of a page are twenty seconds
def test_a_page_with_all_its_figures_is_small(tmp_path) -> None:
    page = write_report(Folder(seeds=(0, 1)).write(tmp_path))
    test_the_page_is_one_small_file_beside_its_figures(page)
    test_each_figure_is_a_drawing_with_words_in_its_place(page)


def test_the_page_is_one_small_file_beside_its_figures(page) -> None:
    assert page.name == "report.html"
    assert page.stat().st_size < 1_600_000, "each figure for a wide screen and for a phone"
    names = {path.name for path in (page.parent / "figures").iterdir()}
    assert names == {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg")}


def test_the_page_asks_for_nothing_from_a_network(page) -> None:
    tags = parsed(page.read_text())
    addresses = [link for link in tags.links if not link.startswith(("#", "data:"))]
    assert all((page.parent / link).is_file() for link in addresses)
    assert {f"figures/{name}.png" for name in NAMES} <= set(addresses)
    assert "default-src 'none'" in page.read_text()


def test_the_page_runs_no_script(page) -> None:
    assert "script" not in parsed(page.read_text()).tags
    assert "script-src" not in page.read_text()


def test_each_figure_is_a_drawing_with_words_in_its_place(page) -> None:
    shown = re.findall(
        r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', page.read_text()
    )
    assert len(shown) == len(NAMES)
    for picture, words in shown:
        assert base64.b64decode(picture).startswith(b"<?xml")
        assert words.endswith("; the caption below describes it")


def test_anchors_are_unique_and_the_contents_lead_to_them(page) -> None:
    tags = parsed(page.read_text())
    assert len(tags.ids) == len(set(tags.ids))
    assert {link[1:] for link in tags.links if link.startswith("#")} <= set(tags.ids)


@pytest.mark.parametrize(
    "words",
    [
        "After training, the curvature of parallel, sas, sas-p and sas-p-no-norm is more even "
        "than that of pre-ln (",
        "n = 256 held-out tokens (8 windows of 32), 16 random probes a group",
        "Mean over 2 seeds (0, 1)",
        "8.0 GB",
        "What the quantities mean",
    ],
)
def test_the_page_says(page, words) -> None:
    assert words in page.read_text()


@pytest.mark.usefixtures("blank")
def test_markup_in_names_and_settings_is_shown_not_obeyed(tmp_path) -> None:
    made = Folder(presets=("pre-ln", HOSTILE))
    made.config["data"]["name"] = HOSTILE
    made.config["command"] = HOSTILE
    text = write_report(made.write(tmp_path)).read_text()
    clean = write_report(Folder(presets=("pre-ln", "sas")).write(tmp_path / "clean")).read_text()
    assert HOSTILE not in text
    assert text.count("</script") == clean.count("</script")
    assert parsed(text).tags == parsed(clean).tags


def test_dollars_in_names_are_not_mathematics(tmp_path, monkeypatch) -> None:
    draw_only(monkeypatch, ["loss-steps"], phone=False)
    dollars_are_none(tmp_path)


@pytest.mark.slow
def test_dollars_in_names_are_not_mathematics_in_any_figure(tmp_path) -> None:
    dollars_are_none(tmp_path)


def dollars_are_none(tmp_path) -> None:
    names = ("$x_$", "$\\frac{$")
    page = write_report(Folder(presets=names).write(tmp_path))
    drawings = [path.read_text() for path in (page.parent / "figures").glob("*.svg")]
    for name in names:
        assert name in page.read_text()
        assert any(name in drawing for drawing in drawings)


def test_the_same_numbers_give_the_same_bytes(tmp_path, monkeypatch) -> None:
    draw_only(monkeypatch, ["loss-steps"], phone=False)
    bytes_are_the_same(Folder(presets=("sas",), layers=1), tmp_path)


@pytest.mark.slow
def test_the_same_numbers_give_the_same_bytes_of_every_figure(tmp_path) -> None:
    bytes_are_the_same(Folder(presets=("pre-ln", "sas"), layers=1), tmp_path)


def bytes_are_the_same(made, tmp_path) -> None:
    first, second = (write_report(made.write(tmp_path / name)) for name in "ab")
    for path in [first, *sorted((first.parent / "figures").iterdir())]:
        assert path.read_bytes() == (second.parent / path.relative_to(first.parent)).read_bytes()


@pytest.mark.usefixtures("blank")
def test_a_partial_folder_gives_a_page_that_says_what_is_missing(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas", "sas-p"))
    made.rows = [row for row in made.rows if row["stage"] == "initial" and row["preset"] != "sas-p"]
    made.metrics = [line for line in made.metrics if line["preset"] == "pre-ln"]
    text = write_report(made.write(tmp_path)).read_text()
    assert "pre-ln, seed 0: not finished." in text
    assert "sas, seed 0: no curvature after training." in text
    assert "Before training, the curvature of sas is more even than that of pre-ln (largest" in text
    assert "After training, the curvature" not in text


def test_a_folder_with_nothing_but_a_config_gives_a_page(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.rows, made.metrics = [], []
    page = write_report(made.write(tmp_path))
    assert "Nothing is measured yet." in page.read_text()
    assert page.stat().st_size < 50_000


@pytest.mark.usefixtures("blank")
def test_a_single_run_without_curvature_gives_a_page(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.config = {"command": "train", "preset": "sas", "seed": 0, "curvature": None}
    made.rows = [row for row in made.rows if row["quantity"] != "frobenius_norm"]
    text = write_report(made.write(tmp_path)).read_text()
    assert "After 200 steps the held-out loss of sas is 5.07 nats per token." in text
    assert "Not there yet" not in text


@pytest.mark.usefixtures("blank")
def test_a_diverged_run_is_named(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas-p-no-norm"))
    for line in made.metrics:
        if line["preset"] == "sas-p-no-norm" and line["step"] >= 90:
            line["loss"] = 40.0 if line["step"] == 90 else float("nan")
    made.change(
        lambda row: row.update(value="nan"), preset="sas-p-no-norm", quantity="loss", stage="final"
    )
    text = write_report(made.write(tmp_path)).read_text()
    assert ">sas-p-no-norm diverged.<" in text
    assert "diverged (seed 0)" in text
    drawn = {figure.name: figure for figure in all_figures(compare_results(load_results(tmp_path)))}
    assert "sas-p-no-norm (diverged at step 100)" in drawn["loss-steps"].legend
    assert "are cut off" in text


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (
            (100, 10, 50),
            "After training, the curvature of sas and sas-p is more even than that of pre-ln (",
        ),
        (
            (100, 98, 400),
            "of sas-p is less even than that of pre-ln; that of sas is not told apart from that "
            "of pre-ln (",
        ),
    ],
)
def test_the_headline_counts_only_differences_of_two_standard_errors(
    tmp_path, ratios, words
) -> None:
    made = Folder(presets=("pre-ln", "sas", "sas-p"))
    made.rows = [row for row in made.rows if row["quantity"] != "frobenius_norm"]
    for preset, ratio in zip(made.presets, ratios, strict=True):
        for group, value in (("head", 1.0), ("final.norm", float(ratio))):
            about = {"stage": "final", "group": group, "role": "norm", "part": "full", "layer": ""}
            made.rows.append(
                {"preset": preset, "seed": 0, "quantity": "frobenius_norm", "value": value}
                | about
                | {"standard_error": 0.05 * value, "method": "estimate"}
            )
    assert words in headline(load_results(made.write(tmp_path)))[-1]


def test_the_headline_compares_losses_seed_by_seed(tmp_path) -> None:
    made = Folder(presets=("sas", "pre-ln"), seeds=(0, 1, 2))
    for row in made.rows:
        if row["quantity"] == "loss" and row["stage"] == "final":
            seed = int(row["seed"])
            row["value"] = 3 + 10 * seed + (0.4 + 0.01 * seed if row["preset"] == "sas" else 0)
    loss, *_ = headline(load_results(made.write(tmp_path)))
    assert loss.endswith("sas ends 0.410 ± 0.006 above.")


@pytest.mark.parametrize(("seeds", "apart"), [((0,), True), ((0, 1, 2), True), ((0, 1, 2), False)])
def test_the_headline_tells_losses_with_what_seeds_allow(tmp_path, seeds, apart) -> None:
    made = Folder(presets=("sas", "pre-ln"), seeds=seeds)
    for row in made.rows:
        if row["quantity"] == "loss" and row["stage"] == "final":
            above = (
                0.5 if row["preset"] == "sas" and apart else 0.05 if row["preset"] == "sas" else 0.0
            )
            order = int(row["seed"]) + (row["preset"] != "sas")
            row["value"] = 3 + above + 0.1 * (order % max(2, len(seeds)) if len(seeds) > 1 else 0)
    loss, *_ = headline(load_results(made.write(tmp_path)))
    if len(seeds) == 1:
        assert loss.endswith(
            "of pre-ln is 3.00 nats per token; sas ends 0.500 above (one seed, so no ranking)."
        )
    else:
        told = "ends 0.5 ± 0.1 above." if apart else "ends 0.0 ± 0.1 above (not told apart)."
        assert re.search(r"is 3.10 ± 0.06 nats per token; sas ", loss)
        assert loss.endswith(told)


def test_the_headline_says_that_sizes_differ(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas", "sas-p"))
    for preset, parameters in (("pre-ln", 1000), ("sas", 870), ("sas-p", 960)):
        made.change(
            lambda row, n=parameters: row.update(value=n), quantity="parameters", preset=preset
        )
    told = headline(load_results(made.write(tmp_path)))
    assert told[1] == "Steps are equal, parameters are not: sas has 13% fewer than pre-ln."


def test_the_headline_has_no_loss_of_the_seeds_that_are_left(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas"), seeds=(0, 1, 2))
    for row in made.rows:
        if row["quantity"] == "loss" and row["stage"] == "final" and row["preset"] == "sas":
            row["value"] = "nan" if row["seed"] else 0.1
    told = headline(load_results(made.write(tmp_path)))
    assert told[-1] == "2 of 3 seeds of sas diverged."
    assert "sas" not in told[0]


def test_the_headline_speaks_of_the_blocks_that_are_measured(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas", "sas-p"))
    made.rows = [row for row in made.rows if row["preset"] != "pre-ln"]
    made.change(lambda row: row.update(value=4.0), quantity="loss", stage="final")
    loss, *uneven = headline(load_results(made.write(tmp_path)))
    assert loss.endswith(
        "of sas is 4.00 nats per token; sas-p ends there too (one seed, so no ranking)."
    )
    assert len(uneven) == 2
    assert all("of sas-p is" in one and "that of sas (" in one for one in uneven)


@pytest.mark.usefixtures("blank")
def test_the_blocks_are_drawn_as_a_picture_that_runs_nothing(tmp_path) -> None:
    folder = Folder(presets=("sas",)).write(tmp_path)
    shown = 'alt="The blocks that were trained'
    assert shown not in write_report(folder).read_text()
    (folder / "blocks.svg").write_text("<svg><script>alert(1)</script></svg>")
    text = write_report(folder).read_text()
    assert len(re.findall(f'<img src="data:image/svg.xml;base64,[^"]+" {shown}', text)) == 1
    assert not {"<object", "<iframe", "<embed"} & set(re.findall(r"<[a-z]+", text))


@pytest.mark.usefixtures("blank")
def test_errors_reach_the_caller(tmp_path) -> None:
    with pytest.raises(ArgumentError):
        write_report(tmp_path)
    folder = Folder(presets=("sas",)).write(tmp_path)
    (folder / "figures").write_text("in the way")
    with pytest.raises(RunError, match="figures"):
        write_report(folder)


@pytest.mark.usefixtures("blank")
def test_zero_groups_are_named_under_the_table(tmp_path) -> None:
    made = Folder(presets=("pre-ln", "sas"), layers=4)
    for layer in (0, 1, 2):
        group = f"layers.{layer}.attention.key"
        made.change(lambda row: row.update(value=0.0), preset="sas", stage="initial", group=group)
    text = write_report(made.write(tmp_path)).read_text()
    words = "Exactly zero and left out: layers.0-2.attention.key (sas before training)."
    said = headline(load_results(tmp_path))
    before, after = (line for line in said if "curvature of sas" in line)
    assert re.search(r"in sas without layers.0-2.attention.key, exactly zero there\)", before)
    assert "without" not in after  # the ratio after training is of these groups too
    assert text.count(words) == 1
    assert "Points on the line 0 are exactly zero." in text
