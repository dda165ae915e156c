"""Shaped attention: its identity at initialisation, and the fast form against the explicit matrix."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hessblocks.blocks import (
    Attention,
    Context,
    Dense,
    Identity,
    SelfAttention,
    Shaping,
    centre,
    shaped_matrix,
)
from hessblocks.blocks.attention import permitted_keys
from hessblocks.blocks.shaped import shape_attention

TOKENS, WIDTH, HEADS = 7, 12, 3
PADDING = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]).bool()
MASKS = {
    "causal": (True, None),
    "unmasked": (False, None),
    "causal-padded": (True, PADDING),
    "unmasked-padded": (False, PADDING),
}
masks = pytest.mark.parametrize(("causal", "allowed"), MASKS.values(), ids=MASKS)


def context_of(causal: bool, allowed: Tensor | None, tokens: int = TOKENS) -> Context:
    plain = Context(causal=causal, allowed=allowed)
    mask = None if allowed is None else permitted_keys(tokens, tokens, plain, torch.device("cpu"))
    return Context(causal=causal, allowed=allowed, mask=mask)


def real(x: Tensor, allowed: Tensor | None) -> Tensor:
    """The unpadded tokens' rows."""
    return x.flatten(0, 1) if allowed is None else x[allowed]


def attention(**parts: object) -> SelfAttention:
    return Attention(**parts).build(WIDTH, HEADS, HEADS, 1)  # type: ignore[arg-type]


@masks
def test_zero_queries_and_unit_gains_give_the_identity(
    causal: bool, allowed: Tensor | None
) -> None:
    module = attention(
        shaping=Shaping(), query=Dense(init="zeros"), value=Identity(), projection=Identity()
    )
    x = torch.randn(3, TOKENS, WIDTH)
    out = module(x, context_of(causal, allowed))
    assert torch.allclose(real(out, allowed), real(x, allowed), atol=1e-6)


@masks
def test_the_fast_form_equals_the_explicit_matrix(causal: bool, allowed: Tensor | None) -> None:
    scores = torch.randn(3, HEADS, TOKENS, TOKENS)
    permitted = permitted_keys(
        TOKENS, TOKENS, Context(causal=causal, allowed=allowed), scores.device
    )
    attended = scores.masked_fill(~permitted, -1e30).softmax(-1)
    values = torch.randn(3, HEADS, TOKENS, 4)
    gains = tuple(torch.randn(HEADS, 1, 1) for _ in range(3))
    fast = shape_attention(attended @ values, values, gains, causal=causal, allowed=allowed)  # type: ignore[arg-type]
    explicit = shaped_matrix(attended, gains, permitted) @ values  # type: ignore[arg-type]
    rows = (lambda t: real(t.transpose(1, 2), allowed)) if allowed is not None else (lambda t: t)
    assert torch.allclose(rows(fast), rows(explicit), atol=1e-6)


@masks
def test_the_module_equals_the_explicit_matrix(causal: bool, allowed: Tensor | None) -> None:
    module = attention(
        shaping=Shaping(alpha=0.7, beta=1.3, gamma=0.4), value=Identity(), projection=Identity()
    )
    x = torch.randn(3, TOKENS, WIDTH)
    query, key, value = module._project(x, None)
    permitted = permitted_keys(TOKENS, TOKENS, Context(causal=causal, allowed=allowed), x.device)
    scores = (query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5).masked_fill(
        ~permitted, -1e30
    )
    assert module.gains is not None
    matrix = shaped_matrix(scores.softmax(-1), module.gains.per_head(), permitted)
    explicit = (matrix @ value).transpose(1, 2).flatten(2)
    out = module(x, context_of(causal, allowed))
    assert torch.allclose(real(out, allowed), real(explicit, allowed), atol=1e-6)


def largest_saved(run: Callable[[], Tensor]) -> int:
    sizes = [0]

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return max(sizes)


@pytest.mark.parametrize("padded", [False, True])
def test_the_centre_keeps_no_tokens_by_tokens_buffer(padded: bool) -> None:
    tokens, width = 64, 4
    values = torch.randn(1, 1, tokens, width, requires_grad=True)
    allowed = torch.ones(1, tokens, dtype=torch.bool) if padded else None
    assert (
        largest_saved(lambda: centre(values, tokens, causal=True, allowed=allowed))
        <= tokens * width
    )


def test_later_tokens_do_not_reach_earlier_ones() -> None:
    module = attention(shaping=Shaping())
    x = torch.randn(1, TOKENS, WIDTH)
    changed = x.clone()
    changed[:, -1] += 1
    before, after = module(x, Context()), module(changed, Context())
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_padding_changes_no_real_token() -> None:
    module = attention(shaping=Shaping())
    x = torch.randn(3, TOKENS, WIDTH)
    noisy = torch.where(PADDING[..., None], x, torch.randn_like(x))
    for causal in (True, False):
        context = context_of(causal, PADDING)
        assert torch.allclose(
            module(x, context)[PADDING], module(noisy, context)[PADDING], atol=1e-6
        )


def test_the_centre_of_the_last_queries_is_that_of_all() -> None:
    values = torch.randn(2, HEADS, TOKENS, 4)
    assert torch.equal(
        centre(values, 2, causal=True), centre(values, TOKENS, causal=True)[:, :, -2:]
    )


def test_half_precision_means_are_summed_in_single() -> None:
    values = torch.full((1, 1, 2048, 1), 1.01, dtype=torch.bfloat16)
    assert torch.equal(centre(values, 2048, causal=True), values)
