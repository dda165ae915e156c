"""Pages can be read: how many words and numbers they have, and how soon Python and a picture come.

Folded parts (`<details>`), tables and code count for themselves: a reader opens them for numbers.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w.,-])[-+]?\d[\d,.]*(?:e-?\d+)?(?![\w])")
PICTURE = re.compile(r"!\[|<img|<picture")
NUMBERS = 5.0
"""Most numbers in a hundred words of running text."""


def prose(page: str) -> str:
    """A page without code, tables, folded parts, comments, markup and the targets of links."""
    for gone in (r"(?s)```.*?```", r"(?s)<details.*?</details>", r"(?s)<!--.*?-->", r"(?m)^\|.*$"):
        page = re.sub(gone, " ", page)
    page = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page)
    return re.sub(r"<[^>]+>|`[^`]*`", " ", page)


def words(text: str) -> list[str]:
    """Words of a text, numbers among them."""
    return [word for word in text.split() if re.search(r"\w", word)]


def numbers_in_a_hundred(page: str) -> float:
    """Numbers in a hundred words of running text."""
    text = prose(page)
    return 100 * len(NUMBER.findall(text)) / len(words(text))


def before(page: str, mark: str | re.Pattern[str]) -> int:
    """Words of all kinds before a mark."""
    found = re.search(mark, page)
    assert found, f"no {mark}"
    return len(words(page[: found.start()]))


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


EASY = (
    "docs/glossary.md",
    "docs/quickstart.md",
    "docs/blocks.md",
    "docs/findings.md",
    "docs/comparison.md",
    "docs/results.md",
)
"""Pages that a newcomer lands on."""


@pytest.mark.parametrize("page", ["docs/price.md", "docs/simplify.md", "docs/quantise.md"])
def test_pages_of_tasks_have_six_numbers_in_a_hundred_words_at_most(page: str) -> None:
    assert numbers_in_a_hundred(read(page)) <= 6


@pytest.mark.parametrize("page", ["findings", "comparison", "price", "simplify"])
def test_with_its_open_tables_a_page_has_six_numbers_in_a_hundred_words(page: str) -> None:
    """Big tables are folded: what is open is read."""
    opened = re.sub(r"(?m)^\|(.*)$", r"\1", read(f"docs/{page}.md"))
    assert numbers_in_a_hundred(opened) <= 6


@pytest.mark.parametrize("page", EASY)
def test_a_page_has_few_numbers(page: str) -> None:
    assert numbers_in_a_hundred(read(page)) <= NUMBERS


@pytest.mark.parametrize("page", ["docs/findings.md", "docs/comparison.md"])
def test_answers_and_a_picture_come_first(page: str) -> None:
    """Half of a thousand words to read; protocol, verdicts and history are folded.

    On a phone, some six words wide, the picture begins on the first screen.
    """
    text = read(page)
    assert len(words(prose(text))) <= 500
    assert before(text, PICTURE) <= 120
    assert text.index("- **") < text.index("<picture>") < text.index("<details markdown>")
    assert text.count("<details markdown>") == text.count("</details>") > 4


def answer(page: str) -> str:
    """What stands above the first section."""
    return " ".join(prose(read(page).partition("\n## ")[0]).split())


def test_the_answers_of_findings_have_the_numbers_of_their_study() -> None:
    told = json.loads(read("docs/results/simplification.json"))["tables"]["unevenness"]
    spread = {
        line["variant"]: line["value"]
        for line in told
        if (line["quantity"], line["groups"]) == ("spread", "all weight matrices")
        and line["share_of_the_steps"] == 0
    }
    factors = [round(10 ** spread[block]) for block in ("pre-ln, zero queries", "sas-p")]
    assert "factor of {} from the middle, one of SAS-P a factor of {}.".format(*factors) in answer(
        "docs/findings.md"
    )


def test_the_answers_of_comparison_have_the_numbers_of_their_study() -> None:
    told = json.loads(read("docs/results/trial.json"))["tables"]["losses"]
    ends = {(line["runs"], line["variant"]): line["final_loss"] for line in told}
    gaps = {
        f"{runs} {block}": f"{abs(ends[runs, block] - ends[runs, 'pre-ln, zero queries']):.3f}"
        for runs in ("narrow", "wide")
        for block in ("sas", "sas-p")
    }
    text = answer("docs/comparison.md")
    assert "SAS ends {} nats above pre-LN and SAS-P {},".format(*list(gaps.values())[:2]) in text
    assert "SAS is {} and SAS-P {} nats below pre-LN".format(*list(gaps.values())[2:]) in text
    rungs = json.loads(read("docs/results/ladder-first.json"))
    sizes = [
        line["gap"]
        for line in rungs["tables"]["gaps"]
        if (line["phase"], line["block"]) == ("widths", "sas")
    ]
    ends = (f"{-sizes[0]:.3f}", f"{sizes[-1]:.3f}")
    assert "SAS goes from {} nats below pre-LN to {} above".format(*ends) in text
    grows = "the gap of sas to pre-ln, zero queries grows with parameters of pre-LN"
    (slope,) = (check["ours"] for check in rungs["checks"] if check["fact"] == grows)
    mean, error = (float(number) for number in re.findall(r"[-+]?\d\.\d+", slope)[:2])
    assert f"changes by {mean:+.2f} ± {error:.2f} nats" in read("docs/comparison.md")


def test_numbers_are_counted() -> None:
    page = (
        "One two 3 four -0.5 ± 1e-3, six.\n\n| 9 | 9 |\n\n"
        "```\n7 7\n```\n`8` [2](x.md) SAS-P layers.0\n"
    )
    assert len(NUMBER.findall(prose(page))) == 4
    assert len(words(prose(page))) == 10
    assert before("a b\n\n![c](d)", PICTURE) == 2


def test_the_readme_is_read_in_two_minutes() -> None:
    page = read("README.md")
    assert len(words(page)) <= 600
    assert before(page, "```python") < 200
    assert before(page, PICTURE) < 120
    assert before(page, "```bash") < 120, "the two commands stand in the first screen"
    assert numbers_in_a_hundred(page) <= NUMBERS
    assert "±" not in page
    models = ("quantise", "price", "simplify", "curvature")
    doors = (*(f"{command} model.gguf" for command in models), "compare --presets")
    for command in (*doors, "reproduce fig3a"):
        assert f"`hessblocks {command}" in page


def test_the_page_on_the_cache_says_what_was_measured() -> None:
    page = read("docs/cache.md")
    assert len(words(page)) <= 1300
    figures = json.loads(read("benchmarks/results/cache.json"))["figures"]
    cells: dict[str, list[str]] = {"prose": [], "code": []}
    for name, draw in figures.items():
        if " tokens, " not in name:
            continue
        whole = [row for row in draw["rows"] if row["kind"] == "whole model"]
        text, tokens = name.split(", ")[:2]
        near = draw["summary"]["whole model"]["within 0.8 to 1.25"]
        assert f"{text} at {tokens} has {near} of {len(whole)}" in page.lower(), name
        for row in whole if tokens == "96 tokens" else ():
            pairs = ("forecast", "forecast_error"), ("measured", "measured_error")
            both = (f"{row[number]:.3g} ± {row[error]:.2g}" for number, error in pairs)
            cells[text].append(f"{', '.join(both)} | {row['ratio']:.2f} |")
    lines = list(zip(*cells.values(), strict=True))
    assert len(lines) >= 16
    for prose_cells, code_cells in lines:
        assert f"| {prose_cells} {code_cells}" in page
    count = figures["summary"]["all"]
    shares = ", ".join(f"{100 * share:.0f}" for share in count["errors"])
    assert f"Of all {count['settings']} rows {shares} %" in page
