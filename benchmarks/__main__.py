"""Run benchmarks and write their figures: `python -m benchmarks [NAME ...]`.

Each module of this folder with a `main()` prints one line a figure and returns them as a
dictionary; they are written to `benchmarks/results/NAME.json` with versions, hardware and date. All
but `gpu` run on a CPU; that one is left out by default where there is no CUDA device, and
`quantised_files` and `simplified_files` where their files are not named.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import pkgutil
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import benchmarks
from hessblocks.storage import write_json

RESULTS = Path(__file__).parent / "results"
ONLY = ("speed",)
"""Parts of `gpu` that run alone."""
PACKAGES = ("torch", "transformers", "curvlinops-for-pytorch", "hessian-eigenthings", "numpy")


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if not module.name.startswith("_")
    )


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": {package: installed(package) for package in PACKAGES},
    }


def processor() -> str:
    """The processor's model name where Linux tells it, else its architecture."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def installed(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the benchmarks named on the command line, all of them by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default all"
    )
    parser.add_argument(
        "--only", metavar="PART", choices=ONLY, help="of gpu: the part to run (speed), 4 minutes"
    )
    lacking = set() if torch.cuda.is_available() else {"gpu"}
    lacking |= set() if os.environ.get("HESSBLOCKS_SMOLLM2") else {"quantised_files"}
    lacking |= set() if os.environ.get("HESSBLOCKS_SIMPLIFIED") else {"simplified_files"}
    everywhere = [name for name in names() if name not in lacking]
    given = parser.parse_args()
    chosen = given.names or everywhere
    if given.only and chosen != ["gpu"]:
        parser.error("--only: expected the benchmark gpu alone, as in: gpu --only speed")
    if unknown := set(chosen) - set(names()):
        parser.error(f"NAME: {', '.join(sorted(unknown))} unknown; known: {', '.join(names())}")
    for name in chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        figures = module.speed() if given.only else module.main()
        write_json(
            RESULTS / f"{'gpu_speed' if given.only else name}.json",
            {"environment": environment(), "figures": figures},
        )
        if failed := figures.get("failed"):
            sys.exit(f"{name}: failed: {', '.join(failed)}; the reasons are in the results.")


if __name__ == "__main__":
    main()
