"""Write docs/results.md, an index, and a page a study with its pictures: python docs/make_results.py RUNS [FOLDER].

RUNS is a folder that `hessblocks reproduce --out RUNS` wrote; after a kill `hessblocks report RUNS`
counts what it left behind. FOLDER takes the pages, this one by default. Nothing is measured here. A study that
RUNS does not hold keeps its page in FOLDER; one that neither holds is listed as missing, with the
command that measures it. A picture is drawn from the stored figure.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.figures import read_figure
from hessblocks.storage import read_object, write_text
from hessblocks_studies import find, names
from hessblocks_studies.gallery import (
    StudySection,
    load_section,
    small_picture,
    study_folders,
    study_pictures,
)

DOCS = Path(__file__).parent
PICTURES = "results"
NARROWEST = 6.5
"""Inches of a picture, at least."""
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
is what two blocks of equal operations differ by. A slope holds where its estimate lies within the tolerance; its interval,
and "no power law" where a straight line does not fit, say how far to trust it. Times add up the clocks of all points; on a
machine with other work, as here, they are several times those of an idle one. In [`results`](results) stand a study's
checks and tables (`STUDY.json`) and the points of its figure (`STUDY-figure.json`). `python docs/make_results.py RUNS`
makes these pages from the folder that `reproduce` wrote with `--out RUNS`.

</details>
"""
FINDINGS = {
    "heatmap": "Value entries of the Hessian are larger than query entries by more than a decade.",
    "fig3a": "Softmax attention makes query blocks grow far faster with the data than value blocks.",
    "fig3b": "A norm in front of each part stops that growth.",
    "histograms": "Softmax makes query entries small; without it they are as large as value entries.",
    "deep-softmax": "With skips, every layer grows as a single one does.",
    "deep-linear": "Without skips, the power of linear attention triples with every layer.",
    "mlp": "A linear MLP grows with the square of the data, however deep it is.",
    "sigma-linear": "Beyond data of unit scale the growth flattens.",
    "one-matrix": "One matrix for queries and keys leaves less negative curvature than two.",
    "cross-blocks": "Every block has the powers of data, weights and moments that theory gives it.",
    "indefiniteness": "Softmax makes query and key blocks indefinite.",
    "skipless": "Without its skip around attention a block trains far slower.",
    "restrict-updates": "The less values and projections may change, the faster a block without skip trains.",
    "gains": "Gains of attention mostly stay; whether those of values and projections vanish is open.",
    "speed": "A step of SAS and SAS-P saves time on a CPU, more in wider models; on a GPU it costs time.",
    "depth": "V-SkipInit gains nothing from depth; of the other blocks nothing is decided.",
    "masked-lm": "Whether SAS and SAS-P pretrain a BERT as well as pre-LN is open.",
    "downstream": "No difference between fine-tuned blocks is decided.",
    "longer": "Whether SAS and SAS-P keep up over three times the tokens is open.",
    "ablations": "Shaped attention helps, and a block in sequence needs its MLP's skip.",
    "baseline": "The best pre-LN has rotary positions, not the learned ones that were the default.",
    "trial": "At width 64 simplified blocks end behind pre-LN; at width 256, in short runs, ahead.",
    "simplification": "How much more even SAS-P starts depends on the initial scale; training evens others out.",
    "optimisers": "SGD costs pre-LN more than SAS, and Muon gives it more.",
    "temperature": "Hot attention shrinks query and key blocks; nearly one-hot attention makes them larger.",
    "edge-of-stability": "Without a warm-up SAS-P stands larger learning rates than pre-LN.",
    "ladder": "SAS and SAS-P lead in short runs and trail in longer ones; larger models end nearly level.",
    "between": "On small batches most of a pretrained Gauss-Newton matrix lies between weight matrices.",
    "simplify-pretrained": "Refitted MLP units and heads cost about half of depth pruning; prices add nothing decided.",
    "bill": "Bits by curvature save a quarter of uniform bits' KL or more; which curvature matters little.",
}
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
    folder = target / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for source, section in sections:
        for name, own in (("summary", section.name), ("figure", f"{section.name}-figure")):
            shutil.copyfile(source / f"{name}.json", folder / f"{own}.json")
        drawn, caption = draw_study(folder, section.name) if section.picture else ((), "")
        write_text(folder / f"{section.name}.md", described(section, drawn, caption))
    write_index(target, {section.name: section for _, section in sections})


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
                shown = draw(figure, 0 if small else NARROWEST, legend=not small)
                drawn = write_picture(shown, Path(place), own)
                shutil.copyfile(drawn, folder / drawn.name)
    pictures = tuple(own for own in (name, f"{name}-more") if figures[own] is not None)
    return pictures, result.caption


def write_index(target: Path, shown: Mapping[str, StudySection]) -> None:
    """Write the index of all studies that have a page; mark those of an earlier version.

    Args:
        target: folder of pages.
        shown: the studies that were read now.
    """
    folder = target / PICTURES
    there = [name for name in names() if (folder / f"{name}.md").exists()]
    lines: dict[str, list[str]] = {words: [] for words in GROUPS.values()}
    for name in there:
        summary, page = read_object(folder / f"{name}.json"), folder / f"{name}.md"
        old = summary.get("revision") != find(name).revision
        text = page.read_text(encoding="utf-8")
        if old and SUPERSEDED not in text:
            write_text(page, text.replace("\n\n", f"\n\n{SUPERSEDED}\n\n", 1))
        group = next(
            words for start, words in GROUPS.items() if summary["source"].startswith(start)
        )
        lines[group].append(item(folder, name, summary, old=old))
    parts = [
        HEAD,
        missing(shown.values(), there),
        *("\n".join([f"## {group}", "", *own, ""]) for group, own in lines.items() if own),
    ]
    write_text(target / "results.md", "\n".join(part for part in parts if part))


def item(folder: Path, name: str, summary: Mapping[str, Any], *, old: bool) -> str:
    """One study of the index: its picture, its finding, its verdicts."""
    verdicts = {check["holds"] for check in summary["checks"]}
    told = "superseded" if old else next(words for key, words in TOLD if key in verdicts)
    place, picture = f"{PICTURES}/{name}.md", f"{PICTURES}/{name}-small.png"
    shown = f"[![{name}]({picture})]({place}) " if (folder / f"{name}-small.png").exists() else ""
    return f"- {shown}[{name}]({place}): {FINDINGS[name]} *{summary['source']}; {told}.*"


def load_sections(runs: Path) -> list[tuple[Path, StudySection]]:
    """The studies of `runs` with their folders, in the order of the papers."""
    places = {name: place for place, name in enumerate(names())}
    folders = sorted(study_folders(runs), key=lambda path: (places.get(path.name, 99), path.name))
    return [(folder, load_section(folder)) for folder in folders]


SUPERSEDED = (
    "**Superseded**: an earlier version of this study was measured; today's command measures other "
    "points, and the verdicts count for nothing ([log](../log.md))."
)
"""Begins the page of a study whose results are of another revision than today's."""


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
