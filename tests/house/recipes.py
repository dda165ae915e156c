"""The recipes of CONTRIBUTING.md, done: what each writes into which file, and what then works."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How something new comes into the package."""

    name: str
    """As in the heading 'To add a ...'."""
    edits: dict[str, tuple[tuple[str, str], ...]]
    """File below the repository → pairs of (line, what is written before it); a new file has one
    pair, with an empty line."""
    proof: str
    """Code that uses what is new by its public mechanism."""


PRESET = Recipe(
    name="preset",
    edits={
        "src/hessblocks/blocks/presets.py": (
            (
                "_PRESETS: dict[str, tuple[str, Callable[[BlockConfig], BlockConfig]]] = {\n",
                """def _quiet(block: BlockConfig) -> BlockConfig:
    return block.replace(attention_branch=Branch(gain=0.1), mlp_branch=Branch(gain=0.1))


""",
            ),
            (
                '    "post-ln": (',
                '    "quiet": ("pre-ln; small branches", _quiet),\n',
            ),
        ),
        "src/hessblocks/figures/style.py": (
            (
                '        "post-ln": Mark(',
                '        "quiet": Mark(colour="#117733", marker="d", dashes=(3, 1)),\n',
            ),
        ),
    },
    proof="""
from hessblocks.figures.style import marks
assert "quiet" in hb.PRESETS
assert hb.preset("quiet", width=16).attention_branch.gain == 0.1
model = hb.build("quiet", depth=1, width=16, heads=2, vocab_size=9, context=8)
assert model(torch.arange(8)[None]).logits.isfinite().all()
assert marks(["quiet"])["quiet"].colour == "#117733"
""",
)

PART = Recipe(
    name="part",
    edits={
        "src/hessblocks/blocks/norms.py": (
            (
                "@dataclass(frozen=True, kw_only=True)\nclass NoNorm(",
                '''@dataclass(frozen=True, kw_only=True)
class MaxNorm(Norm, kind="max-norm"):
    """x / max |x|, times a fixed gain."""

    gain: float = finite(1.0)
    """What the largest entry becomes."""
    scale_free: ClassVar[bool] = True

    def build(self, width: int) -> nn.Module:
        """A module without parameters."""
        return _LargestIs(self.gain)


class _LargestIs(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / x.abs().amax(-1, keepdim=True)


''',
            ),
        ),
        "src/hessblocks/blocks/__init__.py": (
            (
                "from hessblocks.blocks.parts import",
                "from hessblocks.blocks.norms import MaxNorm\n",
            ),
        ),
    },
    proof="""
from hessblocks.blocks import MaxNorm
sizes = {"depth": 1, "width": 16, "heads": 2, "vocab_size": 9, "context": 8}
model = hb.build("pre-ln", **sizes, norm=MaxNorm(gain=2.0))
model.eval().save_pretrained(folder)
again = type(model).from_pretrained(folder).eval()
assert again.config.block_config.norm == MaxNorm(gain=2.0)
tokens = torch.arange(8)[None]
assert torch.equal(again(tokens).logits, model(tokens).logits)
try:
    MaxNorm(gain=float("nan"))
except hb.ArgumentError as error:
    assert "max-norm: gain" in str(error)
else:
    raise AssertionError("a gain that is no number was taken")
""",
)

ARCHITECTURE = Recipe(
    name="architecture",
    edits={
        "src/hessblocks/architectures/table.py": (
            (
                "ARCHITECTURES: dict[str, Architecture] = {\n",
                r"""_GPTJ = {
    "query": r"attn\.q_proj",
    "key": r"attn\.k_proj",
    "value": r"attn\.v_proj",
    "projection": r"attn\.out_proj",
    "mlp.in": r"mlp\.fc_in",
    "mlp.out": r"mlp\.fc_out",
    "norm": r"ln_1",
    "embedding.token": "wte",
    "final.norm": "ln_f",
}

""",
            ),
            (
                '    "gptj": Architecture(rules=rules_of(_H, NAMES)),\n',
                '    "gptj": Architecture(rules=rules_of(_H, _GPTJ)),\n',
            ),
        ),
    },
    proof="""
from transformers import GPTJConfig, GPTJForCausalLM
config = GPTJConfig(vocab_size=9, n_positions=8, n_embd=16, n_layer=2, n_head=4, rotary_dim=2)
model = GPTJForCausalLM(config).eval()
groups = hb.parameter_groups(model)
assert not [group.name for group in groups.values() if group.role == "other"]
assert "layers.1.attention.query" in groups
heads = hb.parameter_groups(model, level="head")
assert {f"layers.0.attention.projection.head.{head}" for head in range(4)} <= set(heads)
norms = hb.group_norms(hb.Problem(model, {"input_ids": torch.arange(8)[None]}), groups, probes=4)
assert set(norms) == set(groups)
""",
)

FORMAT = Recipe(
    name="storage format",
    edits={
        "src/hessblocks/tensor_formats/floats.py": (
            (
                "FLOATS = (\n",
                """FP16 = Format(
    "fp16",
    lambda shape: 2 * math.prod(shape),
    lambda rows, importance: rows.half(),
    lambda packed, shape: packed.float(),
)
""",
            ),
            ("    nvfp4(),\n", "    FP16,\n"),
        ),
    },
    proof="""
own = hb.formats()["fp16"]
weight = torch.randn(3, 5)
assert own.bytes(weight.shape) == 30
assert torch.equal(own.rounded(weight), weight.half().float())
changes = hb.change_each(torch.nn.Linear(5, 3), hb.in_format("fp16"))
assert changes["weight, fp16"].bits == 16
""",
)

ESTIMATOR = Recipe(
    name="estimator",
    edits={
        "src/hessblocks/linalg/estimators/fourth_moment.py": (
            (
                "",
                '''"""tr((AᵀA)²), by random probes.

Letters: N columns, K probes, z a probe with entries ±1.
"""

from __future__ import annotations

from hessblocks.linalg.estimators.estimates import Estimate
from hessblocks.linalg.estimators.probes import Probes, check_probes, multiply
from hessblocks.linalg.operators import LinearOperator, column_products, student_factor


def fourth_moment(op: LinearOperator, probes: int = 16, seed: int = 0) -> Estimate:
    """Sum of the fourth powers of the singular values: the mean of ‖AᵀA z‖².

    Args:
        op: operator (M, N).
        probes: K, at least 4.
        seed: of the probes.

    Returns:
        The sum, with the standard error of a mean over K probes.

    Raises:
        ArgumentError: too few probes.
        RunError: a product is not finite.

    Cost: K products with A and K with its adjoint.
    """
    check_probes("fourth_moment", probes, at_least=4)
    columns = multiply(op.adjoint(), multiply(op, Probes(op, seed=seed).draw(probes)))
    squares = column_products(columns, columns).double()
    error = float(squares.std()) / probes**0.5 * student_factor(probes)
    return Estimate(value=float(squares.mean()), standard_error=error, probes=2 * probes)
''',
            ),
        ),
        "src/hessblocks/linalg/estimators/__init__.py": (
            (
                "from hessblocks.linalg.estimators.trace import",
                "from hessblocks.linalg.estimators.fourth_moment import fourth_moment\n",
            ),
        ),
        "src/hessblocks/linalg/__init__.py": (
            (
                "from hessblocks.linalg.kronecker import",
                "from hessblocks.linalg.estimators import fourth_moment\n",
            ),
        ),
    },
    proof="""
from hessblocks.linalg import DenseOperator, fourth_moment
matrix = torch.randn(40, 30, dtype=torch.float64)
found = fourth_moment(DenseOperator(matrix), probes=64)
truth = float(torch.linalg.svdvals(matrix).pow(4).sum())
assert 0 < abs(found.value - truth) <= 3 * found.standard_error
try:
    fourth_moment(DenseOperator(matrix), probes=1)
except hb.ArgumentError as error:
    assert "fourth_moment" in str(error)
else:
    raise AssertionError("one probe was taken")
""",
)

STUDY = Recipe(
    name="study",
    edits={
        "experiments/src/hessblocks_studies/our_questions/coins.py": (
            (
                "",
                '''"""How often a coin falls on its head, by throws."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hessblocks.figures import Figure, Panel, Series
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of

THROWS: dict[Scale, int] = {"smoke": 100, "laptop": 1000, "paper": 10_000}


@dataclass(frozen=True, kw_only=True)
class CoinSettings:
    """A point of this study: one coin."""

    throws: int
    """How often it is thrown."""
    seed: int
    """Of the throws."""


def settings(scale: Scale, seeds: int | None) -> list[CoinSettings]:
    """One point a seed."""
    return [CoinSettings(throws=THROWS[scale], seed=seed) for seed in range(seeds or 4)]


def measure(settings: CoinSettings) -> list[Row]:
    """The share of heads."""
    draw = random.Random(seed_of("coins", settings.seed))
    heads = sum(draw.random() < 0.5 for _ in range(settings.throws))
    return [{"seed": settings.seed, "share": heads / settings.throws}]


def summarise(rows: Rows) -> Summary:
    """The mean share over seeds."""
    mean, error = mean_and_error([row["share"] for row in rows] or [math.nan])
    series = Series(name="share of heads", x=(0.0,), y=(mean,), error=(error,))
    panel = Panel(title="Coins", x_label="Coin", y_label="Share (1)", series=(series,))
    holds = abs(mean - 0.5) <= 3 * error if len(rows) > 1 else None
    return Summary(
        figure=Figure(title="Coins are fair", caption=f"{len(rows)} seeds.", panels=(panel,)),
        checks=(Check(fact="Coins are fair.", expected="0.5", ours=f"{mean:.3g}", holds=holds),),
    )


STUDY = Study(
    name="coins",
    title="throws of coins",
    source="Our question",
    published="Coins are fair.",
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=("seed", "share"),
)
''',
            ),
        ),
        "experiments/src/hessblocks_studies/our_questions/__init__.py": (
            ('"temperature": "temperature"', '"coins": "coins", '),
        ),
    },
    proof="""
import csv, json, pathlib
from hessblocks_studies import find, names, run_study
assert "coins" in names()
assert [point.settings.throws for point in find("coins").points("laptop", 2)] == [1000, 1000]
out = pathlib.Path(folder)
first = run_study("coins", out=out, scale="smoke", seeds=3)
assert first.measured == 3, first
again = run_study("coins", out=out, scale="smoke", seeds=4)
assert again.measured == 1, again
assert len(list(csv.DictReader((out / "coins" / "results.csv").open()))) == 4
assert json.loads((out / "coins" / "summary.json").read_text())["checks"][0]["holds"] is not None
""",
)

FIGURE = Recipe(
    name="figure",
    edits={
        "src/hessblocks/report/parameter_bars.py": (
            (
                "",
                '''"""Parameters of each block, as bars."""

from __future__ import annotations

from hessblocks.figures import Figure, Panel, Series
from hessblocks.report.comparison import Comparison


def parameter_figure(found: Comparison) -> Figure | None:
    """How many parameters the models have; None where none is counted yet.

    Args:
        found: the comparison.

    Returns:
        The figure's content.
    """
    counted = {row.preset: row.parameters for row in found.rows if row.parameters is not None}
    if not counted:
        return None
    bars = Series(
        name="parameters", x=tuple(map(float, range(len(counted)))), y=tuple(counted.values())
    )
    panel = Panel(
        title="Parameters",
        x_label="Block",
        y_label="Parameters $P$ (numbers)",
        series=(bars,),
        kind="bars",
        ticks=tuple(counted),
        by_tick=True,
    )
    return Figure(
        name="parameters",
        title="How large the models are",
        caption="Counted.",
        panels=(panel,),
        marked=found.presets,
    )
''',
            ),
        ),
        "src/hessblocks/report/comparison_figures.py": (
            (
                "from hessblocks.statistics import Average, average",
                "from hessblocks.report.parameter_bars import parameter_figure\n",
            ),
            ("        *along_figures(comparison),\n", "        parameter_figure(comparison),\n"),
        ),
    },
    proof="""
import pathlib
from hessblocks.drawing import draw
from hessblocks.report import compare_results, load_results, write_report
from hessblocks.report.comparison_figures import all_figures
from tests.report.folders import Folder
out = Folder(presets=("pre-ln", "sas"), layers=1).write(pathlib.Path(folder) / "run")
figures = all_figures(compare_results(load_results(out)))
(figure,) = [one for one in figures if one.name == "parameters"]
assert len(draw(figure).axes) == 1
page = write_report(out).read_text()
assert "How large the models are" in page
for suffix in ("png", "svg"):
    assert (out / "figures" / f"parameters.{suffix}").stat().st_size > 1000
""",
)

RECIPES = (STUDY, PRESET, PART, ARCHITECTURE, FORMAT, ESTIMATOR, FIGURE)
