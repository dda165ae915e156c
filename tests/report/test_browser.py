"""The page in headless Chromium: drawn, quiet, readable on wide and narrow screens."""

import json
import re
from types import SimpleNamespace

import pytest

import hessblocks as hb
from hessblocks.models import draw_blocks
from hessblocks.report import write_curvature_report
from hessblocks.report.page import write_report
from tests.report.browser import chromium, open_page, screenshot
from tests.report.few_pictures import draw_no_curvature, show_instead
from tests.report.folders import Folder

WIDTHS = (
    pytest.param((1280, "whole"), id="1280", marks=pytest.mark.slow),
    pytest.param((400, "page"), id="400"),
    pytest.param((400, "whole"), id="400-whole", marks=pytest.mark.slow),
)
"""Every day the narrow screen alone: all figures of a page are twenty seconds."""
SMALLEST = 12
"""CSS pixels of the smallest text that counts as readable (exponents and indices excepted)."""
SHRUNK = 0.85
"""Of its natural size, in which letters are 9 points and more, a figure has at least so much."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a comparison with zero groups and a diverged run; two figures stand for all."""
    with pytest.MonkeyPatch.context() as patch:
        show_instead(patch, {"curvature": "gap"})
        return write_report(troubled().write(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same report with all its figures."""
    return write_report(troubled().write(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module", params=WIDTHS)
def view(request, browser):
    """The page at one width."""
    width, which = request.param
    page = request.getfixturevalue(which)
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, page, width)
    first = browser.execute_script(
        "return document.querySelector('.card').getBoundingClientRect().top"
    )
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    messages = browser.get_log("browser")
    requests = list(requested(browser.get_log("performance")))
    screenshot(browser, page.parent / f"page-{width}.png")
    return SimpleNamespace(
        driver=browser,
        run=browser.execute_script,
        width=width,
        first=first,
        messages=messages,
        requests=requests,
    )


def troubled() -> Folder:
    made = Folder(seeds=(0, 1))
    zero = {"value": 0.0, "standard_error": 0.0}
    for preset in ("sas", "sas-p", "sas-p-no-norm"):
        for layer in range(made.layers):
            place = {"group": f"layers.{layer}.attention.key", "stage": "initial"}
            made.change(lambda row: row.update(zero), preset=preset, **place)
    for line in made.metrics:
        if (line["preset"], line["seed"]) == ("sas-p-no-norm", 1) and line["step"] > 100:
            line["loss"] = float("nan")
    return made


def requested(log):
    """The addresses that the page asked for."""
    for entry in log:
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"][:200]


def test_nothing_is_reported_on_the_console(view) -> None:
    assert view.messages == []


def test_only_the_page_itself_is_loaded(view) -> None:
    assert view.requests
    outside = [url for url in view.requests if not url.startswith(("file:", "data:"))]
    assert outside == []


def test_every_figure_is_drawn_and_large_enough(view) -> None:
    drawn = view.run(
        """return [...document.querySelectorAll('.card img')].map(each =>
            [each.complete, each.naturalWidth, each.naturalHeight, each.width / each.naturalWidth])"""
    )
    assert len(drawn) == 3
    for complete, width, height, shown in drawn:
        assert complete
        assert min(width, height) > 200
        assert shown >= SHRUNK


def test_the_first_picture_is_on_the_first_screen(view) -> None:
    assert view.first < 600


def test_figures_fit_into_their_card_on_a_phone_too(view) -> None:
    cards = view.run(
        """return [...document.querySelectorAll('.card')].map(card =>
            [card.tabIndex, getComputedStyle(card).overflowX, card.scrollWidth - card.clientWidth])"""
    )
    assert cards == [[0, "auto", 0]] * 3


def test_the_page_does_not_scroll_sideways(view) -> None:
    wide = view.run(
        """const limit = document.documentElement.clientWidth;
        return [document.documentElement.scrollWidth - limit,
                [...document.querySelectorAll('main *, header *, nav *')].filter(element =>
                    !element.closest('.scroll, svg') && element.getClientRects().length &&
                    element.getBoundingClientRect().right > limit + 1).map(e => e.outerHTML.slice(0, 80))]"""
    )
    assert wide == [0, []]


def test_nothing_of_the_comparison_is_beyond_the_edge_of_a_phone(view) -> None:
    table = view.run(
        """const box = document.querySelector('[aria-label=Comparison]');
        return [box.scrollWidth - box.clientWidth, [...box.querySelectorAll('td')].every(cell =>
            getComputedStyle(cell, '::before').content === JSON.stringify(cell.dataset.label))]"""
    )
    assert table[1] == (view.width == 400)
    assert table[0] <= 0 or view.width > 400


def test_wide_tables_scroll_inside_their_box(view) -> None:
    boxes = view.run(
        """return [...document.querySelectorAll('.scroll')].map(box =>
            [box.tabIndex, getComputedStyle(box).overflowX, box.scrollWidth - box.clientWidth])"""
    )
    assert all((tab, overflow) == (0, "auto") for tab, overflow, _ in boxes)


def test_text_is_large_enough(view) -> None:
    small = view.run(
        """const found = [];
        for (const element of document.querySelectorAll('body *')) {
            const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            if (!own || !element.getClientRects().length || element.closest('sub, sup')) continue;
            const size = parseFloat(getComputedStyle(element).fontSize);
            if (size < arguments[0]) found.push([size, element.textContent.slice(0, 40)]);
        }
        return found""",
        SMALLEST,
    )
    assert small == []


def test_the_skip_link_is_first_and_its_focus_is_seen(view) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    view.driver.refresh()  # forgets where the last click was
    view.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    state = view.run(
        """const a = document.activeElement; return [a.className, getComputedStyle(a).outlineStyle,
            a.getBoundingClientRect().left >= 0]"""
    )
    assert state == ["skip", "solid", True]
    view.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert view.run("return document.activeElement.id") == "main"


@pytest.mark.usefixtures("blank")
def test_all_blocks_are_seen_on_a_phone(browser, tmp_path) -> None:
    folder = Folder(presets=("pre-ln",), layers=1).write(tmp_path)
    blocks = {name: hb.preset(name) for name in ("pre-ln", "sas", "sas-p")}
    for name, columns in (("blocks.svg", 6), ("blocks-narrow.svg", 2)):
        (folder / name).write_text(draw_blocks(blocks, columns))
        open_page(browser, write_report(folder), 390)
        wide, shown, inside, over = browser.execute_script(
            """const img = document.querySelector('img[alt^="The blocks"]'), card = img.closest('.card');
            return [img.naturalWidth, img.width / img.naturalWidth, card.clientWidth - img.width,
                    card.scrollWidth - card.clientWidth]"""
        )
        assert (wide, over) == (176 * min(3, columns), 0)
        assert inside >= 0
    assert shown >= SHRUNK


NAMES_OF_TICKS = """const frame = document.documentElement.getBoundingClientRect(), faults = [];
const box = each => each.getBoundingClientRect();
for (const text of document.querySelectorAll('[id^=text_]')) {
    const at = box(text);
    if (at.left < frame.left || at.right > frame.right || at.top < frame.top || at.bottom > frame.bottom)
        faults.push(text.outerHTML.slice(0, 80));
}
const level = [...document.querySelectorAll('[id^=xtick_] > [id^=text_] > g')]
    .filter(each => !/rotate\\(-[^9]/.test(each.getAttribute('transform')));
const axes = Map.groupBy(level, each => each.closest('[id^=axes_]').id);
for (const row of axes.values()) {
    const boxes = row.map(box).sort((a, b) => a.left - b.left);
    boxes.forEach((one, at) => { if (at && one.left < boxes[at - 1].right) faults.push(row[at].outerHTML); });
}
return [document.querySelectorAll('[id^=text_]').length, faults]"""


@pytest.mark.parametrize(
    ("name", "which"),
    [
        pytest.param("gap", "page", id="gap"),
        pytest.param("curvature", "whole", id="curvature", marks=pytest.mark.slow),
        pytest.param("loss-steps", "page", id="loss-steps"),
    ],
)
@pytest.mark.parametrize("screen", ["src", "srcset"])
def test_names_in_a_figure_are_neither_cut_nor_on_top_of_each_other(
    request, browser, name, which, screen
) -> None:
    page = request.getfixturevalue(which)
    shown = re.search(f'id="{name}".*?{screen}="([^"]+)"', page.read_text(), re.DOTALL)
    browser.get(shown.group(1))
    texts, faults = browser.execute_script(NAMES_OF_TICKS)
    assert texts > 10
    assert faults == []


def test_figures_fit_on_paper_and_are_dark_on_white(browser, page) -> None:
    open_page(browser, page, 720, dark=True)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = browser.execute_script(
            """return [...document.querySelectorAll('.card img')].map(each =>
                [each.getBoundingClientRect().right <= innerWidth, getComputedStyle(each).filter])"""
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == [[True, "none"]] * 3


@pytest.mark.usefixtures("blank")
def test_hostile_names_run_nothing(browser, tmp_path) -> None:
    hostile = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    made = Folder(presets=("pre-ln", hostile), layers=1)
    made.config["data"]["name"] = hostile
    browser.get_log("browser")
    open_page(browser, write_report(made.write(tmp_path)), 1280)
    assert browser.title.startswith("hessblocks compare: pre-ln, <img")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0


def test_the_page_is_dark_where_that_is_preferred(browser, page, tmp_path) -> None:
    open_page(browser, page, 1280, dark=True)
    screenshot(browser, tmp_path / "dark.png")
    colours = browser.execute_script(
        """const card = getComputedStyle(document.querySelector('.card')), body = getComputedStyle(document.body);
        return [body.backgroundColor, body.color, card.backgroundColor]"""
    )
    assert colours == ["rgb(23, 25, 28)", "rgb(232, 232, 232)", "rgb(23, 25, 28)"]


def test_pictures_follow_the_dark_page_but_maps_keep_their_colours(
    browser, tmp_path, monkeypatch
) -> None:
    draw_no_curvature(monkeypatch)
    given = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 11, "data": "random", "tokens": 6}
    given |= {"groups": "layers.0.attention.*", "parts": "full", "eigenvalues": 0, "spectrum": True}
    hb.measure_curvature(
        "preset:sas", out=tmp_path, probes=4, map=True, finish=write_curvature_report, **given
    )
    found = {}
    for dark in (False, True):
        open_page(browser, tmp_path / "report.html", 1280, dark=dark)
        found[dark] = browser.execute_script(
            """return [...document.querySelectorAll('.card img')].map((each) =>
                [each.closest('.card').classList.contains('map'), getComputedStyle(each).filter])"""
        )
    assert {shown for _, shown in found[False]} == {"none"}
    assert {shown for is_map, shown in found[True] if is_map} == {"none"}
    assert {shown for is_map, shown in found[True] if not is_map} == {
        "invert(0.91) hue-rotate(180deg)"
    }
