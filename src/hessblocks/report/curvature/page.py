"""The page of a curvature run: figures, tables, and how they were made, in one file without network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessblocks.report.comparison import (
    environment_rows,
    setting_rows,
    short_names,
    with_error,
    with_interval,
)
from hessblocks.report.curvature.figures import write_curvature_figures
from hessblocks.report.templates import inlined, write_page
from hessblocks.statistics import Average
from hessblocks.storage import CurvatureResults, Norm, load_curvature

FILES = ("results.csv", "map.csv", "spectra.csv")
"""Numbers behind the page, linked where they are."""
WORDS = {
    "outer": "outer product H_o",
    "functional": "functional part H_f",
    "full": "full Hessian H",
}


def write_curvature_report(folder: Path) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a curvature run, from its files alone.

    Args:
        folder: that `hessblocks curvature` wrote, finished or not.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: another kind of folder.
        RunError: a file is damaged or cannot be written.
    """
    results = load_curvature(folder)
    pictures = write_curvature_figures(results)
    return write_page(
        folder,
        "curvature.html",
        title=f"hessblocks curvature: {results.name}",
        heading=f"The curvature of {results.name}",
        headline=_headline(results),
        missing=results.missing,
        figures=[_figure(results, name, path) for name, path in pictures.items()],
        columns=("Group", "Role", *results.parts),
        rows=[_row(results, group) for group in results.by_size()],
        zeros={WORDS[part]: short_names(groups) for part, groups in results.zero_groups().items()},
        settings=[*setting_rows(_settings(results.config)), *environment_rows(results.environment)],
        files=[name for name in FILES if (folder / name).exists()],
    )


def text(norm: Norm) -> str:
    """Value and standard error; `(exact)` where there is none."""
    if norm.method == "exact" or norm.value == 0:
        return f"{norm.value:.4g}" + (" (exact)" if norm.method == "exact" else "")
    return with_error(Average(value=norm.value, standard_error=norm.standard_error, seeds=1))


def _headline(results: CurvatureResults) -> str:
    """The most telling numbers, in sentences."""
    part = results.parts[-1]
    order = [name for name in results.by_size() if results.norms[name][part].value > 0]
    if part not in results.heterogeneity or not order:
        return f"{len(results.norms)} groups are measured so far."
    ratio = results.heterogeneity[part]
    shown = text(ratio)
    if ratio.low < ratio.high:
        shown = f"{with_interval(ratio.value, ratio.low, ratio.high)} (95 % interval)"
    sentences = [
        f"The {WORDS[part]} is largest in {order[0]} ({text(results.norms[order[0]][part])}) and smallest "
        f"in {order[-1]} ({text(results.norms[order[-1]][part])}): a ratio of {shown}."
    ]
    if part in results.off_diagonal_shares:
        share = results.off_diagonal_shares[part]
        sentences.append(
            f"Blocks between different groups hold {text(share)} of its squared norm (1 is all)."
        )
    return " ".join(sentences)


def _row(results: CurvatureResults, group: str) -> tuple[str, ...]:
    norms = [text(results.norms[group][part]) for part in results.parts]
    return group, results.roles[group].replace("_", " "), *norms


def _figure(results: CurvatureResults, name: str, picture: Path) -> dict[str, str]:
    title, caption = _words(results, name)
    return {"name": name, "title": title, "caption": caption, "picture": inlined(picture)}


def _words(results: CurvatureResults, name: str) -> tuple[str, str]:
    """Title and caption of a figure."""
    data, settings = results.config["data"], results.config["curvature"]
    source = "random tokens" if data["name"] == "random" else f"held-out tokens of {data['name']}"
    sample = (
        f"n = {data['sequences'] * data['tokens']:,} {source} ({data['sequences']} windows of "
        f"{data['tokens']}), {settings['probes']} random probes a group"
    )
    kind, _, part = name.partition("-")
    if kind == "norms":
        return (
            "Curvature of each parameter group",
            f"Frobenius norm of each group's own block; {sample}. Bars are ± 1 standard error over probes, "
            "where they are wider than the marker; exact values have none. Points at 0 are exactly zero.",
        )
    if kind == "map":
        return (
            f"Map of the {WORDS[part]}",
            "Frobenius norm of each block, on a logarithmic scale; white lines separate the layers, grey "
            f"blocks are exactly zero; {sample}, each block measured from both sides. Errors: map.csv.",
        )
    return (
        f"Spectra of the {WORDS[part]}",
        f"Density of the eigenvalues of each group's own block by stochastic Lanczos quadrature; {sample}. "
        "The band is ± 1 standard error; densities below 1/10,000 of the largest are cut off, and groups whose "
        "block is exactly zero are left out.",
    )


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json without the long list of groups."""
    return {name: value for name, value in config.items() if name != "groups"}
