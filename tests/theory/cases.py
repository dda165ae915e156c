"""Test cases: small attention layers of every kind, for closed form against autodiff."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from hessblocks.theory.head_vectors import HeadNorm

Special = Literal["none", "zero query", "zero value", "one-hot", "identical tokens", "no loss"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Test case: sizes and options of one layer."""

    name: str
    """Name of the case, for what is particular about it."""
    batch: int = 2
    """Sequences."""
    tokens: int = 4
    """Tokens of a sequence."""
    width: int = 3
    """Width of the input."""
    heads: int = 1
    """Query heads."""
    key_value_heads: int | None = None
    """Heads of keys and values; None for as many as query heads."""
    head: int = 2
    """Query-key width of a head."""
    value: int | None = 3
    """Value width of a head; None for identity values."""
    out: int | None = None
    """Width after the output projection; None without a projection."""
    mask: Literal["none", "causal", "random", "random by sequence"] = "none"
    """Keys that a query may attend to."""
    scores: Literal["softmax", "linear"] = "softmax"
    """Map from scores to attention."""
    query_key: Literal["two-matrix", "one-matrix"] = "two-matrix"
    """Whether queries and keys have a matrix each."""
    turned: int = 0
    """Entries of a query that rotary positions turn."""
    norms: Literal["none", "query", "key", "both", "fixed"] = "none"
    """RMS norms of queries or keys in each head; fixed norms have nothing to train."""
    temperature: float = 1.0
    """Further divisor of the scores."""
    biased: bool = False
    """Whether numbers are added to the scores."""
    gains: bool = False
    """Whether attention is shaped."""
    loss: Literal["squared", "matrix", "factor"] = "squared"
    """Squared loss, or a gradient with a dense (indefinite) or low-rank curvature a token."""
    special: Special = "none"
    """A degenerate input or weight."""


_ROTARY = Case(name="rotary", head=4, turned=4, tokens=5, mask="causal")
_NORMED = Case(name="normed", norms="both", head=3, tokens=5, mask="causal")
_SHAPED = Case(name="shaped", gains=True, mask="causal")
CASES = (
    Case(name="plain"),
    Case(name="one sequence, causal", batch=1, mask="causal"),
    Case(name="random mask", mask="random", tokens=5),
    Case(name="mask by sequence", mask="random by sequence", tokens=5),
    Case(name="head wider than input", width=2, head=4, value=3),
    Case(name="input much wider than head", width=7, head=1, value=2, mask="causal"),
    Case(name="wide, linear scores", width=7, head=1, value=2, scores="linear", mask="causal"),
    Case(name="any loss", loss="matrix", value=2, mask="causal"),
    Case(name="low-rank curvature", loss="factor", width=5, value=4, mask="causal"),
    Case(name="projection", out=4, loss="matrix"),
    Case(name="three heads, projection", heads=3, head=2, value=2, width=4, out=3, mask="causal"),
    Case(name="three heads, low rank", heads=3, value=3, width=4, out=5, loss="factor"),
    Case(name="three heads side by side", heads=3, value=2, width=3, loss="matrix"),
    Case(name="shared key-value heads", heads=4, key_value_heads=2, value=2, out=3, mask="causal"),
    Case(name="linear scores", scores="linear", mask="causal"),
    Case(name="linear scores, heads", scores="linear", heads=3, value=2, out=3, loss="matrix"),
    Case(name="one matrix", query_key="one-matrix", mask="causal"),
    Case(name="one matrix, heads", query_key="one-matrix", heads=3, value=2, out=3, loss="matrix"),
    Case(name="one matrix, linear", query_key="one-matrix", scores="linear", value=2),
    Case(name="shaped", gains=True, mask="causal", loss="matrix"),
    Case(name="shaped, low rank", gains=True, mask="causal", loss="factor", width=4, value=4),
    Case(name="shaped, heads, projection", gains=True, heads=3, value=2, out=4, mask="random"),
    Case(name="shaped, linear scores", gains=True, scores="linear", mask="causal"),
    replace(_SHAPED, name="simplified block", heads=2, width=4, value=None, loss="factor"),
    replace(_SHAPED, name="simplified block, squared loss", heads=2, width=4, value=None),
    Case(name="identity values, projection", heads=2, width=4, value=None, out=3, loss="matrix"),
    _ROTARY,
    replace(_ROTARY, name="rotary, half of the head", head=6, turned=2, loss="matrix"),
    replace(_ROTARY, name="rotary, low rank", loss="factor", width=4, value=4),
    replace(_ROTARY, name="rotary, shared heads", heads=4, key_value_heads=2, out=3, mask="random"),
    replace(_ROTARY, name="rotary, linear scores", scores="linear", out=3, loss="matrix"),
    replace(_ROTARY, name="rotary, shaped", gains=True, heads=2, width=4, value=None),
    replace(_ROTARY, name="rotary, few tokens", tokens=2, width=3, head=8, turned=8),
    _NORMED,
    replace(_NORMED, name="normed queries", norms="query", loss="matrix"),
    replace(_NORMED, name="normed keys, heads", norms="key", heads=2, out=3, loss="factor"),
    replace(
        _NORMED, name="normed, rotary, shared heads", turned=2, heads=4, key_value_heads=2, out=3
    ),
    replace(_NORMED, name="normed, shaped, linear scores", gains=True, scores="linear", value=None),
    replace(_NORMED, name="fixed norms, shaped", norms="fixed", gains=True, loss="matrix"),
    Case(name="one token", tokens=1, loss="matrix"),
    Case(name="few tokens, wide heads", tokens=2, width=3, head=8, mask="causal"),
    Case(name="few tokens, one wide matrix", tokens=2, width=8, query_key="one-matrix"),
    replace(_SHAPED, name="temperature", temperature=0.5, heads=3, value=2, out=3, loss="matrix"),
    Case(name="temperature, linear scores", temperature=3.0, scores="linear", mask="causal"),
    Case(name="temperature, one matrix", temperature=0.5, query_key="one-matrix", loss="factor"),
    Case(name="bias, heads", biased=True, heads=2, value=2, out=3, mask="causal", loss="matrix"),
    Case(name="bias, one matrix", biased=True, query_key="one-matrix", temperature=2.0),
    replace(_SHAPED, name="bias, shaped", biased=True, loss="factor"),
    Case(name="zero query weights", special="zero query", gains=True, mask="causal"),
    Case(name="zero value weights", special="zero value", mask="causal"),
    Case(name="one-hot attention", special="one-hot"),
    Case(name="identical tokens", special="identical tokens"),
    Case(name="no loss on some tokens", special="no loss", loss="factor", value=4, mask="causal"),
)
"""Every option at least once, alone and together with heads, a projection and another loss."""


def arguments(
    case: Case, *, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0
) -> dict[str, Any]:
    """Draw arguments of `attention_hessian` for a case from normal distributions.

    Args:
        case: the layer.
        dtype: dtype of all tensors.
        device: device of all tensors.
        seed: seed of the random numbers, the same on every device.

    Returns:
        Keyword arguments, the weights stacked by head.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return numbers.to(device, dtype)

    shared = case.key_value_heads or case.heads
    value = case.width // case.heads if case.value is None else case.value
    key_width = case.width if case.query_key == "one-matrix" else case.head
    made: dict[str, Any] = {
        "x": draw(case.batch, case.tokens, case.width),
        "w_query": draw(case.heads, case.width, key_width),
        "w_key": None if case.query_key == "one-matrix" else draw(shared, case.width, key_width),
        "w_value": None if case.value is None else draw(shared, case.width, value),
        "w_projection": None if case.out is None else draw(case.heads, value, case.out),
        "mask": _mask(case, generator, device),
        "scores": case.scores,
        "query_key": case.query_key,
        "rotary": _rotary(case, draw) if case.turned else None,
        **_norms(case, draw),
        "temperature": case.temperature,
        **({"bias": draw(case.heads, case.tokens, case.tokens)} if case.biased else {}),
        "gains": tuple(1 + draw(case.heads) / 4 for _ in range(3)) if case.gains else None,
    }
    out = case.heads * value if case.out is None else case.out
    made |= _loss(case, out, draw)
    _make_special(case.special, made)
    return made


def _norms(case: Case, draw: Any) -> dict[str, HeadNorm]:
    """Draw a gain that is no vector of ones; of fixed norms it is part of the function."""
    found = {}
    for name in ("query", "key"):
        if case.norms in (name, "both", "fixed"):
            norm = HeadNorm.rms(1 + draw(case.head) / 4)
            if case.norms == "fixed":
                norm = HeadNorm(function=_on_sphere, parameters=norm.parameters[:0])
            found[f"{name}_norm"] = norm
    return found


def _on_sphere(vector: Tensor, none: Tensor) -> Tensor:
    length: Tensor = vector.norm()
    return 2 * vector / length


def _rotary(case: Case, draw: Any) -> tuple[Tensor, Tensor]:
    """Draw an angle per pair for each sequence and token, without frequency or order."""
    angles = draw(case.batch, case.tokens, case.turned // 2)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()


def _mask(case: Case, generator: torch.Generator, device: str) -> Any:
    if case.mask == "causal":
        return "causal"
    if case.mask == "none":
        return None
    sequences = case.batch if case.mask == "random by sequence" else 1
    drawn = torch.rand(sequences, case.tokens, case.tokens, generator=generator) < 0.5
    permitted = (drawn | torch.eye(case.tokens, dtype=torch.bool)).to(device)
    return permitted if sequences > 1 else permitted[0]


def _loss(case: Case, out: int, draw: Any) -> dict[str, Tensor]:
    """Draw the loss: a target, or gradient and curvature; the low-rank one has rank 2."""
    rows = (case.batch, case.tokens)
    if case.loss == "squared":
        return {"target": draw(*rows, out)}
    if case.loss == "factor":
        return {"gradient": draw(*rows, out), "curvature_factor": draw(*rows, 2, out)}
    matrix = draw(*rows, out, out)
    indefinite = matrix + matrix.mT + torch.eye(out, dtype=matrix.dtype, device=matrix.device)
    return {"gradient": draw(*rows, out), "curvature": indefinite}


def _make_special(special: Special, made: dict[str, Any]) -> None:
    """Degenerate the inputs in place."""
    if special == "zero query":
        made["w_query"].zero_()
    elif special == "zero value":
        made["w_value"].zero_()
    elif special == "one-hot":
        made["w_query"].mul_(1e4)  # scores so far apart that softmax is 0 or 1
    elif special == "identical tokens":
        made["x"][:] = made["x"][:, :1]
    elif special == "no loss":
        made["gradient"][:, :2] = 0
        made["curvature_factor"][:, :2] = 0
