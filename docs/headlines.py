"""Hold headlines to their frames and facts, and quotes of papers to published.toml.

Usage: python docs/headlines.py
A headline (of a study's page, of a finding in README.md) is a mapping of headlines.toml: what it
says, its frame, and the facts that it rests on, with the verdict that each must have.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FRAME = ("model", "precision", "device", "baseline", "text")
"""What a frame says beside seeds and commit, which are read from the results."""
OPEN = re.compile(r"\bopen\b|undecided|nothing is decided|No difference")
"""Words without which a headline must not rest on an undecided fact."""
INTERVAL = re.compile(r"\[([-+]?[\d.]+), ([-+]?[\d.]+)\]")
MEAN = re.compile(r"([-+]?[\d.]+) ± ([\d.]+)")
"""Where a fact tells no interval, three standard errors stand for it."""
QUOTE = re.compile(r"\bpaper(?!'s (?:batch|tokens|scale|size))\b[^.]*\d")
"""In a sentence that quotes a figure of a paper."""
QUOTING = (
    "README.md",
    "docs/findings.md",
    "docs/comparison.md",
    "docs/blocks.md",
    "docs/training.md",
)
"""Pages whose quotes must be in published.toml."""
Headline = Mapping[str, Any]


def read(root: Path = ROOT) -> dict[str, dict[str, Headline]]:
    """Read headlines.toml: `studies` and `readme`, each name → headline."""
    return tomllib.loads((root / "docs" / "headlines.toml").read_text(encoding="utf-8"))


def frame_text(headline: Headline, told: Mapping[str, Any]) -> str:
    """Format the frame of a study's headline, with its seeds and commit.

    Args:
        headline: a headline of headlines.toml.
        told: the study's results.
    """
    parts = {name: headline["frame"][name] for name in FRAME}
    parts |= {
        "seeds": _seeds(told) or "see the facts",
        "commit": told.get("commit") or "not recorded",
    }
    return "; ".join(f"{name}: {value}" for name, value in parts.items())


def readme_table(root: Path = ROOT) -> str:
    """Write README's findings with their intervals, seeds and frames, as a table of Markdown."""
    lines = [
        "| finding | measured | model; precision; device; baseline; text |",
        "| --- | --- | --- |",
    ]
    for headline in read(root)["readme"].values():
        numbers = [" ".join(pair) for pair in headline.get("numbers", ())]
        numbers += [
            f"{check['fact']}: {check['ours']}"
            for study, words, _ in headline["rests_on"]
            for check in _told(root, study)["checks"]
            if check["fact"].startswith(words)
        ]
        frame = "; ".join(str(headline["frame"][part]) for part in FRAME)
        lines.append(f"| {headline['says']} | {'; '.join(numbers)} | {frame} |")
    return "\n".join(lines)


def faults(root: Path = ROOT) -> list[str]:
    """List what is wrong with headlines and quotes; empty if nothing is."""
    told = read(root)
    page = _joined(root / "README.md")
    found = [
        fault
        for kind, headlines in told.items()
        for name, headline in headlines.items()
        for fault in _headline_faults(root, f"{kind}.{name}", headline)
    ]
    bullets = re.findall(r"(?m)^- \*\*(.*)", (root / "README.md").read_text("utf-8"))
    bullets = [" ".join(one.split()) for one in bullets]
    said = [headline["says"] for headline in told["readme"].values()]
    found += [f"README.md: no headline {words!r}" for words in said if f"**{words}" not in page]
    found += [
        f"README.md: {bullet!r} has no frame in headlines.toml"
        for bullet in bullets
        if not any(words.startswith(bullet.rstrip("*. ")[:40]) for words in said)
    ]
    return [*found, *_quote_faults(root)]


def _headline_faults(root: Path, name: str, headline: Headline) -> Iterator[str]:
    missing = [part for part in FRAME if not headline.get("frame", {}).get(part)]
    if missing:
        yield f"{name}: its frame has no {', '.join(missing)}"
    evidence = headline["rests_on"] or headline.get("files")
    if not evidence:
        yield f"{name}: rests on nothing"
    yield from (
        f"{name}: no file {f}" for f in headline.get("files", ()) if not (root / f).is_file()
    )
    texts = [_joined(root / f) for f in headline.get("files", ())]
    for number, _ in headline.get("numbers", ()):
        if not any(number in text for text in texts):
            yield f"{name}: none of its files has {number!r}"
    for study, words, claim in headline["rests_on"]:
        told = _told(root, study)
        facts = [check for check in told["checks"] if check["fact"].startswith(words)]
        if not facts:
            yield f"{name}: {study} has no fact {words!r}"
        if _seeds(told) == 1 and "one seed" not in headline["says"]:
            yield f"{name}: rests on one seed of {study} and does not say so"
        if claim == "open" and not OPEN.search(headline["says"]):
            yield f"{name}: rests on undecided facts and does not say so"
        for check in facts:
            if not _as_claimed(check, claim):
                yield f"{name}: {check['fact']!r} of {study} is not {claim}: {check['ours']}"


def _as_claimed(check: Mapping[str, Any], claim: str) -> bool:
    """Tell whether a fact has the verdict, or its interval the side of 0, of a claim."""
    if claim in ("holds", "fails", "open"):
        return bool(check["holds"] is {"holds": True, "fails": False, "open": None}[claim])
    ends, mean = INTERVAL.search(check["ours"]), MEAN.search(check["ours"])
    if "void" in check["ours"] or not mean:
        return False
    middle, error = map(float, mean.groups())
    low, high = map(float, ends.groups()) if ends else (middle - 3 * error, middle + 3 * error)
    return low > 0 if claim == "above" else high < 0


def _quote_faults(root: Path) -> Iterator[str]:
    quotes = tomllib.loads((root / "docs" / "published.toml").read_text(encoding="utf-8"))["quotes"]
    for quote in quotes:
        if not quote["paper"] or not quote["where"]:
            yield f"published.toml: {quote['says']!r} has no paper or place"
        for figure in quote["figures"]:
            if figure not in quote["says"] and figure not in quote["where"]:
                yield f"published.toml: {quote['says']!r} has no {figure}"
        if quote["says"] not in _joined(root / quote["in"]):
            yield f"{quote['in']}: does not quote {quote['says']!r}, as published.toml has it"
    for name in QUOTING:
        own = [quote["says"] for quote in quotes if quote["in"] == name]
        for sentence in _quotes(_joined(root / name)):
            if not any(says.rstrip(".") in sentence or sentence.strip() in says for says in own):
                yield f"{name}: quotes a figure that is not in published.toml: {sentence.strip()!r}"


def _quotes(text: str) -> list[str]:
    """Find sentences that name the paper and a figure."""
    sentences = re.split(r"(?<=[.!?:])\s+(?=[A-Z*`|-])|\|", text)
    return [one for one in sentences if QUOTE.search(one) and "http" not in one]


def _joined(path: Path) -> str:
    """Read a file with lines, and Python strings over several lines, joined."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    return re.sub(r'" "|" f"', "", text) if path.suffix == ".py" else text


def _told(root: Path, study: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        (root / "docs" / "results" / f"{study}.json").read_text(encoding="utf-8")
    )
    return told


def _seeds(told: Mapping[str, Any]) -> int:
    """Count the seeds of judged runs, without that of a tuning; 0 if the settings have none."""
    seeds = told["settings"].get("seed", ())
    tuned = "tuning" in told["settings"].get("phase", ()) and len(seeds) > 1
    return len(seeds) - tuned


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)  # an empty text would be a failure too
