"""Closed forms against the same function in small steps: value, first and second derivatives,
batched."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers.activations as hf
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature.closed.pointwise import ActivationCurve, Gelu, Silu, Tanh, TanhGelu
from hessblocks.curvature.closed.swap import ClosedForms, swap_activations
from hessblocks.curvature.closed.watch import Watch
from hessblocks.curvature.model_state import evaluation_mode
from hessblocks.errors import RunError

PADDING = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
ADDED = torch.tensor([[0.0, -1.0, -torch.inf], [0.5, 0.0, 0.0], [0.0, 0.0, 2.0]])


def norm_in_steps(x: Tensor, weight: Any, bias: Any, *, centre: bool) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if centre else x
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def attention_in_steps(q: Tensor, k: Tensor, v: Tensor, permitted: Any = None) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if permitted is None:
        permitted = torch.ones(scores.shape[-2:], dtype=torch.bool)
    raised = scores.exp() * permitted
    return raised / raised.sum(-1, keepdim=True).clamp(min=1e-300) @ v


def tanh_gelu(x: Tensor) -> Tensor:
    raised = (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).exp()
    return x * raised / (raised + 1)


ROWS, HEADS = (3, 5), (2, 4, 3, 2)
SHARED = (2, 2, 3, 2)
Function = Callable[..., Tensor]
CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "tanh": (torch.tanh, lambda x: 1 - 2 / ((2 * x).exp() + 1), [ROWS]),
    "tanh method": (lambda x: x.tanh(), lambda x: 1 - 2 / ((2 * x).exp() + 1), [ROWS]),
    "gelu": (F.gelu, lambda x: x * (torch.special.erf(x / math.sqrt(2)) + 1) / 2, [ROWS]),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), tanh_gelu, [ROWS]),
    "silu": (F.silu, lambda x: x / (1 + (-x).exp()), [ROWS]),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-3),
        lambda x, w, b: norm_in_steps(x, w, b, centre=True),
        [(2, 3, 5), (5,), (5,)],
    ),
    "layer norm without weights": (
        lambda x: F.layer_norm(x, (5,), eps=1e-3),
        lambda x: norm_in_steps(x, None, None, centre=True),
        [ROWS],
    ),
    "layer norm without bias": (
        lambda x, w: F.layer_norm(x, (5,), w, eps=1e-3),
        lambda x, w: norm_in_steps(x, w, None, centre=True),
        [ROWS, (5,)],
    ),
    "RMS norm": (
        lambda x, w: F.rms_norm(x, (5,), w, 1e-3),
        lambda x, w: norm_in_steps(x, w, None, centre=False),
        [(2, 3, 5), (5,)],
    ),
    "attention": (F.scaled_dot_product_attention, attention_in_steps, [HEADS] * 3),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: attention_in_steps(q, k, v, torch.ones(3, 3).tril()),
        [HEADS] * 3,
    ),
    "attention with a row that sees nothing": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, PADDING),
        lambda q, k, v: attention_in_steps(q, k, v, PADDING),
        [HEADS] * 3,
    ),
    "attention with added numbers": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ADDED.to(q)),
        lambda q, k, v: attention_in_steps(q, k, v, ADDED.to(q).exp()),
        [HEADS] * 3,
    ),
    "attention with a trained bias": (
        lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b),
        lambda q, k, v, b: attention_in_steps(q, k, v, b.exp()),
        [HEADS, HEADS, HEADS, (3, 3)],
    ),
    "attention with shared keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=2**-0.5, enable_gqa=True),
        lambda q, k, v: attention_in_steps(q, *(t.repeat_interleave(2, 1) for t in (k, v))),
        [HEADS, SHARED, SHARED],
    ),
}


def derivatives(function: Function, inputs: list[Tensor], seed: int = 1) -> list[Tensor]:
    """y, ḡ = gᵀ∂y/∂x, and ∂⟨ḡ, v⟩ by the inputs and by g, for three v at once and for one."""
    torch.manual_seed(seed)
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    g = torch.randn(y.shape, dtype=torch.float64).to(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    blocks = [torch.randn(3, *f.shape, dtype=torch.float64).to(f) for f in first]
    wanted = [*inputs, g]
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    batched = torch.autograd.grad(first, wanted, blocks, is_grads_batched=True, **options)
    one = torch.autograd.grad(first, wanted, [block[1] for block in blocks], **options)
    partly = torch.autograd.grad(first[0], g, blocks[0][2])
    for together, alone in zip(batched, one, strict=True):
        assert torch.allclose(together[1], alone, rtol=1e-4, atol=1e-5)
    return [y, *first, *one, *batched, *partly]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_a_closed_form_is_its_function_in_small_steps(name: str, dtype: torch.dtype) -> None:
    ours, steps, shapes = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    with ClosedForms(Watch()):
        found = derivatives(ours, [x.to(dtype) for x in inputs])
    expected = derivatives(steps, inputs)
    bound = 1e-10 if dtype == torch.float64 else 1e-4
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < bound * max(1, other.abs().max())


@pytest.mark.parametrize(
    "module", [hf.NewGELUActivation, hf.FastGELUActivation, hf.QuickGELUActivation, hf.GELUTanh]
)
def test_an_activation_module_is_swapped_inside_and_as_before_outside(module: Any) -> None:
    model = nn.Sequential(module())
    x = torch.randn(4, 6, dtype=torch.float64)
    expected = derivatives(model, [x])
    with evaluation_mode(model), ClosedForms(watch := Watch()):
        swap_activations(model.modules(), watch)
        found = derivatives(model, [x])
        graph = str(model(x.requires_grad_()).grad_fn)
    assert "_Pointwise" in graph
    assert "forward" not in vars(model[0])
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-10 * max(1, other.abs().max())


def test_what_has_no_closed_form_is_left_to_torch() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    with ClosedForms(Watch()), sdpa_kernel(SDPBackend.MATH):
        assert "Silu" in str(F.silu(x.half()).grad_fn)
        y = x.clone()
        assert F.silu(y, inplace=True) is y
        heads = torch.randn(1, 1, 40, 8)
        dropped = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        assert not torch.allclose(dropped, F.scaled_dot_product_attention(heads, heads, heads))


def test_a_third_derivative_is_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    with ClosedForms(Watch()):
        (first,) = torch.autograd.grad(F.gelu(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|not have been used"):
        torch.autograd.grad(second.sum(), x)


@pytest.mark.parametrize(
    ("curve", "function"),
    [(TanhGelu(), tanh_gelu), (Gelu(), F.gelu), (Silu(), F.silu), (Tanh(), torch.tanh)],
    ids=["tanh-gelu", "gelu", "silu", "tanh"],
)
def test_activations_can_be_transformed(
    curve: ActivationCurve, function: Callable[[Tensor], Tensor]
) -> None:
    """torch.func's Jacobians and Hessians of a batch; a third derivative would come out as zero, so
    it is refused."""
    x = torch.randn(3, 4, dtype=torch.float64)
    mixed = torch.randn(4, 4, dtype=torch.float64)

    def derivatives(of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        def layer(row: Tensor) -> Tensor:
            return of(mixed @ row) @ mixed

        bend = grad(lambda row: layer(row).square().sum())
        return vmap(jacrev(layer))(x), vmap(jacrev(bend))(x)

    for mine, theirs in zip(derivatives(curve), derivatives(function), strict=True):
        assert (mine - theirs).abs().max() <= 1e-13 * theirs.abs().max()
    with pytest.raises(RunError, match="third"):
        jacrev(jacrev(grad(lambda row: curve(row).square().sum())))(x[0])


@pytest.mark.parametrize(
    "module",
    [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), hf.GELUActivation(), hf.SiLUActivation()],
    ids=str,
)
def test_activations_of_modules_are_swapped_and_put_back(module: nn.Module) -> None:
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    expected = module(x)
    with evaluation_mode(module):
        swap_activations(module.modules(), Watch())
        found = module(x)
        assert "_Pointwise" in str(found.grad_fn)
    assert "_Pointwise" not in str(module(x).grad_fn)
    assert torch.allclose(found, expected, rtol=1e-13)


def test_activations_are_called_as_torch_lets_them_be_called() -> None:
    x, held = torch.linspace(-3, 3, 7), torch.empty(7)
    with ClosedForms(Watch()):
        assert torch.equal(F.gelu(input=x, approximate="tanh"), TanhGelu()(x))
        assert torch.allclose(F.silu(input=x), x * x.sigmoid())
        assert torch.allclose(torch.tanh(input=x), x.tanh())
        assert torch.tanh(x, out=held) is held
    far = torch.tensor([-1e9, 1e9])
    assert torch.equal(TanhGelu().bend(far), torch.zeros(2))
