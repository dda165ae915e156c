"""Write docs/results.md, an index, and a page a study with its pictures: python docs/make_results.py RUNS [FOLDER].

RUNS is a folder that `hessblocks reproduce --out RUNS` wrote; after a kill `hessblocks report RUNS`
counts what it left behind. FOLDER takes the pages, this one by default. Nothing is measured here. A study that
RUNS does not hold keeps its page in FOLDER; one that neither holds is listed as missing, with the
command that measures it. Pages of finished studies, whose code has left, stay as they are. A picture is drawn from the
stored figure.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.storage import read_object, write_json, write_text
from hessblocks_studies import find, names
from hessblocks_studies.catalogue import FINISHED, REPLACED
from hessblocks_studies.gallery import (
    StudySection,
    load_section,
    read_figure,
    small_picture,
    study_folders,
    study_pictures,
)

DOCS = Path(__file__).parent
COMMAND = re.compile(r"```bash\n(hessblocks reproduce .*)\n```")
"""The command of a page."""
PICTURES = "results"
PLANS = DOCS / PICTURES / "plans"
"""Rules of finished studies."""
NARROWEST = 6.5
"""Inches of a picture, at least."""
ROOM = 0.24
"""Inches that stay free below a picture without caption and legend."""
HEAD = """# Results

For whoever checks a claim of the two papers, or of this project: every study with its finding. A picture leads to the
study's page, which has its figure, each fact beside what was published or expected, and the command that measured it.
`hessblocks reproduce --list` names all studies too.

<details markdown>
<summary>How to read the pages</summary>

Intervals are 95 %, of one comparison; ± is one standard error. "undecided" means that the seeds of this scale do not
decide the question either way. Where one variance fits all blocks of a study (Bartlett's test), one error, pooled over
blocks and seeds, stands for all of them; "own error" says where it does not. The number of verdicts of a study is allowed
for (Holm): a wrong one is among them in 5 % of cases at most, and "decided alone, not among N" tells what that cost.
Controls, on which verdicts rest, are not counted. Counts have the error of counts, and no clock is better than 2 %, which
is what two blocks of equal operations differ by. One rule of verdict for differences and slopes: an interval inside the
tolerance holds, one outside contradicts, any other leaves a fact undecided. "no power law" says that a straight line does
not fit. Runs that differ in device, precision, start, spacing of rates or commit have no difference. Times add up the clocks of all points; on a
machine with other work, as here, they are several times those of an idle one. In [`results`](results) stand a study's
checks and tables (`STUDY.json`) and the points of its figure (`STUDY-figure.json`). `python docs/make_results.py RUNS`
makes these pages from the folder that `reproduce` wrote with `--out RUNS`. A *finished* study has its verdict; its
page names the commit that has its code.

</details>
"""
HEADLINES = SimpleNamespace(**run_path(str(DOCS / "headlines.py")))
"""The functions of headlines.py, which needs no package."""
FINDINGS = {name: headline["says"] for name, headline in HEADLINES.read()["studies"].items()}
"""What a study found, in a sentence without numbers; its verdicts say how surely."""
TOLD = (
    (False, "some facts do not hold"),
    (None, "some facts are undecided"),
    (True, "all facts hold"),
)
"""What the index says of a study's verdicts, the worst first."""
GROUPS = {
    "Hessian paper": "What does it mean to be a transformer? The Hessian paper",
    "Simplified blocks": "Which parts of a block may go? The paper of simplified blocks",
    "ours": "Our own questions",
}
"""First words of a study's source → heading of the index."""


def main(runs: Path, target: Path = DOCS) -> None:
    """Copy the numbers, draw the pictures, and write the index and a page a study.

    Raises:
        ArgumentError: `runs` holds no study.
        RunError: a file is damaged.
    """
    sections = load_sections(runs)
    if not sections:
        raise ArgumentError(f"RUNS: {runs} holds no study; `hessblocks reproduce` makes one.")
    if target == DOCS:
        check_commits(section for _, section in sections)
    folder = target / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for source, section in sections:
        commit = section.environment.get("commit")
        write_json(folder / f"{section.name}.json", {**section.summary, "commit": commit})
        shutil.copyfile(source / "figure.json", folder / f"{section.name}-figure.json")
        drawn, caption = draw_study(folder, section.name) if section.picture else ((), "")
        write_text(folder / f"{section.name}.md", described(section, drawn, caption))
    write_index(target)
    print(undecided(folder))


def undecided(folder: Path) -> str:
    """Count undecided facts of living studies, and of all; name the living ones with most.

    Living is a study whose code is in the current version. All facts of a superseded page count as
    undecided.
    """
    told = {name: read_object(folder / f"{name}.json")["checks"] for name in there(folder)}
    sizes = {name: len(checks) for name, checks in told.items()}
    old = {name for name in told if SUPERSEDED in (folder / f"{name}.md").read_text("utf-8")}
    counts = {
        name: sizes[name] if name in old else sum(check["holds"] is None for check in checks)
        for name, checks in told.items()
    }
    living = [name for name in told if name not in FINISHED]
    shares = []
    for group in (living, told):
        count, facts = (sum(each[name] for name in group) for each in (counts, sizes))
        shares.append(f"{count} of {facts} ({count / max(facts, 1):.1%})")
    most = sorted(living, key=lambda name: -counts[name])[:5]
    named = ", ".join(f"{name} {counts[name]} of {sizes[name]}" for name in most)
    return (
        f"Undecided facts: {shares[0]} of living studies, whose code is in this version; {shares[1]} "
        f"with finished and replaced ones. Most in {named}."
    )


def there(folder: Path) -> list[str]:
    """List the studies that have a page."""
    return [name for name in FINDINGS if (folder / f"{name}.md").exists()]


def check_commits(sections: Iterable[StudySection]) -> None:
    """Refuse results that no commit can measure again.

    Raises:
        ArgumentError: the code had edits, or was in no checkout.
    """
    for section in sections:
        commit = section.environment.get("commit")
        if not commit or commit.endswith("-dirty"):
            raise ArgumentError(
                f"RUNS: {section.name} was measured by code that is in no commit "
                f"({commit or 'no checkout'}); commit first, then measure it anew."
            )


def draw_study(folder: Path, name: str) -> tuple[tuple[str, ...], str]:
    """Draw the result, the rest and the thumbnail of a study from its stored figure.

    Returns:
        Names of the pictures of its page, and the caption.
    """
    result, rest = study_pictures(name, read_figure(folder / f"{name}-figure.json"))
    bare = {"title": "", "caption": ""}  # which the page says in words
    figures = {
        name: replace(result, **bare),
        f"{name}-more": rest and replace(rest, **bare),
        f"{name}-small": small_picture(result),
    }
    for own, figure in figures.items():
        if figure is not None:
            with TemporaryDirectory() as place:
                small = own.endswith("-small")
                shown = draw(figure, 0 if small else NARROWEST)
                if small:
                    without_legend(shown, figure.size[1] + ROOM)
                drawn = write_picture(shown, Path(place), own)
                shutil.copyfile(drawn, folder / drawn.name)
    pictures = tuple(own for own in (name, f"{name}-more") if figures[own] is not None)
    return pictures, result.caption


def without_legend(drawn: Any, height: float) -> None:
    """Remove the legend of a drawn figure, and the room that it takes.

    Args:
        drawn: figure of matplotlib.
        height: height without the legend, in inches.
    """
    for legend in drawn.legends:
        legend.remove()
        drawn.set_size_inches(drawn.get_figwidth(), height)
        drawn.get_layout_engine().set(rect=(0, ROOM / height, 1, 1 - ROOM / height))


def write_index(target: Path) -> None:
    """Write the index of all studies that have a page; mark finished ones and earlier versions."""
    folder = target / PICTURES
    lines: dict[str, list[str]] = {words: [] for words in GROUPS.values()}
    for name in there(folder):
        summary, page = read_object(folder / f"{name}.json"), folder / f"{name}.md"
        old = name not in FINISHED and summary.get("revision") != find(name).revision
        note = finished(name) if name in FINISHED else SUPERSEDED if old else ""
        before = page.read_text(encoding="utf-8")
        text = before if note in before else before.replace("\n\n", f"\n\n{note}\n\n", 1)
        text = text if name in FINISHED else framed(text, name, summary)
        if text != before:
            write_text(page, text)
        group = next(
            words for start, words in GROUPS.items() if summary["source"].startswith(start)
        )
        lines[group].append(item(folder, name, summary, old=old))
    parts = [
        HEAD,
        *("\n".join([f"## {group}", "", *own, ""]) for group, own in lines.items() if own),
        f"## README's findings, with intervals, seeds and devices\n\n{HEADLINES.readme_table()}\n",
        undecided(folder) + "\n",
        missing(folder),
    ]
    write_text(target / "results.md", "\n".join(part for part in parts if part))


def item(folder: Path, name: str, summary: Mapping[str, Any], *, old: bool) -> str:
    """One study of the index: its picture, its finding, its verdicts."""
    verdicts = {check["holds"] for check in summary["checks"]}
    told = (
        "superseded"
        if old
        else next((words for key, words in TOLD if key in verdicts), "no facts yet")
    )
    if name in FINISHED:
        told = f"{'replaced' if name in REPLACED else 'finished'}; {told}"
    place, picture = f"{PICTURES}/{name}.md", f"{PICTURES}/{name}-small.png"
    shown = f"[![{name}]({picture})]({place}) " if (folder / f"{name}-small.png").exists() else ""
    return f"- {shown}[{name}]({place}): {FINDINGS[name]} *{summary['source']}; {told}.*"


def load_sections(runs: Path) -> list[tuple[Path, StudySection]]:
    """The studies of `runs` with their folders, in the order of the papers."""
    places = {name: place for place, name in enumerate(names())}
    folders = sorted(
        (path for path in study_folders(runs) if path.name not in FINISHED),
        key=lambda path: (places.get(path.name, 99), path.name),
    )
    return [(folder, load_section(folder)) for folder in folders]


SUPERSEDED = (
    "**Superseded**: an earlier version of this study was measured; today's command measures other "
    "points, and the verdicts count for nothing ([log](../log.md))."
)
"""Begins the page of a study whose results are of another revision than today's."""


def finished(name: str) -> str:
    """The sentence at the top of a finished or replaced study's page."""
    why = "**Finished**: this study has its verdict"
    if name in REPLACED:
        why = f"**Replaced**: {REPLACED[name]}; what is said below was measured all the same"
    plan = next(path for path in PLANS.glob("*.md") if f"\n## {name}\n" in path.read_text("utf-8"))
    return (
        f"{why}, and its code is no longer in the current version. "
        f"`git checkout {FINISHED[name]}` in a clone brings it back, and the command below then measures it again; "
        f"[plan](plans/{plan.name}#{name})."
    )


def missing(folder: Path) -> str:
    """The studies that are not there, and those that lack points; empty where all is there."""
    lines = [
        f"- {name}: {find(name).title}. `hessblocks reproduce {name}`"
        for name in names()
        if not (folder / f"{name}.md").exists()
    ]
    for name in (name for name in there(folder) if name not in FINISHED):
        points = read_object(folder / f"{name}.json")["points"]
        command = COMMAND.search((folder / f"{name}.md").read_text(encoding="utf-8"))
        if points["missing"] and command:
            more = " known so far, more follow" if find(name).more else ""
            of = f"{points['missing']} of {points['total']} points{more}"
            lines.append(f"- {name}: {of}. `{command[1]}`")
    return "\n".join(["## Not run, or not to the end", "", *lines, ""]) if lines else ""


def described(section: StudySection, pictures: Sequence[str], caption: str) -> str:
    """The page of one study: its finding, its picture, then facts and settings folded."""
    done, title = section.summary["points"]["done"], section.summary["title"]
    result, *rest = [f"![{title}]({name}.png)" for name in pictures] or [""]
    facts = table(("fact", "expected", "ours", "verdict"), section.facts)
    how = [
        f"Settings: {section.settings}." if section.settings else "",
        f"Scale {section.config['scale']}, {done} point{'s' if done != 1 else ''}, {section.time} "
        f"of computing on {section.hardware}:",
        f"```bash\n{section.command}\n```",
    ]
    parts = [
        f"# {title[0].upper()}{title[1:]}",
        f"**{FINDINGS[section.name]}** Source: {section.summary['source']}. Facts: "
        f"{section.tally}. [All studies](../results.md)",
        result,
        f"*{caption}*" if caption else "",
        f"Known: {section.summary['published']}",
        *(
            [folded(f"Facts, expected and measured ({len(section.facts)})", facts)]
            if section.facts
            else []
        ),
        *(
            [folded("Beside the published curves", difference_table(section))]
            if section.differences
            else []
        ),
        *(folded("More panels: how it was tuned, and other moments", each) for each in rest),
        folded("Settings, and the command", "\n\n".join(filter(None, how))),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def framed(page: str, name: str, summary: Mapping[str, Any]) -> str:
    """Put the frame of a study's finding behind the paragraph that has it."""
    line = f"Frame: {HEADLINES.frame_text(HEADLINES.read()['studies'][name], summary)}."
    bare = re.sub(r"\nFrame: .*\n", "", page)
    return bare.replace(
        "[All studies](../results.md)\n", f"[All studies](../results.md)\n\n{line}\n", 1
    )


def folded(summary: str, text: str) -> str:
    """A part that a click unfolds, on code hosts and on the site."""
    return f"<details markdown>\n<summary>{summary}</summary>\n\n{text.strip()}\n\n</details>"


def difference_table(section: StudySection) -> str:
    """Our curves against the published ones."""
    head = (
        "curve",
        "median difference from the published",
        "largest",
        "within 3 joint standard errors",
    )
    return table(head, [difference.cells for difference in section.differences])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with an empty line after it."""
    lines = [head, ["---"] * len(head), *rows]
    texts = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {text} |" for text in texts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except HessblocksError as error:
        sys.exit(str(error))
