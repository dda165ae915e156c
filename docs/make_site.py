"""What `make docs` puts into the site beside the pages of this folder; a hook of MkDocs, named in mkdocs.yml.

The site mirrors the repository: README.md is its start, these pages stand under docs/. Made of other files are a page
for each kind of user (of the tables in index.md), the examples as pages and notebooks (of
their cells) and the reference (of the public names and their docstrings). Nothing is imported from the package.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from runpy import run_path

import griffe
import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
STUDIES = ROOT / "experiments" / "src" / "hessblocks_studies"
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "benchmarks/results/*")
"""What the site takes from outside this folder, as it is."""
USERS = {
    "block designers": ("blocks", "signal", "models"),
    "optimisation researchers": ("curvature", "linalg", "inspection"),
    "theorists": ("theory", "curvature"),
    "people who compress a model": ("bill", "export", "simplify", "models"),
    "practitioners": ("models", "training", "data"),
}
"""For whom the library is, and the packages that each of them needs first."""
TASKS = {
    "Measure curvature": (
        "docs/curvature.md",
        """Problem Hessian OuterProduct Functional EmpiricalFisher MonteCarloFisher
        parameter_groups select_groups custom_groups ParameterGroup
        group_norms curvature_map measure_curvature
        CurvatureCallback second_order_attention check_derivatives""",
    ),
    "Price a change": (
        "docs/price.md",
        "price Bill change_each Change in_format rounded pruned merged removed",
    ),
    "Price a cache": ("docs/cache.md", "cache_changes activation_changes"),
    "Quantise a model": (
        "docs/quantise.md",
        "quantise Format formats inspection.measure_quantise export.write_gguf export.write_folder",
    ),
    "Simplify a pretrained model": (
        "docs/simplify.md",
        """load text_batch from_pretrained_blocks to_family to_gguf simplify.candidates
        simplify.measure_removals simplify.heal simplify.simplify_model""",
    ),
    "Build and train blocks": (
        "docs/blocks.md",
        """PRESETS preset BlockConfig build compare training.train models.draw_blocks
        measure_signal signal.propagate SignalCallback GainCallback""",
    ),
    "Closed forms": (
        "docs/theory.md",
        """attention_hessian exact_attention_curvature exact_last_block theory.at_limit
        theory.rank_bound""",
    ),
    "Estimators": (
        "docs/estimators.md",
        """trace frobenius_norm diagonal extreme_eigenvalues condition_number spectral_density
        inverse identity_like LinearOperator Estimate Spectrum""",
    ),
    "Read and draw results": (
        "docs/curvature.md#calculating-handing-over-drawing",
        """read report.load_results report.compare_results report.summary drawing.plot drawing.draw
        drawing.draw_heatmap drawing.write_picture""",
    ),
    "Errors, and what has moved": (
        None,
        "HessblocksError ArgumentError RunError",
    ),
}
"""What users do, the page that says how, and the names for it: each that `hessblocks` itself offers
once, and with their package some that it does not."""
UNSEARCHED = ("docs/log.md", "CHANGELOG.md")
"""History, which a search leaves out."""
PLAIN = re.compile(r"((?s:```.*?```)|`[^`]*`|(?m:^#.*$)|\]\([^)]*\)|<[^>]*>|^:::.*$)", re.MULTILINE)
"""What of a page is not running text."""
INDEX = re.compile(
    r"(?<![A-Za-z0-9_.])(∂?[A-Za-zΑ-Ωα-ωℓ])_([A-Z]{1,2}|[a-zℓ0-9]{1,2}|\*)(?![A-Za-z0-9_])"
)
"""A letter with an index."""
CODE = re.compile(r"(?<!</span>)<code>([^<]+)</code>")
"""Code within a line."""
JOINT = re.compile(r"(?<=[_(,=/])(?=\w)|(?<=[a-z]\.)(?=[a-z])")
"""Where it may break."""
OPTION = re.compile(r"(?<=[ ])--?[a-z][a-z-]*|^--?[a-z][a-z-]*")
WHOLE = r'<span class="option">\g<0></span>'
ARROW = re.compile(r'<label class="md-nav__link[^"]*"(?=[^>]*>\s*<span class="md-nav__icon)')
"""A switch of the menu beside a link, which has no words."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^]\n]+)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Refuse headlines without frame or facts. A site without an address has no page for wrong ones, and no map."""
    if faults := run_path(str(DOCS / "headlines.py"))["faults"]():
        raise PluginError("\n".join(faults))
    config.theme.static_templates -= {"404.html", "sitemap.xml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's layout, with what is made."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])
    held = [Path(file.abs_src_path) for file in files if file.src_dir == config.docs_dir]
    for path in [*held, *(path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern)))]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".html":  # a page as it is, whose links lead to pages
            text = path.read_text(encoding="utf-8").replace("../README.md", "../index.html")
            site.append(File.generated(config, name, content=text.replace('.md"', '.html"')))
        elif path.suffix != ".py":
            site.append(File.generated(config, name, abs_src_path=str(path)))
    for name, content in made():
        site.append(File.generated(config, name, content=content))
    return site


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A script's link leads to its page; what only the repository holds is named, not linked."""

    def led(link: re.Match[str]) -> str:
        path = posixpath.normpath(
            posixpath.join(posixpath.dirname(page.file.src_uri), link["path"])
        )
        if path.startswith("examples/") and page.file.src_uri != path.replace(".py", ".md"):
            return link[0].replace(".py)", ".md)")
        outside = files.get_file_from_path(path) is None and (ROOT / path).exists()
        return link["text"] if outside else link[0]

    if page.file.src_uri in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    text = with_indices(LINK.sub(led, markdown))
    if page.file.src_uri == "README.md":
        doors = ", ".join(f"[{user}]({user_page(user)})" for user in USERS)
        text = text.replace("\n## ", f"\nFor {doors}.\n\n## ", 1)
    return text


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Code within a line breaks at its joints, and what unfolds a part of the menu has a name."""
    output = CODE.sub(
        lambda code: f"<code>{OPTION.sub(WHOLE, JOINT.sub('<wbr>', code[1]))}</code>", output
    )
    return ARROW.sub(r'\g<0> aria-label="Open the section"', output)


def with_indices(markdown: str) -> str:
    """Letters with an index, H_o, with the index below the line; code, headings and links stay."""
    pieces = PLAIN.split(markdown)
    return "".join(
        piece if place % 2 else INDEX.sub(r"\1<sub>\2</sub>", piece)
        for place, piece in enumerate(pieces)
    )


def made() -> Iterator[tuple[str, str]]:
    """Names and contents of the files that are made of others."""
    for user in USERS:
        yield user_page(user), for_user(user)
    for script in sorted((ROOT / "examples").glob("*.py")):
        yield from example(script)
    yield from reference()


EVERYBODY = ("newcomers", "anyone", "everybody who opens a folder that somebody else made")
"""Readers that every user is one of, as docs/index.md names them."""


def user_page(user: str) -> str:
    """The place of a user's page."""
    return f"for/{user.replace(' ', '-')}/index.md"


def for_user(user: str) -> str:
    """The rows of index.md for newcomers and for this user, and the packages."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]+)\) \| ([^:|]+): (.+) \|$", index, re.MULTILINE)
    lines = [
        f"- [{title(DOCS / path)}](../../{posixpath.normpath(f'docs/{path}')}): {what}"
        for path, whom, what in rows
        if user in whom or whom in EVERYBODY
    ]
    packages = ", ".join(f"[{name}](../../api/{name}.md)" for name in USERS[user])
    return "\n".join([f"# For {user}", "", *lines, f"- Reference: {packages}", ""])


def title(path: Path) -> str:
    """The heading of a page, or the first line of a script."""
    marks = r'(?:\A(?:# %% \[markdown\]\n# # |# |""")|<title>)([^\n<]+)'
    return re.search(marks, path.read_text("utf-8"))[1].rstrip(".")


def example(script: Path) -> Iterator[tuple[str, str]]:
    """A script as it is, as a notebook and as a page, with what docs/run_examples.py kept of it."""
    text = script.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # not drawn at random: the same files give the same site
    kept = script.parent / "outputs" / f"{script.stem}.json"
    outputs = iter(json.loads(kept.read_text("utf-8"))["cells"] if kept.exists() else ())
    cells = []
    for cell in notebook.cells:
        code = cell.cell_type == "code"
        cells.append(f"```python\n{cell.source}\n```" if code else cell.source)
        if code and (output := next(outputs, "")):
            cells.append(f"```text\n{output}\n```")
            cell.outputs = [nbformat.v4.new_output("stream", text=output)]
    if not cells[0].startswith("# "):
        cells.insert(0, f"# {title(script)}")
    cells.insert(1, f"[Script]({script.name}) · [notebook]({script.stem}.ipynb)")
    yield f"examples/{script.name}", text
    yield f"examples/{script.stem}.ipynb", jupytext.writes(notebook, fmt="ipynb")
    yield f"examples/{script.stem}.md", "\n\n".join(cells) + "\n"


def reference() -> Iterator[tuple[str, str]]:
    """A page for each package with public names, and the names by task."""
    package = griffe.load("hessblocks", search_paths=[ROOT / "src"])
    rows, tasks = [], [*by_task(package)]
    for name, short in sorted(short_names().items()):
        module = package[name]
        if not (short or module.exports):
            continue
        names = dict.fromkeys([*sorted(short, key=in_tasks().index), *(module.exports or ())])
        yield f"api/{name}.md", page_of(name, module, names)
        rows.append(f"- **[{name}]({name}.md)**: {first_line(module)}")
    studies = griffe.load("hessblocks_studies", search_paths=[ROOT / "src", STUDIES.parent])
    yield "api/studies.md", page_of("studies", studies, names_of(STUDIES / "__init__.pyi"))
    rows.append(f"- **[studies](studies.md)**: {first_line(studies)} `import hessblocks_studies`.")
    parts = ["# Reference", OFFERED, *tasks, "## All packages", "\n".join(rows)]
    yield "api/index.md", "\n\n".join(parts) + "\n"


def by_task(package: griffe.Module) -> Iterator[str]:
    """A section for each task: where it is explained, and each name with its first line.

    Raises:
        ValueError: a name that `hessblocks` offers is not there exactly once.
    """
    homes = {each: name for name, short in short_names().items() for each in short}
    if wrong := [each for each in homes if in_tasks().count(each) != 1]:
        raise ValueError(f"TASKS: expected each public name once, not so {', '.join(wrong)}")
    for task, (guide, names) in TASKS.items():
        yield f"## {task}"
        if guide:
            yield f"Guide: [{title(ROOT / guide.partition('#')[0])}](../{guide})."
        rows = []
        for each in names.split():
            home, _, name = each.rpartition(".")
            home = home or homes[name]
            path = place(package[home], name)
            documented = package[path.removeprefix("hessblocks.")]
            rows.append(f"- [`hb.{each}`]({home}.md#{path}): {first_line(documented)}")
        yield "\n".join(rows)


def page_of(name: str, module: griffe.Module, names: Iterable[str]) -> str:
    """The page of a package: what it is for, and its names."""
    first, _, rest = module.docstring.value.partition("\n")
    parts = [f"# {name}", f"`{module.path}`: {first}", rest.strip()]
    parts += [f"::: {place(module, each)}" for each in names]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_tasks() -> list[str]:
    """The names of all tasks, in their order."""
    return [each for _, names in TASKS.values() for each in names.split()]


def first_line(documented: griffe.Object | griffe.Alias) -> str:
    """The first line of a docstring."""
    return documented.docstring.value.partition("\n")[0]


def names_of(stub: Path) -> list[str]:
    """Names that a stub takes from modules."""
    nodes = ast.parse(stub.read_text(encoding="utf-8")).body
    return [each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names]


OFFERED = """`import hessblocks as hb`, then what you want to do. Each name leads to its
docstring, most with an example."""


def short_names() -> dict[str, list[str]]:
    """Each package's names that `hessblocks` itself offers, as its stub says."""
    stub = ast.parse((ROOT / "src" / "hessblocks" / "__init__.pyi").read_text(encoding="utf-8"))
    packages = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    found = {each.name: [] for node in packages if node.module is None for each in node.names}
    for node in packages:
        if node.module in found:
            found[node.module] += [each.name for each in node.names]
    return found


def place(module: griffe.Module, name: str) -> str:
    """The path of a name; that of the function where a module has the same name."""
    found = module[name]
    found = found.final_target if found.is_alias else found
    return f"{found.path}.{name}" if found.is_module else f"{module.path}.{name}"
