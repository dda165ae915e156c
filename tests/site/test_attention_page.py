"""The page one can touch, docs/attention.html: its digits are the library's, and it serves everybody."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

import hessblocks as hb
from tests.report.browser import chromium, open_page

PAGE = Path(__file__).parents[2] / "docs" / "attention.html"
PARTS = ("full", "outer", "functional")
DIGITS = 1e-10
KINDS = list(itertools.product((True, False), (True, False)))
"""Softmax or linear, one matrix or two."""
SLOW = pytest.mark.slow
"""Each visit of a browser takes half a second: one of each kind is paid every day."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(browser):
    open_page(browser, PAGE, 1280)
    return browser


def shown(page, name: str) -> str:
    return page.execute_script("return document.getElementById(arguments[0]).textContent", name)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two arrays agree to ten digits of the largest entry."""
    return float((ours - theirs).abs().max()) <= DIGITS * float(theirs.abs().max())


def drawn(one: bool, seed: int) -> dict[str, torch.Tensor]:
    """Tokens, targets and weights of all widths different, which no mistaken index survives."""
    torch.manual_seed(seed)
    width, head, out, tokens = 3, 2, 4, 5
    shapes = {"x": (tokens, width), "target": (tokens, out), "query": (width, head)}
    shapes |= {"key": (width, head), "value": (width, out)}
    if one:
        shapes["query"] = (width, width)
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


@pytest.mark.parametrize(("softmax", "one"), KINDS)
@pytest.mark.parametrize(
    ("seed", "temperature"),
    [(0, 1.0), pytest.param(1, 0.3, marks=SLOW), pytest.param(2, 7.0, marks=SLOW)],
)
def test_its_hessian_is_the_librarys(page, softmax, one, seed, temperature) -> None:
    given = drawn(one, seed)
    exact = hb.attention_hessian(
        given["x"],
        given["query"],
        None if one else given["key"],
        given["value"],
        target=given["target"],
        temperature=temperature,
        scores="softmax" if softmax else "linear",
        query_key="one-matrix" if one else "two-matrix",
    )
    sent = {name: value.tolist() for name, value in given.items()}
    sent |= {"temperature": temperature, "softmax": softmax} | ({"key": None} if one else {})
    found = page.execute_script(
        """const h = attentionHessian(arguments[0]);
        const spectra = Object.fromEntries(arguments[1].map(part => [part, eigenvalues(h[part])]));
        return {...h, spectra, groups: Object.keys(h.groups)}""",
        sent,
        PARTS,
    )
    assert found["groups"] == list(exact.groups)
    for part in PARTS:
        dense, theirs = torch.tensor(found[part], dtype=torch.float64), exact.dense(part)
        assert close(dense, theirs), part
        spectrum = torch.tensor(found["spectra"][part], dtype=torch.float64)
        assert close(spectrum, torch.linalg.eigvalsh(theirs)), part


@pytest.mark.parametrize(
    ("softmax", "one"),
    [pytest.param(*kind, marks=() if kind[0] == kind[1] else SLOW) for kind in KINDS],
)
def test_the_python_that_it_shows_gives_its_numbers(page, softmax, one) -> None:
    first = "query_key" if one else "query"
    page.execute_script(
        """document.querySelector(`input[value=${arguments[0]}]`).click();
        document.querySelector(`input[value=${arguments[1]}]`).click();
        document.getElementById('scale').value = 0.3;
        document.getElementById('redraw').click()""",
        "softmax" if softmax else "linear",
        "one" if one else "two",
    )
    found = page.execute_script(
        """const h = attentionHessian(settings());
        return [blockNorm(h, "full", "value"), blockNorm(h, "outer", arguments[0]), eigenvalues(h.full)]""",
        first,
    )
    printed = io.StringIO()
    torch.set_printoptions(precision=12, sci_mode=True)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(shown(page, "python"), "attention.html", "exec"), {})
    finally:
        torch.set_printoptions(profile="default")
        torch.set_default_dtype(torch.float32)
    numbers = [float(one) for one in re.findall(r"-?\d+\.\d+(?:e[-+]\d+)?", printed.getvalue())]
    assert len(numbers) == 2 + len(found[2])
    for ours, theirs in zip(numbers, [*found[:2], *found[2]], strict=True):
        assert ours == pytest.approx(theirs, rel=DIGITS, abs=DIGITS * found[0])


def test_what_it_says_first_follows_the_hand(page) -> None:
    assert "The value block is 409 times as large as the query block" in shown(page, "answer")
    assert "value block grows as σ to the power 2.0, the query block as σ to the power 5.0" in (
        shown(page, "growth-words")
    )
    page.execute_script("document.getElementById('collapse').click()")
    assert "equal tokens and has nothing to choose" in shown(page, "answer")
    assert (
        page.execute_script("return blockNorm(attentionHessian(settings()), 'full', 'query')") == 0
    )
    page.execute_script("document.getElementById('reset').click()")
    assert "409 times" in shown(page, "answer")


def test_a_token_moves_by_keys_and_by_hand(page) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    where = "return JSON.stringify(state.points[0])"
    tokens = page.find_elements(By.CSS_SELECTOR, ".token")
    assert len(tokens) == 5
    page.execute_script("document.querySelector('header a:last-of-type').focus()")
    page.switch_to.active_element.send_keys(Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_UP)
    assert json.loads(page.execute_script(where)) == [1.3, 0.5]
    moved = shown(page, "answer")
    assert "409 times" not in moved
    ActionChains(page).drag_and_drop_by_offset(tokens[0], -60, 40).perform()
    assert json.loads(page.execute_script(where))[0] < 0.7
    assert shown(page, "answer") != moved


def test_an_entry_is_chosen_by_keys(page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.getElementById('map-outer').focus()")
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert shown(page, "entry-outer").startswith("query[1, 2] with query[2, 1]: ")


@SLOW
def test_everything_that_acts_is_reached_by_tab(page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    reached = []
    for _ in range(40):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(
            page.execute_script("const e = document.activeElement; return e.id || e.tagName")
        )
    wanted = ("scale", "temperature", "large", "collapse", "cold", "redraw", "reset", "copy")
    assert [name for name in (*wanted, "map-full", "map-outer", "map-functional", "INPUT") if name not in reached] == []  # fmt: skip


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize(
    "width", [360, *(pytest.param(width, marks=SLOW) for width in (390, 1280))]
)
def test_it_fits_every_screen_in_letters_that_can_be_read(browser, width, dark) -> None:
    open_page(browser, PAGE, width, dark=dark)
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    beyond, small = browser.execute_script(
        """const small = [...document.querySelectorAll('svg text, p, td, th, label, output')].filter(each => {
            const svg = each.closest('svg'), box = svg && svg.viewBox.baseVal;
            const zoom = box && box.width ? svg.clientWidth / box.width : 1;
            return each.getClientRects().length && parseFloat(getComputedStyle(each).fontSize) * zoom < 12; });
        return [document.documentElement.scrollWidth - document.documentElement.clientWidth, small.map(e => e.outerHTML)]"""
    )
    assert (beyond, small) == (0, [])


@pytest.mark.parametrize("dark", [False, True])
def test_its_colours_have_contrast(browser, dark) -> None:
    open_page(browser, PAGE, 1280, dark=dark)
    names = ("text", "soft", "link", "query", "value", "paper", "card")
    colours = {name: browser.execute_script("return colour(arguments[0])", name) for name in names}
    for ground in ("paper", "card"):
        for name, least in zip(names[:5], (7.0, 4.5, 4.5, 3.0, 3.0), strict=True):
            assert contrast(colours[name], colours[ground]) >= least, (name, ground)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2 between two colours."""
    light, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_the_page_is_one_small_file_without_requests(browser) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, PAGE, 1280)
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [it["params"]["request"]["url"] for it in sent if it["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert [url for url in asked if not url.startswith(("data:", "chrome:"))] == [PAGE.as_uri()]
    assert browser.get_log("browser") == []
    assert PAGE.stat().st_size <= 200_000
