"""Write docs/results.md and its pictures from finished studies: python docs/make_results.py RUNS.

RUNS is a folder that `hessblocks reproduce --out RUNS` wrote. Nothing is computed here.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from hessblocks.files import write_text
from hessblocks.report.gallery import StudySection, load_section, study_folders
from hessblocks.studies import names

DOCS = Path(__file__).parent
PICTURES = DOCS / "results"
HEAD = """# Results

Every figure and table of both papers that `hessblocks reproduce --list` names, as far as it has been
measured, beside what was published or expected. Made by `python docs/make_results.py RUNS` from the
folder that `hessblocks reproduce all --out RUNS` wrote; the numbers behind each picture are in that
folder's `results.csv`. Intervals are 95 %, ± is one standard error.

"too little to say" means that the seeds of this scale do not decide the question either way.
"""


def main(runs: Path) -> None:
    """Copy the pictures and write the page."""
    places = {name: place for place, name in enumerate(names())}
    folders = sorted(study_folders(runs), key=lambda folder: places.get(folder.name, 99))
    PICTURES.mkdir(exist_ok=True)
    parts = [HEAD]
    for folder in folders:
        section = load_section(folder)
        shutil.copyfile(folder / "figures" / f"{folder.name}.png", PICTURES / f"{folder.name}.png")
        parts.append(described(section))
    write_text(DOCS / "results.md", "\n".join(parts))


def described(section: StudySection) -> str:
    """One study as Markdown."""
    done = section.summary["points"]["done"]
    about = f"Scale {section.config['scale']}, {done} points, {section.time} of computing on {section.hardware}."
    missing = f" {section.missing} points are missing." if section.missing else ""
    rows = [
        f"| {check['fact']} | {check['expected']} | {check['ours']} | {check['verdict']} |"
        for check in section.checks
    ]
    table = ["| fact | expected | ours | verdict |", "| --- | --- | --- | --- |", *rows]
    return "\n".join(
        [
            f"## {section.name}: {section.summary['title']}",
            "",
            f"{section.summary['source']}. Known: {section.summary['published']}",
            "",
            f"![{section.caption}](results/{section.name}.png)",
            "",
            about + missing,
            "",
            *(table if rows else []),
            "",
        ]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
