"""The site that `make docs` makes: built strictly, whole without a server, readable on a phone."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import hessblocks as hb
from tests.report.browser import chromium, open_page

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
"""The whole site takes half a minute of a processor, and each visit of a browser a second."""
LACKING = [
    name for name in ("mkdocs", "material", "mkdocstrings", "jupytext") if not find_spec(name)
]


class Links(HTMLParser):
    """What a page leads to, what it loads, and the places that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.leads.append(found["href"])
        elif tag == "link" or "src" in found:
            self.loads.append(found.get("src") or found["href"])


def lost(site: Path) -> list[str]:
    """Links of the pages in a folder that lead nowhere, and what is loaded from elsewhere."""
    pages = {page: Links(page) for page in sorted(site.rglob("*.html"))}
    found = []
    for page, links in pages.items():
        name = page.relative_to(site)
        found += [f"{name} loads {each}" for each in links.loads if urlsplit(each).netloc]
        for each in [*links.leads, *links.loads]:
            target = urlsplit(each)
            if target.scheme or target.netloc:
                continue
            path = (page.parent / unquote(target.path)).resolve() if target.path else page
            there = path.is_file() and path.is_relative_to(site)
            if target.fragment and path in pages:
                there = there and unquote(target.fragment) in pages[path].places
            if not there:
                found.append(f"{name} leads to {each}")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if LACKING:
        pytest.skip(f"not installed: {', '.join(LACKING)}; the extra `docs` has them")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@SLOW
def test_every_link_leads_somewhere_and_nothing_comes_from_foreign_hosts(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 35
    assert lost(site) == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert [text[:80] for text in styles if "url(http" in text or "url(//" in text] == []


def test_planted_wrong_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://b.org/c.js"></script><a href="d.html">d</a><a href="#e">e</a>'
        '<a id="f" href="#f">f</a><a href="a.html#f">f</a><a href="https://g.org">g</a><img '
        'src="h.png">'
    )
    assert lost(tmp_path) == [
        "a.html loads https://b.org/c.js",
        "a.html leads to d.html",
        "a.html leads to #e",
        "a.html leads to h.png",
    ]


@SLOW
def test_the_reference_has_every_public_name(site: Path) -> None:
    places = set().union(*(Links(page).places for page in (site / "api").glob("*.html")))
    packages = [name for name in hb.__all__ if hasattr(getattr(hb, name), "__all__")]
    assert len(packages) > 10
    for package in packages:
        for name in getattr(hb, package).__all__:
            assert any(place.endswith(f".{name}") for place in places), f"{package}.{name}"
    headings = {place.rpartition(".")[2] for place in places}
    assert {name for name in hb.__all__ if name[0] != "_"} - headings <= set(dir_of_packages())


@SLOW
def test_the_reference_begins_with_tasks_and_the_first_line_of_every_name(site: Path) -> None:
    text = (site / "api" / "index.html").read_text(encoding="utf-8").replace("<wbr>", "")
    tasks = re.findall(r'<h2 id="([^"]+)', text)
    assert tasks[:3] == ["measure-curvature", "price-a-change", "price-a-cache"]
    offered = [name for name in hb.__all__ if callable(getattr(hb, name))]
    assert len(offered) > 50
    for name in set(offered) - set(dir_of_packages()):
        assert re.search(rf"<code>hb\.{name}</code></a>: [A-Z]", text), name


@SLOW
def test_the_reference_has_the_names_of_the_studies(site: Path) -> None:
    places = Links(site / "api" / "studies.html").places
    assert {"hessblocks_studies.run_study", "hessblocks_studies.find"} <= places


def dir_of_packages() -> list[str]:
    """The packages themselves, which are pages or have no name for users."""
    return [path.stem for path in (ROOT / "src" / "hessblocks").iterdir()]


@SLOW
def test_every_study_has_a_page_and_a_small_picture_in_the_index(site: Path) -> None:
    index = (site / "docs" / "results.html").read_text(encoding="utf-8")
    found = (ROOT / "docs" / "results").glob("*-figure.json")
    studies = sorted(path.name.removesuffix("-figure.json") for path in found)
    assert len(studies) > 20
    running = {path.name for path in (ROOT / "docs" / "results" / "running").iterdir()}
    for name in studies:
        page = (site / "docs" / "results" / f"{name}.html").read_text(encoding="utf-8")
        assert f'src="{name}.png"' in page
        assert f'src="results/{name}-small.png"' in index
        assert f'href="results/{name}.html"' in index
        facts = "<table>" in page.partition("<details>")[2]
        assert facts or name in running, "facts, made of Markdown"


@SLOW
def test_operators_have_their_members_and_examples_are_code(site: Path) -> None:
    places = Links(site / "api" / "curvature.html").places
    assert {
        f"hessblocks.curvature.Hessian.{it}" for it in ("dense", "to_scipy", "adjoint")
    } <= places
    for page in (site / "api").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<blockquote>" not in text, f"{page.name}: an example that is not under Examples:"


@SLOW
@pytest.mark.parametrize("page", ["curvature", "training"])
def test_what_is_copied_of_an_example_can_be_run(browser, site: Path, page: str) -> None:
    open_page(browser, site / "api" / f"{page}.html", 1280)
    copied = browser.execute_script(
        """return [...document.querySelectorAll('code:has(> .gp)')].map(code => {
        code.setAttribute('data-md-copying', '');  // as the theme's button does
        return code.innerText; })"""
    )
    assert copied
    for text in copied:
        ast.parse(text)


@SLOW
def test_indices_stand_below_the_line_and_code_stays_as_it_is(site: Path) -> None:
    text = (site / "docs" / "theory.html").read_text(encoding="utf-8")
    assert text.count("H<sub>o</sub>") > 5
    assert "W<sub>Q</sub>W<sub>K</sub>" in text.replace(" ", "")
    assert "w_query, w_key" in re.sub(r"<[^>]+>", "", text)
    assert "&lt;sub&gt;" not in text


@SLOW
def test_search_leaves_history_out_and_looks_into_guides(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    pages = {item["location"].partition("#")[0] for item in json.loads(index)["docs"]}
    assert "docs/curvature.html" in pages
    assert not pages & {"docs/log.html", "CHANGELOG.html"}


@SLOW
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda it: it.stem)
def test_a_notebook_has_the_code_of_its_example(site: Path, script: Path) -> None:
    notebook = json.loads((site / "examples" / f"{script.stem}.ipynb").read_text(encoding="utf-8"))
    code = "\n".join("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    wanted = [line for line in script.read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert [line for line in code.splitlines() if line and line[0] != "#"] == wanted
    assert (site / "examples" / script.name).read_bytes() == script.read_bytes()


@SLOW
def test_search_finds_a_word_without_a_server(browser, site: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get_log("performance")
    open_page(browser, site / "index.html", 1280)
    browser.find_element("css selector", "input.md-search__input").send_keys("heterogeneity")
    results = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    found = WebDriverWait(browser, 60).until(lambda it: it.execute_script(results))
    pages = [Path(unquote(urlsplit(address).path)) for address in found]
    assert all("heterogeneity" in page.read_text(encoding="utf-8").lower() for page in pages)
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        it["params"]["request"]["url"] for it in sent if it["method"] == "Network.requestWillBeSent"
    ]
    own = ("file:", "data:", "blob:", "chrome:")  # the last: the browser's own first page
    assert [url[:80] for url in asked if not url.startswith(own)] == []


@SLOW
@pytest.mark.parametrize(
    "pages",
    [
        "index.html",
        "for/*/index.html",
        "docs/[bgqr]*.html",
        "api/curvature.html",
        "examples/design_a_block.html",
        pytest.param("**/*.html", marks=pytest.mark.slow),
    ],
)
def test_no_page_scrolls_sideways_on_a_phone(browser, site: Path, pages: str) -> None:
    wide = """const limit = document.documentElement.clientWidth;
        const parts = [...document.querySelectorAll('.md-content img, .md-content h1, .md-content h2, .md-content h3, .md-content p')];
        return [document.documentElement.scrollWidth - limit, parts.filter(e => e.getClientRects().length &&
            !e.closest('.md-typeset__scrollwrap, p:has(> img)') && e.getBoundingClientRect().right > limit + 1)
            .map(e => e.outerHTML.slice(0, 80))]"""
    found = {}
    for page in sorted(site.glob(pages)):
        open_page(browser, page, 360)
        found[page.relative_to(site).as_posix()] = browser.execute_script(wide)
    assert found
    assert {page: fault for page, fault in found.items() if fault != [0, []]} == {}


@SLOW
def test_the_site_is_dark_where_that_is_preferred(browser, site: Path) -> None:
    shades = {}
    for dark in (False, True):
        open_page(browser, site / "index.html", 1280, dark=dark)
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        shades[dark] = sum(map(int, colour.strip("rgb()").split(",")))
    assert shades[True] < 200 < 700 < shades[False]


FAINT = """const rgb = colour => { const found = colour.match(/[\\d.]+/g).map(Number); found[3] ??= 1; return found; };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat([1]);
const above = element => { const found = []; for (let e = element; e; e = e.parentElement) found.push(getComputedStyle(e)); return found; };
const light = colour => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => { const c = colour[i] / 255;
    return sum + share * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); }, 0.05);
return [...document.querySelectorAll('body *')].filter(element => {
    const text = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.getClientRects().length || element.getBoundingClientRect().width < 2) return false;
    const styles = above(element), opacity = styles.reduce((product, style) => product * style.opacity, 1);
    const paper = styles.map(style => rgb(style.backgroundColor)).reduceRight((under, own) => over(own, under), [255, 255, 255, 1]);
    const [r, g, b, a] = rgb(styles[0].color), [one, two] = [light(over([r, g, b, a * opacity], paper)), light(paper)];
    return opacity > 0.02 && Math.max(one, two) / Math.min(one, two) < arguments[0];
}).map(element => element.outerHTML.slice(0, 90))"""


@SLOW
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_text_has_contrast(browser, site: Path, width: int, dark: bool) -> None:
    for page in ("index.html", "docs/price.html", "docs/findings.html", "api/index.html"):
        open_page(browser, site / page, width, dark=dark)
        browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert browser.execute_script(FAINT, 4.5) == [], page
        assert len(browser.execute_script(FAINT, 22)) > 20, "texts are looked at"


@SLOW
def test_an_option_is_not_broken_and_an_arrow_has_a_name(site: Path) -> None:
    text = (site / "docs" / "quantise.html").read_text(encoding="utf-8")
    assert '<span class="option">--tensor-type' in text
    assert text.count("md-nav__icon") > text.count('aria-label="Open the section"') > 3


@SLOW
def test_pictures_follow_the_dark_page(browser, site: Path) -> None:
    filters = {}
    for dark in (False, True):
        open_page(browser, site / "docs" / "results.html", 1280, dark=dark)
        filters[dark] = browser.execute_script(
            "return [...document.querySelectorAll('.md-content img')].map(e => "
            "getComputedStyle(e).filter)"
        )
    assert len(filters[True]) > 20
    assert set(filters[False]) == {"none"}
    assert sorted(set(filters[True])) == ["invert(0.88) hue-rotate(180deg)", "none"]
    assert filters[True].count("none") == 1, "that of maps alone"
