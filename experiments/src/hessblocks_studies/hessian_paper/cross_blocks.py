"""Fit the growth of all query, key and value blocks of H with data, weights and moments.

Six blocks are measured; the other three are their transposes.
One tensor at a time is scaled in a layer with a causal softmax head under squared loss. The layer
reads the symbols of sums, with embeddings and positions of size σ. In such a layer a moment cannot
be scaled alone. For moments each sequence therefore has one token with loss; its keys are the other
tokens, and its scores are near 0. All keys have the mean t μ. Half of them are at ± a s_i around
it, half at b r_i with Σ r_i = 0. With a ≫ b and means over i,

    M_1 = t μ, M_2 = a²/2 · mean s sᵀ, M_3 u = b³/2 · mean ⟨u, r⟩ r rᵀ.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.figures import Panel, Series
from hessblocks.storage import Row
from hessblocks.theory import AttentionHessian, attention_hessian
from hessblocks_studies import growth, shared
from hessblocks_studies.data import SYMBOLS, addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of

WEIGHTS = {"query": "W_Q", "key": "W_K", "value": "W_V"}
MOMENTS = {"first": "M_1", "second": "M_2", "third": "M_3"}
QUANTITIES = {"x": "σ", **WEIGHTS, **MOMENTS}
"""Scaled quantity → its symbol."""
SPLIT: dict[Part, str] = {"outer": "H_o", "functional": "H_f"}
PAIRS = tuple(combinations_with_replacement(WEIGHTS, 2))
EXPECTED: dict[tuple[str, str, Part], dict[str, int]] = {
    ("value", "value", "outer"): {"x": 2, "first": 2},
    ("query", "query", "outer"): {"x": 6, "key": 2, "value": 2, "second": 2},
    ("key", "key", "outer"): {"x": 6, "query": 2, "value": 2, "second": 2},
    ("query", "key", "outer"): {"x": 6, "query": 1, "key": 1, "value": 2, "second": 2},
    ("query", "value", "outer"): {"x": 4, "key": 1, "value": 1, "first": 1, "second": 1},
    ("key", "value", "outer"): {"x": 4, "query": 1, "value": 1, "first": 1, "second": 1},
    ("value", "value", "functional"): {},
    ("query", "query", "functional"): {"x": 5, "key": 2, "value": 1, "third": 1},
    ("key", "key", "functional"): {"x": 5, "query": 2, "value": 1, "third": 1},
    ("query", "key", "functional"): {"x": 3, "value": 1, "second": 1},
    ("query", "value", "functional"): {"x": 3, "key": 1, "second": 1},
    ("key", "value", "functional"): {"x": 3, "query": 1, "second": 1},
}
"""Block → powers of its factors in the dominant term for small inputs; none: the block is 0."""
SMALL = 0.05
"""σ if a weight is scaled: scores near 0, an output far below the target."""
FAINT = 1e-12
"""Size of W_Q if a moment is scaled."""
SKEW = 1e-2
"""b if b is not scaled; a is 1."""
LARGEST = 0.1
"""Largest σ with an expected power law."""
TOLERANCE = 0.1
"""Largest distance from the expected power that counts as agreement."""
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=8, seeds=2),
    "laptop": growth.Size(width=64, sums=32, seeds=5),
    "paper": growth.Size(width=128, sums=64, seeds=20),
}
_SIGMAS, _FACTORS = growth.logspace(-2, 1, 20), growth.logspace(-2, 0, 5)


@dataclass(frozen=True, kw_only=True)
class CrossSettings(growth.DrawSettings):
    """Settings of a point: one layer at all sizes of one quantity."""

    quantity: str
    """A key of `QUANTITIES`."""


def measure(settings: CrossSettings) -> list[Row]:
    """Measure exact norms of all blocks and both parts, at each size of the quantity."""
    quantity = settings.quantity
    make_layer = moment_layer if quantity in MOMENTS else scaled_layer
    rows: list[Row] = []
    for size in _SIGMAS if quantity == "x" else _FACTORS:
        hessian = make_layer(settings, size)
        rows += [
            {
                "study": "cross-blocks",
                "quantity": quantity,
                "size": size,
                "row": row,
                "column": column,
                "part": part,
                "seed": settings.seed,
                "value": hessian.block(row, column, part).frobenius_norm(),
            }
            for row, column, part in EXPECTED
        ]
    return rows


def scaled_layer(settings: CrossSettings, size: float) -> AttentionHessian:
    """Build a layer that reads sums, with σ or one weight scaled."""
    draw = _Draw(settings)
    ids = addition_batch(settings.sums, seed=draw.seed)["input_ids"]
    width = settings.width
    x = draw.normal(len(SYMBOLS), width)[ids] + draw.normal(ids.shape[1], width)
    scaled = {"x": SMALL} | {settings.quantity: size}
    weights = [scaled.get(group, 1.0) * weight for group, weight in draw.weights(width)]
    target = draw.normal(*x.shape)
    return attention_hessian(scaled["x"] * x, *weights, target=target, mask="causal")


def moment_layer(settings: CrossSettings, size: float) -> AttentionHessian:
    """Build a layer with loss at each sequence's last token; scale one moment of its keys."""
    draw, sums, width = _Draw(settings), settings.sums, settings.width
    factors = dict.fromkeys(MOMENTS, 1.0) | {settings.quantity: size}
    pairs, skewed = draw.normal(sums, 4, width), draw.normal(sums, 8, width)
    around = [
        factors["second"] ** (1 / 2) * torch.cat([pairs, -pairs], dim=1),
        SKEW * factors["third"] ** (1 / 3) * (skewed - skewed.mean(1, keepdim=True)),
    ]
    keys = factors["first"] * draw.normal(sums, 1, width) + torch.cat(around, dim=1)
    x = torch.cat([keys, draw.normal(sums, 1, width)], dim=1)
    tokens = x.shape[1]
    others = ~torch.eye(tokens, dtype=torch.bool)
    (_, query), (_, key), (_, value) = draw.weights(width)
    last = torch.zeros(tokens, 1, dtype=x.dtype)
    last[-1] = 1
    return attention_hessian(
        x,
        FAINT * query,
        key,
        value,
        gradient=last * draw.normal(*x.shape),
        curvature=last[..., None] * torch.eye(width, dtype=x.dtype).expand(*x.shape, width),
        mask=others,
    )


class _Draw:
    """Random numbers of one point, equal at all sizes."""

    def __init__(self, settings: CrossSettings) -> None:
        self.seed = seed_of("cross-blocks", settings.quantity, settings.seed)
        self._generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers in float64."""
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def weights(self, width: int) -> list[tuple[str, Tensor]]:
        """Draw W_Q, W_K and W_V of the paper's size, with their names."""
        std = growth.weight_size(width)
        return [(group, std * self.normal(width, width)) for group in WEIGHTS]


Place = tuple[str, str, Part, str]
"""(row, column, part, quantity)."""
_KEY = ("row", "column", "part", "quantity")
Fits = Mapping[Place, growth.Growth]


def summarise(rows: Rows) -> Summary:
    """Compare every power of every block with the expected one; plot the curves in σ."""
    fits = _fits(rows)
    panels = [
        *(_curves(rows, part) for part in SPLIT),
        *(_powers(fits, part, "weights", WEIGHTS) for part in SPLIT),
        *(_powers(fits, part, "moments", MOMENTS) for part in SPLIT),
    ]
    seeds = len({row["seed"] for row in rows})
    caption = (
        f"One causal softmax head, squared loss, {seeds} seeds. Curves are means with standard "
        "errors. Powers are slopes on double logarithmic scales: weights are scaled at σ = "
        f"{SMALL:g}, moments by keys that have them."
    )
    if fits:
        farthest = max(map(_distance, fits, fits.values()))
        caption += f" No power is farther than {farthest:.2g} from that of theory."
    checks = {block: _check(block, rows, fits) for block in EXPECTED if rows}
    zero = [
        f" {SPLIT[part]} of {row}, {column} is 0."
        for (row, column, part), check in checks.items()
        if not EXPECTED[row, column, part] and check.holds
    ]
    return shared.summary(
        "What the blocks of queries, keys and values grow with",
        caption + "".join(zero),
        (panel for panel in panels if panel.shown),
        list(checks.values()),
        powers=[
            {
                **dict(zip(_KEY, block, strict=True)),
                "expected": _expected(*block),
                **asdict(fit),
            }
            for block, fit in fits.items()
        ],
    )


def _fits(rows: Rows) -> Fits:
    """Fit the power laws, except for blocks that are expected to be 0."""
    small = [row for row in rows if row["quantity"] != "x" or row["size"] <= LARGEST * (1 + 1e-9)]
    fits = {}
    for key, members in shared.grouped(small, *_KEY).items():
        if not EXPECTED[key[:3]]:
            continue
        fit = growth.fit_growth(
            *([row[name] for row in members] for name in ("size", "value", "seed"))
        )
        if fit is not None:
            fits[key] = fit
    return fits


def _curves(rows: Rows, part: Part) -> Panel:
    """Plot norms against σ."""
    used = [row for row in rows if (row["quantity"], row["part"]) == ("x", part) and row["value"]]
    curves = {}
    for block, members in shared.grouped(used, "row", "column").items():
        values = {size: norms for (size,), norms in shared.gathered(members, "size").items()}
        curves[", ".join(block)] = shared.mean_places(values)
    title = f"${SPLIT[part]}$ against the size of the data"
    labels = ("standard deviation σ of embeddings and positions", "Frobenius norm of the block")
    return shared.panel(title, *labels, curves, log="xy")


def _powers(fits: Fits, part: Part, title: str, quantities: Iterable[str]) -> Panel:
    """Plot the measured powers of each block side by side."""
    series = []
    for quantity in quantities:
        at = [index for index, pair in enumerate(PAIRS) if (*pair, part, quantity) in fits]
        slopes = tuple(fits[*PAIRS[index], part, quantity].slope for index in at)
        name = f"{quantity} {title.removesuffix('s')}"
        series.append(Series(name=name, x=tuple(map(float, at)), y=slopes))
    return Panel(
        title=f"${SPLIT[part]}$ against the {title}",
        x_label="block",
        y_label="power",
        kind="bars",
        series=tuple(series),
        ticks=tuple(", ".join(pair) for pair in PAIRS),
    )


def _check(block: tuple[str, str, Part], rows: Rows, fits: Fits) -> Check:
    """Judge all powers of one block, or that the block is 0."""
    row, column, part = block
    fact = f"{SPLIT[part]} of {row}, {column}"
    if not EXPECTED[block]:
        cells = [row for row in rows if (row["row"], row["column"], row["part"]) == block]
        largest = max((row["value"] for row in cells), default=None)
        return Check(
            fact=fact,
            expected="0",
            ours="not measured" if largest is None else f"{largest:g}",
            holds=None if largest is None else largest == 0,
        )
    places = [(*block, name) for name in QUANTITIES]
    block_fits = {key: fits[key] for key in places if key in fits}
    verdicts = {
        fit.over_seeds.within(TOLERANCE, around=_expected(*key)) for key, fit in block_fits.items()
    }
    near = len(block_fits) == len(places) and verdicts == {True}
    return Check(
        fact=f"powers in {fact}",
        expected=", ".join(f"{QUANTITIES[key[3]]} {_expected(*key)}" for key in places),
        ours=", ".join(f"{QUANTITIES[key[3]]} {fit.slope:z.2f}" for key, fit in block_fits.items()),
        holds=False if False in verdicts else True if near else None,
    )


def _distance(key: Place, fit: growth.Growth) -> float:
    return abs(fit.slope - _expected(*key))


def _expected(row: str, column: str, part: Part, quantity: str) -> int:
    """Return the expected power of a quantity in a block that is not 0."""
    return EXPECTED[row, column, part].get(quantity, 0)


STUDY = Study(
    name="cross-blocks",
    title="all blocks of queries, keys and values against data, weights and moments",
    source="Hessian paper, section 4 and Table 1",
    published=(
        "Value blocks grow as σ², query and key blocks as σ⁶ (H_o) and σ⁵ (H_f); a block has the "
        "weights of the other groups, and the first, second or third moment, as factors."
    ),
    settings=growth.draws(_SIZES, CrossSettings, quantity=tuple(QUANTITIES)),
    measure=measure,
    summarise=summarise,
    columns=("study", "quantity", "size", "row", "column", "part", "seed", "value"),
)
