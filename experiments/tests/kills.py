"""A command killed at random moments, against the same one left alone.

A program: python -m experiments.tests.kills STUDIES SCALE KILLS LONGEST UNDISTURBED DISTURBED
[SEED] runs `hessblocks reproduce STUDIES --scale SCALE --workers 2` into both folders, killing it
in the second KILLS times, each after 1 to LONGEST seconds, and says what differs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from hessblocks_studies.blocks_paper.speed import FASTEST, TOKEN_TIME
from hessblocks_studies.shared.step_times import STEP_TIME

MAIN = "import sys; from hessblocks.cli import main; sys.exit(main())"
CLOCKED = {"value", "standard_error"}
"""Columns that may differ in rows of measured seconds."""
SECONDS = tuple(
    kind + name for kind in ("", FASTEST) for name in (STEP_TIME, TOKEN_TIME, "answer_time")
)
"""Quantities of those rows."""


def reproduce(studies: str, scale: str, out: Path) -> list[str]:
    """The command."""
    words = ["reproduce", studies, "--scale", scale, "--workers", "2", "--out", str(out)]
    return [sys.executable, "-c", MAIN, *words]


def stored(out: Path) -> dict[str, list[dict]]:
    """Records of each study's store, line by line."""
    return {
        path.parent.name: [json.loads(line)["record"] for line in path.read_text().splitlines()]
        for path in sorted(out.glob("*/points.jsonl"))
    }


def killed_and_finished(command: list[str], delays: list[float], out: Path) -> int:
    """Start the command, SIGKILL it after each delay, then let it end; how many kills met it
    alive."""
    met = 0
    for delay in delays:
        program = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        if program.poll() is None:
            met += 1
        program.send_signal(signal.SIGKILL)
        program.wait()
        counts = {name: len(records) for name, records in whole_lines(out).items()}
        print(f"killed after {delay:.1f} s; points stored: {counts}", flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return met


def whole_lines(out: Path) -> dict[str, list[bytes]]:
    """Lines of each store that end; the last one may be torn."""
    return {p.parent.name: p.read_bytes().split(b"\n")[:-1] for p in out.glob("*/points.jsonl")}


def differences(undisturbed: Path, disturbed: Path) -> list[str]:
    """What tells the two folders apart: a sentence each, none when they agree."""
    left, right = stored(undisturbed), stored(disturbed)
    found = [f"{name}: in one folder only" for name in left.keys() ^ right.keys()]
    for name in left.keys() & right.keys():
        for folder, records in ((undisturbed, left[name]), (disturbed, right[name])):
            keys = [record["key"] for record in records]
            if len(set(keys)) != len(keys):
                found.append(f"{name}: a point is there twice in {folder}")
        rows = [
            {record["key"]: unclocked(record) for record in records}
            for records in (left[name], right[name])
        ]
        if rows[0].keys() != rows[1].keys():
            found.append(f"{name}: {len(rows[0].keys() ^ rows[1].keys())} points in one only")
        unequal = [key for key in rows[0].keys() & rows[1].keys() if rows[0][key] != rows[1][key]]
        found += [f"{name}: other numbers at {key}" for key in unequal]
    return found


def unclocked(record: dict) -> list[dict]:
    """Rows of a record without measured seconds."""
    rows = [{**record["common"], **row} for row in record["rows"]]
    return [
        {
            name: row[name]
            for name in row
            if row.get("quantity") not in SECONDS or name not in CLOCKED
        }
        for row in rows
    ]


def main() -> None:
    """See the module."""
    studies, scale, kills, longest, undisturbed, disturbed, *seed = sys.argv[1:]
    generator = random.Random(int(seed[0]) if seed else 0)
    delays = [generator.uniform(1, float(longest)) for _ in range(int(kills))]
    met = killed_and_finished(reproduce(studies, scale, Path(disturbed)), delays, Path(disturbed))
    print(f"{met} of {kills} kills met the command alive")
    if not (Path(undisturbed) / "report.html").exists():
        subprocess.run(reproduce(studies, scale, Path(undisturbed)), check=True)
    counts = {name: len(records) for name, records in stored(Path(disturbed)).items()}
    print(f"{sum(counts.values())} points of {len(counts)} studies: {counts}")
    print("\n".join(differences(Path(undisturbed), Path(disturbed))) or "no difference")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
