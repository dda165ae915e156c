"""The page in headless Chromium: drawn, quiet, readable on wide and narrow screens."""

import json
import re
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

import hessblocks as hb
from hessblocks.report import write_curvature_report
from hessblocks.report.comparison.page import write_report
from tests.report.browser import chromium, open_page, screenshot
from tests.report.folders import Folder

WIDTHS = (1280, 400)
SMALLEST = 12
"""CSS pixels of the smallest text that counts as readable (exponents and indices excepted)."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a comparison with zero groups and a diverged run."""
    return write_report(troubled().write(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module", params=WIDTHS)
def view(request, browser, page):
    """The page at one width."""
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, page, request.param)
    messages = browser.get_log("browser")
    requests = list(requested(browser.get_log("performance")))
    screenshot(browser, page.parent / f"page-{request.param}.png")
    return SimpleNamespace(
        driver=browser,
        run=browser.execute_script,
        width=request.param,
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
    outside = [url for url in view.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []


def test_every_panel_is_drawn(view) -> None:
    drawn = view.run(
        """return [...document.querySelectorAll('.plot')].map(plot => ({
            shown: plot.getBoundingClientRect().height > 200,
            marks: [...plot.querySelectorAll('.trace path')].filter(path => {
                const box = path.getBBox(); return box.width + box.height > 0; }).length,
            traces: plot.data.length,
        }))"""
    )
    assert len(drawn) == 1 + 6 + 2 + 2
    for panel in drawn:
        assert panel["shown"]
        assert panel["marks"] >= panel["traces"] > 0


def test_a_zero_stands_on_a_line_named_zero(view) -> None:
    found = view.run(
        """const plot = document.querySelector('[data-figure=curvature] .plot');
        const at = element => { const box = element.getBoundingClientRect();
                                return (box.top + box.bottom) / 2; };
        const name = [...plot.querySelectorAll('.ytick text')].find(t => t.textContent === '0');
        const places = [...plot.querySelectorAll('.trace .point')].map(at);
        return {name: at(name), lowest: Math.max(...places)}"""
    )
    assert found["lowest"] == pytest.approx(found["name"], abs=3)


def test_the_page_does_not_scroll_sideways(view) -> None:
    wide = view.run(
        """const limit = document.documentElement.clientWidth;
        return [document.documentElement.scrollWidth - limit,
                [...document.querySelectorAll('main *, header *, nav *')].filter(element =>
                    !element.closest('.scroll, svg') && element.getClientRects().length &&
                    element.getBoundingClientRect().right > limit + 1).map(e => e.outerHTML.slice(0, 80))]"""
    )
    assert wide == [0, []]


def test_wide_tables_scroll_inside_their_box(view) -> None:
    boxes = view.run(
        """return [...document.querySelectorAll('.scroll')].map(box =>
            [box.tabIndex, getComputedStyle(box).overflowX, box.scrollWidth - box.clientWidth])"""
    )
    assert all((tab, overflow) == (0, "auto") for tab, overflow, _ in boxes)
    if view.width == 400:
        assert boxes[0][2] > 0


def test_text_is_large_enough(view) -> None:
    small = view.run(
        """const found = [];
        for (const element of document.querySelectorAll('body *')) {
            const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
            if (!own || !element.getClientRects().length || element.closest('sub, sup, .notifier')) continue;
            if (element.tagName === 'tspan' && element.hasAttribute('dy')) continue;
            const size = parseFloat(getComputedStyle(element).fontSize);
            if (size < arguments[0]) found.push([size, element.textContent.slice(0, 40)]);
        }
        return found""",
        SMALLEST,
    )
    assert small == []


def test_names_of_categories_are_neither_cut_nor_on_top_of_each_other(view) -> None:
    faults = view.run(
        """const faults = [];
        for (const plot of document.querySelectorAll('.plot')) {
            const frame = plot.getBoundingClientRect();
            for (const text of plot.querySelectorAll('.xtick text, .ytick text, .g-xtitle text, .g-ytitle text, .g-gtitle text')) {
                const box = text.getBoundingClientRect();
                if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
                    box.top < frame.top - 1 || box.bottom > frame.bottom + 1) faults.push(text.textContent);
            }
            const level = [...plot.querySelectorAll('.xtick text')].filter(t => !/rotate\\(-?[1-9]/.test(t.getAttribute('transform')));
            const boxes = level.map(t => t.getBoundingClientRect()).sort((a, b) => a.left - b.left);
            boxes.forEach((box, at) => { if (at && box.left < boxes[at - 1].right) faults.push(level[at].textContent); });
        }
        return faults"""
    )
    assert faults == []


def test_all_categories_are_named(view) -> None:
    names = view.run(
        """return [...document.querySelectorAll('[data-figure=heterogeneity] .xtick text')]
            .map(text => text.textContent)"""
    )
    assert names == list(troubled().presets)


def test_a_legend_button_hides_and_shows_its_curves_by_keyboard(view) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    card = view.driver.find_element(By.CSS_SELECTOR, "[data-figure=loss-steps]")
    button = card.find_element(By.CSS_SELECTOR, "button[data-key=sas]")
    curves = "return arguments[0].querySelectorAll('.trace.scatter').length"
    before = view.run(curves, card)
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-pressed") == "false"
    assert view.run(curves, card) == before - 4  # a line and a band in two panels
    button.send_keys(Keys.SPACE)
    assert button.get_attribute("aria-pressed") == "true"
    assert view.run(curves, card) == before


def test_no_button_sends_a_figure_away(view) -> None:
    titles = view.run(
        "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    )
    assert bool(titles) == (view.width > 600)
    assert set(titles) <= {
        "Download plot as a PNG",
        "Download plot as a png",
        "Zoom",
        "Pan",
        "Zoom in",
        "Zoom out",
        "Reset axes",
    }


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


def test_pictures_stand_in_on_paper(view) -> None:
    shown = (
        "return ['.live', '.still'].map(s => document.querySelector(s).getClientRects().length > 0)"
    )
    assert view.run(shown) == [True, False]
    view.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert view.run(shown) == [False, True]
        widths = view.run(
            "return [...document.querySelectorAll('.still img')].map(i => i.naturalWidth)"
        )
        assert min(widths) > 1000
    finally:
        view.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_pictures_stand_in_without_scripts(browser, page) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        shown = browser.execute_cdp_cmd(
            "Runtime.evaluate",
            {
                "expression": "JSON.stringify(['.live', '.still'].map(s => "
                "document.querySelector(s).getClientRects().length > 0))"
            },
        )
        assert json.loads(shown["result"]["value"]) == [False, True]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


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
    drawn = browser.execute_script(
        """const marks = [...document.querySelectorAll('.plot .points path, .plot .lines path, .swatch path')];
        const words = [...document.querySelectorAll('.plot text')];
        return [...marks, ...words].flatMap((each) => {
            const style = getComputedStyle(each);
            return [style.fill, style.stroke].filter((colour) => colour.startsWith('rgb('));
        })"""
    )
    assert len(drawn) > 100
    assert min(map(contrast_with_night, set(drawn))) >= 3, "what is drawn can be seen"


def test_pictures_follow_the_dark_page_but_maps_keep_their_colours(browser, tmp_path) -> None:
    given = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 11, "data": "random", "tokens": 6}
    hb.measure_curvature(
        "preset:sas", out=tmp_path, probes=4, map=True, finish=write_curvature_report, **given
    )
    found = {}
    for dark in (False, True):
        open_page(browser, tmp_path / "report.html", 1280, dark=dark)
        found[dark] = browser.execute_script(
            """return [...document.querySelectorAll('.card img')].map((each) =>
                [each.parentElement.classList.contains('map'), getComputedStyle(each).filter])"""
        )
    assert {shown for _, shown in found[False]} == {"none"}
    assert {shown for is_map, shown in found[True] if is_map} == {"none"}
    assert {shown for is_map, shown in found[True] if not is_map} == {
        "invert(0.91) hue-rotate(180deg)"
    }


def contrast_with_night(colour: str) -> float:
    """Of WCAG 2, of `rgb(r, g, b)` on the dark page."""
    return (luminance(map(int, re.findall(r"\d+", colour))) + 0.05) / (
        luminance((23, 25, 28)) + 0.05
    )


def luminance(colour: Iterable[int]) -> float:
    parts = (c / 255 for c in colour)
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
