"""Shaped attention: its identity at initialisation, and the fast form against the explicit
matrix."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from hessblocks.blocks import shaped
from hessblocks.blocks.attention import Attention, SelfAttention
from hessblocks.blocks.gains import Shaping
from hessblocks.blocks.kernels import Context
from hessblocks.blocks.norms import RMSNorm
from hessblocks.blocks.shaped import Counting, centre, mix_causally, shape_attention
from hessblocks.blocks.weights import Dense, Identity

TOKENS, WIDTH, HEADS = 7, 12, 3
PADDING = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]).bool()
MASKS = {
    "causal": (True, None),
    "unmasked": (False, None),
    "causal-padded": (True, PADDING),
    "unmasked-padded": (False, PADDING),
}
masks = pytest.mark.parametrize(("causal", "allowed"), MASKS.values(), ids=MASKS)


def permitted_keys(causal: bool, allowed: Tensor | None, tokens: int = TOKENS) -> Tensor:
    """True where a token may attend to a key, (sequences or 1, 1, tokens, tokens)."""
    permitted = torch.ones(1, 1, tokens, tokens, dtype=torch.bool)
    if causal:
        permitted = permitted.tril()
    return permitted if allowed is None else permitted & allowed[:, None, None, :]


def shaped_matrix(attention: Tensor, gains: Tensor, permitted: Tensor) -> Tensor:
    """αI + βA − γC, built as it is written."""
    alpha, beta, gamma = gains
    uniform = permitted / permitted.sum(dim=-1, keepdim=True).clamp(min=1)
    return alpha * torch.eye(attention.shape[-1]) + beta * attention - gamma * uniform


def context_of(causal: bool, allowed: Tensor | None, aligned: bool = True) -> Context:
    mask = None if allowed is None else permitted_keys(causal, allowed)
    return Context(causal=causal, allowed=allowed, mask=mask, aligned=aligned)


def real(x: Tensor, allowed: Tensor | None) -> Tensor:
    """The unpadded tokens' rows."""
    return x.flatten(0, 1) if allowed is None else x[allowed]


def attention(**parts: object) -> SelfAttention:
    return Attention(**parts).build(WIDTH, HEADS, HEADS, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "slots", [["attention.sink=sink", "attention.sink.score=0.7"], ["position=alibi"]], ids=str
)
def test_zero_queries_are_the_identity_whatever_is_added_to_the_scores(slots: list[str]) -> None:
    model = hb.build("sas", depth=2, width=WIDTH, heads=HEADS, vocab_size=9, slots=slots)
    attention, seen = model.model.layers[1].attention, {}
    attention.register_forward_hook(
        lambda module, inputs, output: seen.update(x=inputs[0], y=output)
    )
    model(torch.randint(9, (2, TOKENS)))
    torch.testing.assert_close(seen["y"], seen["x"], rtol=0, atol=1e-5)


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
    permitted = permitted_keys(causal, allowed)
    attended = scores.masked_fill(~permitted, -1e30).softmax(-1)
    values = torch.randn(3, HEADS, TOKENS, 4)
    gains = torch.randn(3, HEADS, 1, 1)
    middle = centre(values, causal=causal, allowed=allowed)
    found = [shape_attention(attended @ values, values, middle, gains)]
    if causal:
        counting = Counting.of(values, allowed)
        found.append(mix_causally(attended @ values, values, values, gains, counting))
    explicit = shaped_matrix(attended, gains, permitted) @ values
    rows = (lambda t: real(t.transpose(1, 2), allowed)) if allowed is not None else (lambda t: t)
    for fast in found:
        assert torch.allclose(rows(fast), rows(explicit), atol=1e-6)


@pytest.mark.parametrize("padded", [False, True])
def test_mixing_in_one_kernel_has_the_derivatives_of_mixing_in_chunks(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = torch.tensor([[True] * 5 + [False] * 2] * 2) if padded else None
    given = [
        torch.randn(shape).double().requires_grad_()
        for shape in (*[(2, HEADS, 7, 4)] * 3, (3, HEADS, 1, 1))
    ]
    along, cotangent = [torch.randn_like(t) for t in given], torch.randn(2, HEADS, 7, 4).double()

    def derivatives() -> list[Tensor]:
        attended, values, cached, gains = given
        mixed = mix_causally(attended, values, cached, gains, Counting.of(values, allowed))
        first = torch.autograd.grad(mixed.tanh(), given, cotangent, create_graph=True)
        return [mixed, *first, *torch.autograd.grad(first, given, along)]

    in_chunks = derivatives()
    monkeypatch.setattr(shaped, "in_one_kernel", lambda values: True)
    for one, chunked in zip(derivatives(), in_chunks, strict=True):
        torch.testing.assert_close(one, chunked, rtol=1e-12, atol=1e-12)


@masks
def test_the_module_equals_the_explicit_matrix(causal: bool, allowed: Tensor | None) -> None:
    module = attention(
        shaping=Shaping(alpha=0.7, beta=1.3, gamma=0.4), value=Identity(), projection=Identity()
    )
    x = torch.randn(3, TOKENS, WIDTH)
    query, key, value = module._project(x, None)
    permitted = permitted_keys(causal, allowed)
    scores = (query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5).masked_fill(
        ~permitted, -1e30
    )
    assert module.gains is not None
    matrix = shaped_matrix(scores.softmax(-1), module.gains.per_head(), permitted)
    explicit = (matrix @ value).transpose(1, 2).flatten(2)
    for aligned in (True, False):
        context = context_of(causal, allowed, aligned)
        out = module(x, context)
        assert torch.allclose(real(out, allowed), real(explicit, allowed), atol=1e-6)
        seen = module.matrix(x, context)
        rows = (
            (lambda t: real(t.transpose(1, 2), allowed)) if allowed is not None else (lambda t: t)
        )
        assert torch.allclose(rows(seen), rows(matrix), atol=1e-6)


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
    tokens, width = 256, 16
    values = torch.randn(1, 1, tokens, width, requires_grad=True)
    allowed = torch.ones(1, tokens, dtype=torch.bool) if padded else None
    assert largest_saved(lambda: centre(values, causal=True, allowed=allowed)) <= tokens * width


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


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("padded", [False, True])
def test_the_running_mean_is_the_mean_of_what_came_before(tokens: int, padded: bool) -> None:
    values = torch.randn(2, HEADS, tokens, 4, dtype=torch.float64)
    allowed = torch.rand(2, tokens) > 0.3 if padded else torch.ones(2, tokens, dtype=torch.bool)
    means = centre(values, causal=True, allowed=allowed if padded else None)
    for row in range(2):
        for last in range(tokens):
            before = values[row, :, : last + 1][:, allowed[row, : last + 1]]
            expected = before.mean(dim=1) if before.shape[1] else torch.zeros(HEADS, 4).double()
            assert torch.allclose(means[row, :, last], expected, atol=1e-12)


def test_derivatives_of_the_running_mean_are_exact_to_second_order() -> None:
    values = torch.randn(1, 1, 20, 2, dtype=torch.float64, requires_grad=True)
    allowed = torch.arange(20)[None] > 2
    assert torch.autograd.gradgradcheck(
        lambda v: centre(v.sin(), causal=True, allowed=allowed), values, check_fwd_over_rev=True
    )


def test_half_precision_means_are_summed_in_single() -> None:
    values = torch.full((1, 1, 2048, 1), 1.01, dtype=torch.bfloat16)
    one_rounding = 0.75 * torch.finfo(torch.bfloat16).eps  # it is half of eps, two are a whole one
    assert torch.allclose(centre(values, causal=True), values, rtol=one_rounding, atol=0)


def test_without_a_centre_the_matrix_is_identity_and_attention() -> None:
    module = attention(shaping=Shaping(alpha=0.7, beta=0.0, centred=False))
    x = torch.randn(3, TOKENS, WIDTH)
    assert torch.allclose(module.matrix(x, Context()), 0.7 * torch.eye(TOKENS), atol=1e-6)
    assert module.gains is not None
    assert not module.gains.gamma.requires_grad


def largest_first_query_gradients(module: SelfAttention, steps: int) -> list[float]:
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    x, sizes = torch.randn(3, TOKENS, WIDTH), []
    for _ in range(steps):
        optimiser.zero_grad()
        module(x, Context()).square().mean().backward()
        sizes.append(module.query.weight.grad.abs().max().item())
        optimiser.step()
    return sizes


def test_a_zero_query_gain_starts_at_the_identity_without_a_burst_of_gradient() -> None:
    """A zero W_Q under a norm has a gradient of size 1/√eps; a zero gain of the norm has not."""
    weights = {"value": Identity(), "projection": Identity(), "shaping": Shaping()}
    gain = attention(query_key_norm=RMSNorm(), query_norm=RMSNorm(gain=0.0), **weights)
    x = torch.randn(3, TOKENS, WIDTH)
    assert torch.allclose(gain(x, Context()), x, atol=1e-6)
    still, moving = largest_first_query_gradients(gain, 2)
    assert still == 0
    assert 0 < moving < 1
    weight = attention(query=Dense(init="zeros"), query_key_norm=RMSNorm(), **weights)
    assert largest_first_query_gradients(weight, 1)[0] > 100
