"""Write docs/results.md and its pictures from studies: python docs/make_results.py RUNS [FOLDER].

RUNS is a folder that `hessblocks reproduce --out RUNS` wrote; after a kill `hessblocks report RUNS`
counts what it left behind. FOLDER takes the page, this one by default. Nothing is measured here. A
study that RUNS does not hold keeps what FOLDER's page says of it; one that neither holds is listed
as missing, with the command that measures it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.storage import read_object, write_text
from hessblocks_studies import find, names
from hessblocks_studies.gallery import VERDICTS, StudySection, load_section, study_folders

DOCS = Path(__file__).parent
PICTURES = "results"
HEAD = """# Results

For whoever checks a claim of the papers, or of this project. An example: `hessblocks reproduce fig3a` draws Figure 3a of the Hessian
paper, and the section `fig3a` below has its numbers beside the published ones.

Figures and tables of both papers, and our own questions, measured, beside what was published or expected;
`hessblocks reproduce --list` names all studies. The page is filled study by study: below each study stands the
command that measured it, and what has not been measured is listed as missing. `python docs/make_results.py RUNS`
makes the page from the folder that these commands wrote with `--out RUNS`.

In [`results`](results) stand a study's checks and tables (`STUDY.json`) and the points of its figure
(`STUDY-figure.json`). Intervals are 95 %, of one comparison; ± is one standard error. "undecided" means that the seeds of
this scale do not decide the question either way. Where one variance fits all blocks of a study (Bartlett's test), one error, pooled over blocks and
seeds, stands for all of them; "own error" says where it does not. The number of verdicts of a study is allowed for (Holm): a wrong one is among them in
5 % of cases at most, and "decided alone, not among N" tells what that cost. Controls, on which verdicts rest, are not counted. Counts have the error of counts, and no
clock is better than 2 %, which is what two blocks of equal operations differ by. A slope holds where its estimate lies within the
tolerance; its interval, and "no power law" where a straight line does not fit, say how far to trust it.
Times add up the clocks of all points; on a machine with other work, as here, they are several times those
of an idle one.
"""


def main(runs: Path, target: Path = DOCS) -> None:
    """Copy the pictures and write the page.

    Raises:
        ArgumentError: `runs` holds no study.
        RunError: a file is damaged.
    """
    sections = load_sections(runs)
    if not sections:
        raise ArgumentError(f"RUNS: {runs} holds no study; `hessblocks reproduce` makes one.")
    (target / PICTURES).mkdir(parents=True, exist_ok=True)
    for folder, section in sections:
        for source, name in (
            ("summary.json", f"{section.name}.json"),
            ("figure.json", f"{section.name}-figure.json"),
        ):
            shutil.copyfile(folder / source, target / PICTURES / name)
        if section.picture:
            picture = folder / "figures" / f"{folder.name}.png"
            shutil.copyfile(picture, target / PICTURES / f"{section.name}.png")
    shown = {section.name: section for _, section in sections}
    page = target / "results.md"
    kept = kept_parts(page.read_text(encoding="utf-8") if page.exists() else "")
    rows = {name: row for name, (row, _) in kept.items()} | overview_rows(shown.values())
    texts = {name: text for name, (_, text) in kept.items()}
    texts |= {name: described(section) for name, section in shown.items()}
    order = [name for name in names() if name in texts]
    for name in order:
        measured = read_object(target / PICTURES / f"{name}.json").get("revision")
        if measured != find(name).revision and SUPERSEDED not in texts[name]:
            rows[name] = (*rows[name][:3], *("" for _ in VERDICTS), "superseded")
            texts[name] = texts[name].replace("\n\n", f"\n\n{SUPERSEDED}\n\n", 1)
    parts = [
        HEAD,
        *([EXPLAINED] if any(SUPERSEDED in text for text in texts.values()) else []),
        table(OVERVIEW, [rows[name] for name in order]),
        missing(shown.values(), kept),
        *(texts[name] for name in order),
    ]
    write_text(page, "\n".join(part for part in parts if part))


def kept_parts(page: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Row of the overview and section of each study on an earlier page."""
    found = {}
    for section in page.split("\n## ")[1:]:
        name = section.partition(":")[0]
        row = next((line for line in page.splitlines() if line.startswith(f"| [{name}](")), None)
        if row is not None:
            cells = tuple(cell.strip() for cell in row.strip("|").split(" | "))
            found[name] = (cells, f"## {section.rstrip()}\n")
    return found


def load_sections(runs: Path) -> list[tuple[Path, StudySection]]:
    """The studies of `runs` with their folders, in the order of the papers."""
    places = {name: place for place, name in enumerate(names())}
    folders = sorted(study_folders(runs), key=lambda path: (places.get(path.name, 99), path.name))
    return [(folder, load_section(folder)) for folder in folders]


SUPERSEDED = (
    "**Superseded**: an earlier version of this study, with settings that its command no "
    "longer has."
)
"""Begins the section of a study whose results are of another revision than today's."""
EXPLAINED = """Where a study's row says *superseded*, an earlier version of it was measured, and its verdicts count for nothing: today's
command measures other points ([log](log.md)).
"""
OVERVIEW = ("study", "of", "scale", *VERDICTS.values(), "time")


def overview_rows(sections: Iterable[StudySection]) -> dict[str, tuple[str, ...]]:
    """One row a study, by its name."""
    rows = {}
    for section in sections:
        verdicts = [check["holds"] for check in section.summary["checks"]]
        rows[section.name] = (
            f"[{section.name}](#{anchor(section)})",
            section.summary["source"],
            section.config["scale"],
            *(str(verdicts.count(each)) for each in VERDICTS),
            section.time,
        )
    return rows


def missing(sections: Collection[StudySection], kept: Collection[str]) -> str:
    """The studies that are not there, and those that lack points; empty where all is there."""
    there = {section.name for section in sections} | set(kept)
    lines = [
        f"- {name}: {find(name).title}. `hessblocks reproduce {name}`"
        for name in names()
        if name not in there
    ]
    lines += [
        f"- {section.name}: {section.missing} of {section.summary['points']['total']} points. "
        f"`{section.command}`"
        for section in sections
        if section.missing
    ]
    return "\n".join(["## Missing", "", *lines, ""]) if lines else ""


def described(section: StudySection) -> str:
    """One study as Markdown."""
    done = section.summary["points"]["done"]
    picture = f"![{section.summary['title']}]({PICTURES}/{section.name}.png)\n"
    lines = [
        f"## {heading(section)}",
        "",
        f"{section.summary['source']}. Known: {section.summary['published']}",
        "",
        *([picture] if section.picture else []),
        *([table(("fact", "expected", "ours", "verdict"), section.facts)] if section.facts else []),
        *([difference_table(section)] if section.differences else []),
        *([f"Settings: {section.settings}.", ""] if section.settings else []),
        f"Scale {section.config['scale']}, {done} point{'s' if done != 1 else ''}, {section.time} "
        f"of computing on {section.hardware}: `{section.command}`.",
        "",
    ]
    return "\n".join(lines)


def difference_table(section: StudySection) -> str:
    """Our curves against the published ones."""
    head = (
        "curve",
        "median difference from the published",
        "largest",
        "within 3 joint standard errors",
    )
    return table(head, [difference.cells for difference in section.differences])


def heading(section: StudySection) -> str:
    """Of the study's part of the page."""
    return f"{section.name}: {section.summary['title']}"


def anchor(section: StudySection) -> str:
    """The link to `heading`, as Markdown renderers make it."""
    kept = "".join(c for c in heading(section).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


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
