"""Second and third derivatives of torch's own operations against differences of the first and
second.

Where torch is wrong the test is expected to fail, strictly: once torch is mended it says so, and
the form in single steps (`hessblocks.curvature.closed.corrected`) can go. Those forms are held to
the same differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessblocks.curvature.closed.corrected import CORRECTED
from hessblocks.curvature.closed.swap import spelled
from hessblocks.curvature.last_layer.norms import head_norms
from hessblocks.curvature.last_layer.supported import undisturbed

STEP, BOUND = 2e-4, 1e-6
Operation = tuple[Callable[..., Any], list[Tensor]]


def draw(*shapes: Sequence[int]) -> list[Tensor]:
    """The same numbers for the same shapes, off 0 where activations have their kinks."""
    generator = torch.Generator().manual_seed(5)
    found = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x + 0.05 * x.sign() for x in found]


def positive(*shape: int) -> Tensor:
    return draw(shape)[0].abs() + 0.2


X, ROWS, IMAGE = (4, 5), (2, 3, 6), (2, 3, 6, 6)
CLASS, CLASSES = torch.tensor([0, 3, 1, 4]), draw(X)[0].softmax(1)
PLACES = torch.rand(2, 4, 4, 2, generator=torch.Generator().manual_seed(1)).double() * 1.4 - 0.7
IDS = torch.tensor([[0, 2], [1, 1], [3, 0]])
DISTINCT = torch.arange(216.0, dtype=torch.float64).mul(0.7548776662).frac().view(IMAGE)
"""All differences are larger than the steps, which a maximum needs."""

ENTRYWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "relu6": F.relu6,
    "leaky relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu by tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus, steep": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "softsign": F.softsign,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "tanhshrink": F.tanhshrink,
    "log sigmoid": F.logsigmoid,
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 1.3),
    "selu": F.selu,
    "glu": lambda x: F.glu(x[:, :4]),
    "softmax": lambda x: x.softmax(-1),
    "log-softmax": lambda x: x.log_softmax(-1),
    "softmin": lambda x: F.softmin(x, -1),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cumsum": lambda x: x.square().cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "prod": lambda x: x.prod(-1),
    "cummax": lambda x: x.square().cummax(-1).values,
    "norm": lambda x: torch.linalg.norm(x),
    "vector norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "variance": lambda x: x.var(-1),
    "standard deviation": lambda x: x.std(-1),
    "sinc": torch.sinc,
    "erf": torch.erf,
    "digamma": lambda x: torch.digamma(x.abs() + 1),
    "bessel i0": torch.special.i0,
    "bessel i1": torch.special.i1,
    "sort": lambda x: x.square().sort(-1).values * torch.arange(5),
    "top k": lambda x: x.square().topk(2, -1).values,
    "maximum": lambda x: x.square().amax(-1),
    "roll": lambda x: x.square().roll(1, 0),
    "masked": lambda x: x.square().masked_fill(x > 0.5, 1.0),
    "clamp": lambda x: x.square().clamp(0.1, 2.0),
}
OPERATIONS: dict[str, Operation] = {
    **{name: (function, draw(X)) for name, function in ENTRYWISE.items()},
    "prelu": (F.prelu, draw(X, (5,))),
    "power": (torch.pow, [positive(*X), *draw(X)]),
    "hypotenuse": (torch.hypot, draw(X, X)),
    "angle": (torch.atan2, draw(X, X)),
    "linear interpolation": (torch.lerp, draw(X, X, X)),
    "einsum": (functools.partial(torch.einsum, "ij,kj,k->i"), draw(X, (3, 5), (3,))),
    "bilinear": (F.bilinear, draw((3, 2), (3, 4), (5, 2, 4), (5,))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), draw(X, (5,), (5,))),
    "layer norm, bare": (lambda x: F.layer_norm(x, (5,)), draw(X)),
    "layer norm over two axes": (
        lambda x, w, b: F.layer_norm(x, (3, 6), w, b),
        draw(ROWS, (3, 6), (3, 6)),
    ),
    "RMS norm": (lambda x, w: F.rms_norm(x, (5,), w), draw(X, (5,))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), draw((2, 4, 3), (4,), (4,))),
    "batch norm, running": (
        lambda x, w, b: F.batch_norm(x, draw((5,))[0], positive(5), w, b),
        draw(X, (5,), (5,)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        draw((6, 3), (3,), (3,)),
    ),
    "batch norm of images": (lambda x: F.batch_norm(x, None, None, training=True), draw(IMAGE)),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        draw(ROWS, (3,), (3,)),
    ),
    "local response norm": (lambda x: F.local_response_norm(x, 2), draw(ROWS)),
    **{
        f"weight norm, {name}": (functools.partial(_norm, dim), draw((4, 3), length))
        for name, dim, length, _norm in (
            ("rows", 0, (4, 1), lambda d, v, g: torch._weight_norm(v, g, d)),
            ("columns", 1, (1, 3), lambda d, v, g: torch._weight_norm(v, g, d)),
            ("whole", -1, (1, 1), lambda d, v, g: torch._weight_norm(v, g, d)),
        )
    },
    "cross-entropy": (lambda x: F.cross_entropy(x, CLASS), draw(X)),
    "cross-entropy, smoothed": (
        lambda x: F.cross_entropy(x, CLASS, positive(5), label_smoothing=0.1),
        draw(X),
    ),
    "cross-entropy, soft": (lambda x: F.cross_entropy(x, CLASSES), draw(X)),
    "linear cross-entropy": (lambda x, w: F.linear_cross_entropy(x, w, CLASS), draw(X, (6, 5))),
    "negative log-likelihood": (lambda x: F.nll_loss(x.square(), CLASS), draw(X)),
    "binary": (lambda x: F.binary_cross_entropy_with_logits(x, CLASSES), draw(X)),
    "binary of probabilities": (lambda p: F.binary_cross_entropy(p, CLASSES), [CLASSES]),
    "huber": (lambda x: F.huber_loss(x, CLASSES), draw(X)),
    "smooth L1": (lambda x: F.smooth_l1_loss(x, CLASSES), draw(X)),
    "squares": (F.mse_loss, draw(X, X)),
    "divergence": (lambda x, y: F.kl_div(x, y, reduction="sum"), [draw(X)[0], positive(*X)]),
    "counts": (lambda x: F.poisson_nll_loss(x, CLASSES), draw(X)),
    "soft margin": (lambda x: F.soft_margin_loss(x, CLASSES.sign()), draw(X)),
    "gaussian": (lambda x, v: F.gaussian_nll_loss(x, CLASSES, v), [draw(X)[0], positive(*X)]),
    "triplet": (F.triplet_margin_loss, draw(X, X, X)),
    "multi-margin": (lambda x: F.multi_margin_loss(x, CLASS), draw(X)),
    "cosine similarity": (F.cosine_similarity, draw(X, X)),
    "distances": (torch.cdist, draw(X, (3, 5))),
    "distances by products": (torch.cdist, draw((26, 2), (27, 2))),
    "pairs of distances": (F.pdist, draw(X)),
    "embedding": (lambda w: F.embedding(IDS, w).square(), draw(X)),
    "bags": (lambda w: F.embedding_bag(IDS, w, mode="mean").square(), draw(X)),
    "weighted bags": (
        lambda w, s: F.embedding_bag(IDS, w, mode="sum", per_sample_weights=s).square(),
        draw(X, (3, 2)),
    ),
    "gather": (lambda x: x.square().gather(0, IDS), draw(X)),
    "index": (lambda x: x[IDS].square(), draw(X)),
    "scatter add": (lambda x, y: x.scatter_add(0, IDS, y).square(), draw(X, (3, 2))),
    "convolution": (lambda x, w, b: F.conv1d(x, w, b, padding=1), draw(ROWS, (4, 3, 2), (4,))),
    "convolution of images": (
        lambda x, w: F.conv2d(x, w, stride=2, dilation=2),
        draw(IMAGE, (2, 3, 2, 2)),
    ),
    "grouped convolution": (lambda x, w: F.conv1d(x, w, groups=3), draw(ROWS, (3, 1, 2))),
    "transposed convolution": (lambda x, w: F.conv_transpose1d(x, w), draw(ROWS, (3, 2, 2))),
    "max-pool": (lambda x: F.max_pool2d(x, 2).square(), [DISTINCT]),
    "max-pool of rows": (lambda x: F.max_pool1d(x[0], 2).square(), [DISTINCT]),
    "average pool": (lambda x: F.avg_pool2d(x, 2).square(), draw(IMAGE)),
    "adaptive average pool": (lambda x: F.adaptive_avg_pool2d(x, 4).square(), draw(IMAGE)),
    "adaptive max-pool": (lambda x: F.adaptive_max_pool2d(x, 4).square(), [DISTINCT]),
    "power pool": (lambda x: F.lp_pool1d(x.abs() + 1, 3.0, 2), draw(ROWS)),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear").square(),
        draw(IMAGE),
    ),
    "interpolate, cubic": (lambda x: F.interpolate(x, 4, mode="bicubic").square(), draw(IMAGE)),
    "grid sample": (functools.partial(F.grid_sample, align_corners=False), [*draw(IMAGE), PLACES]),
    "grid sample, cubic": (
        functools.partial(F.grid_sample, mode="bicubic", align_corners=False),
        [*draw(IMAGE), PLACES],
    ),
    "affine grid": (lambda t: F.affine_grid(t, [2, 1, 3, 3], False).square(), draw((2, 2, 3))),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x.square(), 2), draw((1, 8, 2, 2))),
    "fold": (lambda x: F.fold(x.square(), (4, 4), 2, stride=2), draw((1, 8, 4))),
    "unfold": (lambda x: F.unfold(x.square(), 2), draw(IMAGE)),
    "padding": (lambda x: F.pad(x.square(), (1, 2), mode="reflect"), draw(ROWS)),
    "attention": (F.scaled_dot_product_attention, draw(*[(1, 2, 4, 3)] * 3)),
    "causal attention": (
        functools.partial(F.scaled_dot_product_attention, is_causal=True),
        draw(*[(1, 2, 4, 3)] * 3),
    ),
    "attention with a bias": (F.scaled_dot_product_attention, draw(*[(1, 2, 4, 3)] * 3, (4, 4))),
    "inverse": (lambda x: torch.linalg.inv(x + 4 * torch.eye(4)), draw((4, 4))),
    "solve": (lambda x, y: torch.linalg.solve(x + 4 * torch.eye(4), y), draw((4, 4), (4, 2))),
    "log-determinant": (lambda x: torch.logdet(x @ x.T), draw((4, 6))),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.T), draw((4, 6))),
    "matrix exponential": (torch.linalg.matrix_exp, draw((3, 3))),
    "singular values": (torch.linalg.svdvals, draw((3, 4))),
}  # fmt: skip


def of_module(name: str, module: nn.Module, inputs: list[Tensor]) -> None:
    """A module as a function of its inputs and of its parameters."""
    module = module.double().eval()
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(*tensors: Tensor) -> Any:
        values = dict(zip(names, tensors[len(inputs) :], strict=True))
        found = torch.func.functional_call(module, values, tensors[: len(inputs)])
        return found[0] if isinstance(found, tuple) else found

    OPERATIONS[name] = call, [*inputs, *(p.detach() for p in parameters)]


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)


with torch.random.fork_rng():
    torch.manual_seed(3)
    of_module("LSTM", nn.LSTM(2, 3), draw((3, 1, 2)))
    of_module("GRU", nn.GRU(2, 3), draw((3, 1, 2)))
    of_module("RNN", nn.RNN(2, 3), draw((3, 1, 2)))
    of_module("LSTM cell", nn.LSTMCell(2, 3), draw((2, 2)))
    of_module("GRU cell", nn.GRUCell(2, 3), draw((2, 2)))
    of_module("multi-head attention", SelfAttention(4, 2), draw((3, 1, 4)))

THIRD = ["layer norm", "layer norm, bare", "layer norm over two axes", "batch norm"]
THIRD += ["batch norm of images", "instance norm"]
WEIGHT_NORMS = ["weight norm, rows", "weight norm, columns"]
WRONG = {(name, 3) for name in THIRD} | {(name, order) for name in WEIGHT_NORMS for order in (2, 3)}
"""Of torch 2.13, with the order of the derivative."""
WRONG.add(("logcumsumexp", 3))
MISSING = [
    "hardsigmoid",
    "distances",
    "pairs of distances",
    "bags",
    "weighted bags",
    "multi-margin",
]
"""torch says that it has no second derivative, and so does `hb.Hessian`, but for what is
`CORRECTED`."""


def derivative(operation: Operation, inputs: list[Tensor], order: int) -> list[Tensor]:
    """Derivatives by the inputs of ⟨operation, c⟩, contracted order − 1 times with fixed v."""
    generator = torch.Generator().manual_seed(11)
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = operation[0](*inputs)
    weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    vectors = directions(inputs)
    value = (outputs * weights).sum()
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    for number in range(order):
        if not value.requires_grad:
            return [torch.zeros_like(x) for x in inputs]
        found = torch.autograd.grad(value, inputs, create_graph=number < order - 1, **options)
        value = sum((f * v).sum() for f, v in zip(found, vectors, strict=True))
    return list(found)


def directions(inputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(12)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in inputs]


def error(operation: Operation, order: int) -> float:
    """The distance from central differences, of the fourth order, of one derivative less."""
    inputs = operation[1]
    vectors = directions(inputs)

    def at(step: float) -> Tensor:
        moved = [x + step * v for x, v in zip(inputs, vectors, strict=True)]
        return torch.cat([d.flatten() for d in derivative(operation, moved, order - 1)])

    found = torch.cat([d.flatten() for d in derivative(operation, inputs, order)])
    coarse, fine = ((at(s) - at(-s)) / (2 * s) for s in (STEP, STEP / 2))
    expected = (4 * fine - coarse) / 3
    scale = expected.norm() + 1e-3 * at(0).norm() + 1e-9
    return float((found - expected).norm() / scale)


def cases() -> list[Any]:
    found = []
    for name in OPERATIONS:
        for order in (2, 3):
            marks: Any = ()
            if (name, order) in WRONG:
                marks = pytest.mark.xfail(strict=True, raises=AssertionError)
            elif name in MISSING:
                marks = pytest.mark.xfail(strict=True, raises=RuntimeError)
            found.append(pytest.param(name, order, marks=marks, id=f"{name}, {order}"))
    return found


@pytest.mark.parametrize(("name", "order"), cases())
def test_a_derivative_of_torch(name: str, order: int) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert error(OPERATIONS[name], order) < BOUND


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(
    "name", [*THIRD, *WEIGHT_NORMS, "weight norm, whole", "hardsigmoid", "RMS norm"]
)
def test_what_is_wrong_in_torch_is_right_in_single_steps(name: str, order: int) -> None:
    with spelled():
        assert error(OPERATIONS[name], order) < BOUND


def test_cross_entropy_in_chunks_has_no_second_derivative_but_ours() -> None:
    inputs = draw(X, (6, 5))
    chunked: Operation = (
        lambda x, w: F.linear_cross_entropy(
            x, w, CLASS, options=nn.LinearCrossEntropyOptions(batch_chunk_size=2)
        ),
        inputs,
    )
    with spelled():
        assert error(chunked, 2) < BOUND
    assert error(chunked, 2) > 0.1


class Calls(torch.overrides.TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func)
        return func(*args, **(kwargs or {}))


def test_every_corrected_function_stands_in_a_test() -> None:
    with Calls() as calls:
        for function, inputs in OPERATIONS.values():
            function(*inputs)
    tested_elsewhere = {torch._grouped_mm}  # tests/curvature/test_composition.py
    assert set(CORRECTED) - calls.seen == tested_elsewhere


def test_closed_forms_meet_no_kernel_of_rms_norm() -> None:
    """That of CUDA has no batching rule: vmap warns, and takes vector by vector."""
    model, x = nn.RMSNorm(4), torch.ones(2, 4)
    norm = head_norms(x, query=model)["query_norm"]
    with Calls() as calls:
        with undisturbed(model):
            model(x)
        norm.slope(x)
    assert F.rms_norm not in calls.seen
    assert torch.Tensor.rsqrt in calls.seen
