"""Write the page of a curvature run: figures, tables, settings, without network."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from hessblocks.conventions import AnyPath
from hessblocks.figures import PART_WORDS, page_text, plain_math
from hessblocks.report.captions import short_names, with_error, with_interval
from hessblocks.report.templates import TEN, RunPage, Table, write_page
from hessblocks.statistics import Average
from hessblocks.storage import CurvatureResults, Eigenvalue, StoredNorm, StoredRatio, load_curvature

FILES = ("results.csv", "map.csv", "spectra.csv")
"""Files with the numbers of the page, which links them if they exist."""
WHOLE = "all groups as one"
WORDS = {part: Markup(page_text(words)) for part, words in PART_WORDS.items()}


def write_curvature_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a curvature run, from its files alone.

    Args:
        folder: folder of `hessblocks curvature`, finished or not.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: the folder is of another kind.
        RunError: a file is damaged or cannot be written.
    """
    from hessblocks.report.curvature_figures import write_curvature_figures

    folder = Path(folder)
    results = load_curvature(folder)
    pictures, part = write_curvature_figures(results), results.parts[-1]
    outside = [name for name in results.by_size() if results.layers[name] is None]
    stored = results.config["model"].get("stored")
    of_model = [f"Of the model, {stored}."] if stored else []
    roles = {group: role.replace("_", " ") for group, role in results.roles.items()}
    return write_page(
        folder,
        "curvature.html",
        title=f"hessblocks curvature: {results.name}",
        heading=f"The curvature of {results.name}",
        headline=(Markup(page_text(_headline(results))), *of_model),
        found=results,
        figures=[
            {"name": name, "of": WORDS.get(name.partition("-")[2]), "picture": picture}
            for name, picture in pictures.items()
        ],
        largest=", ".join(results.by_size()[:3]),
        outside="; ".join(
            f"{plain_math(name)} {norm_text(results.norms[name][part])}" for name in outside
        ),
        whole=any("" in densities for densities in results.spectra.values()),
        eigenvalues=[
            (group or WHOLE, eigenvalue_text(pairs)) for group, pairs in results.eigenvalues.items()
        ],
        rows=[(group, roles[group], *_norms(results, group)) for group in results.by_size()],
        zeros={WORDS[part]: short_names(groups) for part, groups in results.zero_groups().items()},
        settings={name: value for name, value in results.config.items() if name != "groups"},
        environment=results.environment,
        files=FILES,
    )


def curvature_lines(results: CurvatureResults) -> list[Table | str]:
    """Write the headline, the table of norms, largest first, and numbers of the whole model."""
    rows = [(group, *_norms(results, group)) for group in results.by_size()[:TEN]]
    lines: list[Table | str] = [
        _headline(results).replace("$", ""),
        (("group", *(f"‖{part}‖" for part in results.parts)), rows),
        "Frobenius norms of the groups' own blocks (nats per token), ± 1 standard error",
        "outer: Gauss-Newton matrix H_o; functional: H − H_o; full: Hessian H",
    ]
    if len(results.norms) > TEN:
        lines += [f"the {TEN} largest of {len(results.norms)} groups; the page has them all"]
    for part, ratio in results.heterogeneity.items():
        text = heterogeneity_text(ratio)
        lines += [f"heterogeneity of {part}, largest over smallest that is not zero: {text}"]
    for part, share in results.off_diagonal_shares.items():
        lines += [f"off-diagonal share of {part}: {norm_text(share)}"]
    for group, pairs in list(results.eigenvalues.items())[:TEN]:
        text = eigenvalue_text(pairs)
        lines += [f"largest (most positive) eigenvalues of H, {group or WHOLE}: {text}"]
    for part, names in results.zero_groups().items():
        lines += [f"zero curvature ({part}): {short_names(names)}"]
    return lines


CURVATURE = RunPage(
    write=write_curvature_report,
    lines=curvature_lines,
    summary=CurvatureResults.summary,
    read=load_curvature,
)


def _norms(results: CurvatureResults, group: str) -> list[str]:
    """Format the norms of a group, part by part."""
    return [norm_text(results.norms[group][part]) for part in results.parts]


def norm_text(norm: StoredNorm) -> str:
    """Format value and standard error; `(exact)` if there is none."""
    if norm.method == "exact" or norm.value == 0:
        return f"{norm.value:.4g}" + (" (exact)" if norm.method == "exact" else "")
    return with_error(Average(value=norm.value, standard_error=norm.standard_error, seeds=1))


def heterogeneity_text(ratio: StoredRatio) -> str:
    """Format heterogeneity with its interval; without one if it is exact."""
    if ratio.low == ratio.high:
        return norm_text(ratio)
    return f"{with_interval(ratio.value, ratio.low, ratio.high)} (95 % interval)"


def eigenvalue_text(eigenvalues: Sequence[Eigenvalue]) -> str:
    """Format eigenvalues, each with its residual."""
    return ", ".join(f"{pair.value:.4g} (residual {pair.residual:.1g})" for pair in eigenvalues)


def _headline(results: CurvatureResults) -> str:
    """Summarise the main numbers in sentences."""
    part = results.parts[-1]
    order = [name for name in results.by_size() if results.norms[name][part].value > 0]
    if part not in results.heterogeneity or not order:
        return f"{len(results.norms)} groups are measured so far."
    ends = (order[0], order[-1])
    top, bottom = (f"{plain_math(name)} ({norm_text(results.norms[name][part])})" for name in ends)
    sentences = [
        f"In nats per token the {PART_WORDS[part]} is largest in {top} and smallest in {bottom}: a "
        f"ratio of {heterogeneity_text(results.heterogeneity[part])}."
    ]
    if part in results.off_diagonal_shares:
        share = results.off_diagonal_shares[part]
        sentences.append(
            f"Blocks between different groups hold {norm_text(share)} of its squared norm (1 is "
            "all)."
        )
    return " ".join(sentences)
