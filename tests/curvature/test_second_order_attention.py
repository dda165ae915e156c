"""Attention by tiles against autograd's own double backward pass, in every form that it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessblocks as hb
from hessblocks.curvature.attention import attend_twice, tiles
from hessblocks.curvature.attention.tiles import Size, Visibility
from hessblocks.errors import ArgumentError, HessblocksError
from tests.breadth import everyday
from tests.curvature.live_bytes import LiveBytes

SEQUENCES, HEADS, TOKENS, WIDTH = 2, 4, 7, 3
LOWEST = torch.finfo(torch.float64).min
Function = Callable[..., Tensor]


def spelled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention in single steps; a row that sees nothing is zero."""
    shared = query.shape[-3] // key.shape[-3]
    key, value = (t.repeat_interleave(shared, -3) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if window is not None:
        seen = seen & ~seen.tril(-window)
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        last = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, last], -1)
    largest = scores.amax(-1, keepdim=True).detach()
    raised = (scores - largest.masked_fill(largest == -torch.inf, 0.0)).exp()
    weights = raised / raised.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights[..., : key.shape[-2]] @ value


def padded(left: int, right: int, others: int) -> Tensor:
    """The first sequence lacks so many keys at its ends; one query of the second sees nothing."""
    seen = torch.ones(SEQUENCES, 1, TOKENS, others, dtype=torch.bool)
    seen[0, ..., :left] = False
    seen[0, ..., others - right :] = False
    seen[1, :, 4] = False
    return seen


def added(others: int, *, lowest: bool) -> Tensor:
    """Numbers for the scores, some of them out of reach; with `lowest` as transformers writes
    masks."""
    if not lowest:
        numbers = torch.randn(1, HEADS, TOKENS, others, dtype=torch.float64)
        numbers[..., 2] = -torch.inf
        return numbers
    numbers = torch.zeros(SEQUENCES, 1, TOKENS, others, dtype=torch.float64)
    numbers[0, ..., 2:] = LOWEST
    numbers[1, :, 4] = LOWEST  # a whole row: uniform
    return numbers


MASKS: dict[str, Callable[[int], Tensor | None]] = {
    "none": lambda _: None,
    "padding left": lambda others: padded(2, 0, others),
    "padding right": lambda others: padded(0, 3, others),
    "numbers a head": lambda others: added(others, lowest=False),
    "the lowest number": lambda others: added(others, lowest=True),
    "a row of numbers": lambda others: torch.randn(others, dtype=torch.float64),
}
SHAPES = {
    "heads": (4, TOKENS, 3),
    "shared keys, wider values": (2, TOKENS, 5),
    "more keys, narrower values": (1, 10, 2),
    "fewer keys": (4, 5, 3),
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {"causal": False},
    "causal, scale": {"causal": True, "scale": 0.9},
    "window": {"causal": True, "window": 3},
    "softcap": {"causal": False, "softcap": 0.7},
    "causal, sinks, softcap": {"causal": True, "softcap": 1.5, "sinks": True},
}
SIZES = (Size(rows=1, scores=1), Size(rows=4, scores=400), tiles.CPU)
"""Tiles of one query, of several queries and heads, of everything."""


def derivatives(function: Function, inputs: list[Tensor], *, forwards: bool) -> list[Tensor]:
    """Value and derivatives of order one and two, by torch's ways; `forwards` adds the slower
    ones."""
    torch.manual_seed(1)
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    g = torch.randn_like(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    blocks = [torch.randn(2, *f.shape, dtype=f.dtype) for f in first]
    wanted, options = [*inputs, g], {"retain_graph": True}
    batched = torch.autograd.grad(first, wanted, blocks, is_grads_batched=True, **options)
    one = torch.autograd.grad(first, wanted, [block[1] for block in blocks], **options)
    vmapped = torch.vmap(lambda *vs: torch.autograd.grad(first, wanted, vs, **options))(*blocks)
    found = [y, *first, *batched, *one, *vmapped]
    for pulled, block in zip(first, blocks, strict=True):
        options["materialize_grads"] = True
        found += torch.autograd.grad(pulled, wanted, block[0], **options)
    if forwards:
        found += forward_over_reverse(function, inputs, g.detach(), blocks)
    return found


def forward_over_reverse(
    function: Function, inputs: list[Tensor], g: Tensor, blocks: list[Tensor]
) -> list[Tensor]:
    inputs = [x.detach() for x in inputs]

    def loss(*values: Tensor) -> Tensor:
        return (function(*values) * g).sum().square()

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(loss, tuple(range(len(values))))(*values)

    one = torch.func.jvp(gradient, tuple(inputs), tuple(block[0] for block in blocks))[1]
    several = torch.vmap(lambda *vs: torch.func.jvp(gradient, tuple(inputs), vs)[1])(*blocks)
    mapped = torch.vmap(gradient)(*(torch.stack([x, 2 * x]) for x in inputs))
    return [*one, *several, *mapped]


CASES = list(itertools.product(SHAPES, MASKS, EXTRAS))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 96


# of 120 cases every seventh, which meets each shape, mask, extra and size of tiles
@pytest.mark.parametrize(
    ("shape", "mask", "extra"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (number % 7 > 0))
        for number, case in enumerate(CASES)
    ],
)
def test_tiles_are_autograd(
    shape: str, mask: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, others, values = SHAPES[shape]
    torch.manual_seed(0)
    sizes = ((HEADS, TOKENS, WIDTH), (groups, others, WIDTH), (groups, others, values))
    inputs = [torch.randn(SEQUENCES, *size, dtype=torch.float64) for size in sizes]
    facts = dict(EXTRAS[extra])
    if facts.pop("sinks", False):
        inputs.append(torch.randn(HEADS, dtype=torch.float64))
    causal, scale = facts.pop("causal"), facts.pop("scale", None)
    numbers = MASKS[mask](others)

    def by(attention: Function) -> Function:
        def run(query: Tensor, key: Tensor, value: Tensor, sinks: Any = None) -> Tensor:
            return attention(query, key, value, numbers, causal, scale, **facts, sinks=sinks)

        return run

    number = CASES.index((shape, mask, extra))
    forwards = number % 4 == 0
    monkeypatch.setattr(tiles, "CPU", SIZES[number % len(SIZES)])
    found = derivatives(by(attend_twice), inputs, forwards=forwards)
    expected = derivatives(by(spelled), inputs, forwards=forwards)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-12 * max(1, other.abs().max())


def test_several_vectors_share_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [torch.randn(1, 2, 20, 3).requires_grad_() for _ in range(3)]
    out = hb.second_order_attention(*leaves, is_causal=True)
    first = torch.autograd.grad(out, leaves, torch.ones_like(out), create_graph=True)
    recomputed: list[object] = []
    weights = tiles.TiledHeads.weights
    monkeypatch.setattr(
        tiles.TiledHeads, "weights", lambda *a: [recomputed.append(a[1]), weights(*a)][1]
    )
    vectors = [torch.randn(5, *one.shape) for one in first]
    torch.vmap(lambda *vs: torch.autograd.grad(first, leaves, vs, retain_graph=True))(*vectors)
    assert len(recomputed) == 1


def test_masks_and_windows_skip_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = torch.zeros(1, 1, 64, 3)
    narrow = torch.ones(64, 64, dtype=torch.bool).tril().triu(-7)
    lowest = torch.zeros(64, 64).masked_fill(~narrow, torch.finfo(torch.float32).min)
    monkeypatch.setattr(tiles, "CPU", Size(rows=8, scores=1 << 20))
    cut = [
        Visibility(scale=1.0, **facts).tiles(queries, 64)
        for facts in (
            {"causal": True, "window": 8},
            {"mask": narrow[None, None, None]},
            {"mask": lowest[None, None, None]},
        )
    ]
    assert cut[0] == cut[1] == cut[2]
    assert [tile.keys.stop - tile.keys.start for tile in cut[0]] == [8] + 7 * [15]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_narrower_dtype_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 600, 8) for _ in range(3)]

    def run(dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        out = hb.second_order_attention(*leaves, is_causal=True)
        first = torch.autograd.grad(out, leaves, torch.ones_like(out), create_graph=True)
        return [out, *first, *torch.autograd.grad(first, leaves, first)]

    bound = 1e-5 if dtype == torch.float32 else 0.05
    for one, other in zip(run(dtype), run(torch.float64), strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).norm() < bound * other.norm()


def test_autocast_gives_the_dtype_that_torch_gives() -> None:
    heads = torch.randn(1, 2, 9, 4)
    with torch.autocast("cpu", torch.bfloat16):
        ours = hb.second_order_attention(heads, heads, heads)
        assert ours.dtype == F.scaled_dot_product_attention(heads, heads, heads).dtype


def test_any_leading_axes() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 2, 4, 5), torch.randn(3, 2, 6, 5)
    mask = torch.randn(2, 1, 1, 4, 6)
    found = hb.second_order_attention(query, key, key, mask)
    expected = F.scaled_dot_product_attention(query, key.expand(2, -1, -1, -1, -1), key, mask)
    assert torch.allclose(found, expected, atol=1e-6)
    alone = hb.second_order_attention(query[0, 0], key[0], key[0])
    assert torch.allclose(alone, F.scaled_dot_product_attention(query[0, 0], key[0], key[0]))


HEAD = torch.ones(1, 4, 5, 3)
REFUSED: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "dropout": ("dropout_p", lambda: hb.second_order_attention(HEAD, HEAD, HEAD, dropout_p=0.1)),
    "heads": ("key: .* 4 heads", lambda: hb.second_order_attention(HEAD, HEAD[:, :2], HEAD[:, :2])),
    "heads that do not divide": (
        "key: .* got 3",
        lambda: hb.second_order_attention(HEAD, HEAD[:, :3], HEAD[:, :3], enable_gqa=True),
    ),
    "contexts": ("key: .*tokens", lambda: hb.second_order_attention(HEAD, HEAD, HEAD[:, :, :3])),
    "width": ("key: .*width", lambda: hb.second_order_attention(HEAD[..., :2], HEAD, HEAD)),
    "axes": ("query: ", lambda: hb.second_order_attention(HEAD[0, 0], HEAD, HEAD)),
    "no keys": ("key: ", lambda: hb.second_order_attention(HEAD, HEAD[:, :, :0], HEAD[:, :, :0])),
    "sequences": (
        "key: its axes",
        lambda: hb.second_order_attention(
            HEAD.expand(3, -1, -1, -1), *[HEAD.repeat(2, 1, 1, 1)] * 2
        ),
    ),
    "dtypes": ("value: .*dtype", lambda: hb.second_order_attention(HEAD, HEAD, HEAD.double())),
    "window": ("window", lambda: hb.second_order_attention(HEAD, HEAD, HEAD, window=2)),
    "empty window": (
        "window",
        lambda: hb.second_order_attention(HEAD, HEAD, HEAD, is_causal=True, window=0),
    ),
    "half a window": (
        "window",
        lambda: hb.second_order_attention(HEAD, HEAD, HEAD, is_causal=True, window=1.5),
    ),
    "infinite softcap": (
        "softcap",
        lambda: hb.second_order_attention(HEAD, HEAD, HEAD, softcap=float("inf")),
    ),
    "devices": (
        "key: expected the query's device, cpu; got meta",
        lambda: hb.second_order_attention(HEAD, HEAD.to("meta"), HEAD),
    ),
    "softcap": ("softcap", lambda: hb.second_order_attention(HEAD, HEAD, HEAD, softcap=0.0)),
    "sinks": ("sinks", lambda: hb.second_order_attention(HEAD, HEAD, HEAD, sinks=torch.ones(3))),
    "mask": ("attn_mask", lambda: hb.second_order_attention(HEAD, HEAD, HEAD, torch.ones(5, 4))),
    "mask of a dtype": (
        "attn_mask",
        lambda: hb.second_order_attention(HEAD, HEAD, HEAD, torch.ones(5, 5).long()),
    ),
    "learned mask": (
        "attn_mask: needs a gradient",
        lambda: hb.second_order_attention(HEAD, HEAD, HEAD, torch.ones(5, 5, requires_grad=True)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_sentence(name: str) -> None:
    match, call = REFUSED[name]
    with pytest.raises(ArgumentError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_third_derivative_is_refused() -> None:
    x = torch.randn(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        hb.second_order_attention(x, x, x).square().sum(), x, create_graph=True
    )
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    with pytest.raises(HessblocksError, match="third"):
        torch.autograd.grad(second.square().sum(), x)


def test_a_graph_goes_when_it_is_dropped() -> None:
    leaves = [torch.randn(1, 2, 64, 8).requires_grad_() for _ in range(3)]

    def run() -> None:
        out = hb.second_order_attention(*leaves)
        first = torch.autograd.grad(out, leaves, torch.ones_like(out), create_graph=True)
        torch.func.jvp(hb.second_order_attention, tuple(leaves), tuple(leaves))
        del first

    with LiveBytes() as live:
        run()
        assert live.now == 0 < live.peak


class Model(torch.nn.Module):
    """Embedding, one layer of attention, unembedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.project = torch.nn.Linear(8, 24)
        self.head = torch.nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        query, key, value = (
            t.unflatten(-1, (2, 4)).transpose(1, 2)
            for t in self.project(self.embedding(ids)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", everyday([hb.Hessian, hb.OuterProduct, hb.Functional], hb.Hessian))
def test_a_long_context_in_a_problem_needs_no_square(kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tokens = 520
    model = Model().to(dtype)
    ids = torch.randint(0, 11, (1, tokens))
    group = hb.parameter_groups(model, "tensor")["project.weight"]
    vectors = torch.randn(group.size, 2).to(dtype)
    with LiveBytes() as live:
        found = kind(hb.Problem(model, ids), group) @ vectors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hessblocks.curvature.closed.softmax.LONG", tokens + 1)
        with LiveBytes() as plain:
            expected = kind(hb.Problem(model, ids), group) @ vectors
    bound = 1e-12 if dtype == torch.float64 else 0.05
    assert (found - expected).norm() <= bound * expected.norm()
    assert live.peak < plain.peak


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_a_plan_keeps_no_graph() -> None:
    model = Model()
    with LiveBytes() as live, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hessblocks.curvature.closed.softmax.LONG", 1)
        problem = hb.Problem(model, torch.randint(0, 11, (1, 16)), "causal-lm")
        assert problem.plan.hold
        assert live.now < 1000


def test_torch_own_kernel_is_the_witness_of_zeros() -> None:
    seen = torch.zeros(5, 5, dtype=torch.bool)
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(HEAD, HEAD, HEAD, seen)
    assert torch.equal(hb.second_order_attention(HEAD, HEAD, HEAD, seen), expected)
