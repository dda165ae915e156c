"""The page of all studies in headless Chromium: pictures there, quiet, readable, usable by
keyboard."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hessblocks_studies.catalogue import names
from hessblocks_studies.gallery.page import write_gallery
from hessblocks_studies.runner import run_studies
from tests.report.browser import chromium, open_page

pytestmark = pytest.mark.slow  # a browser, and three studies; test_catalogue reads the page as text


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    run_studies(["fig3a", "mlp", "histograms"], out=folder, scale="smoke")
    return write_gallery(folder, names())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole_and_fits_the_screen(browser, page: Path, width: int) -> None:
    browser.get_log("browser")
    open_page(browser, page, width)
    assert browser.get_log("browser") == []
    run = browser.execute_script
    pictures = run(
        "return [...document.images].map("
        "i => [i.naturalWidth, i.clientWidth, i.closest('.scroll').clientWidth, i.alt])"
    )
    assert len(pictures) == 3
    assert all(natural > 300 and alt for natural, *_, alt in pictures)
    assert all(0 < window <= width for *_, window, _ in pictures)
    # a phone gets a picture of its own
    assert all(shown >= 600 if width > 390 else shown <= window for _, shown, window, _ in pictures)
    assert run("return document.documentElement.scrollWidth") <= width
    smallest = run(
        "return Math.min(...[...document.querySelectorAll('p, td, th, li, figcaption')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12


def test_a_wide_figure_is_moved_by_the_arrow_keys(browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(browser, page, 390)
    figure = browser.find_element("css selector", "figure .scroll")
    # as of figures that have no picture for a phone
    whole = "arguments[0].querySelector('source').remove(); arguments[0].classList.add('map')"
    browser.execute_script(whole, figure)
    figure.send_keys(Keys.ARROW_RIGHT * 5)
    browser.execute_async_script("setTimeout(arguments[0], 600)")  # it glides
    assert browser.execute_script("return arguments[0].scrollLeft", figure) > 0


def test_the_first_key_leads_past_the_contents(browser, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    open_page(browser, page, 1280)
    ActionChains(browser).send_keys(Keys.TAB).perform()
    focused = "return [document.activeElement.className, document.activeElement.hash]"
    assert browser.execute_script(focused) == ["skip", "#main"]
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return document.activeElement.id") == "main"


def test_every_table_and_link_can_be_reached_by_keyboard(browser, page: Path) -> None:
    open_page(browser, page, 390)
    unreachable = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.tabIndex !== 0).length"
    )
    assert unreachable == 0
    targets = browser.execute_script(
        "return [...document.querySelectorAll('nav a')]"
        ".map(a => document.getElementById(a.hash.slice(1)) !== null)"
    )
    assert targets == [True, True, True]
