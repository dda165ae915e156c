"""Trace, diagonal, density and products as a user asks for them, next to two other libraries.

Run `python -m benchmarks tasks`. The model is a GPT-2 of 2 layers, width 128, vocabulary 1024 on
2 x 64 tokens, float32, random weights; curvature over all parameters. A task begins with model and
batch, so that what a library builds first counts. Each side gets as many products. One thread,
processor time, medians of sides that take turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import curvlinops
import hessian_eigenthings
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks._timing import alternated
from benchmarks.curvature_products import Flat, everything, gpt, gradient, mean_loss
from hessblocks.curvature import Hessian, OuterProduct, Problem
from hessblocks.linalg import LinearOperator, diagonal, spectral_density, trace

PROBES = 16
PRODUCTS = 16
"""Products in turn, as a power iteration or conjugate gradients make them."""
RUNS, STEPS = 2, 20
ROUNDS, SINGLE_ROUNDS = 5, 25
"""Turns of tasks, and of single products, which are short."""
Side = Callable[[], object]


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = gpt(128, layers=2)
    ids = torch.randint(0, 1024, (2, 64))
    vector = torch.randn(everything(model).size)
    sides = {
        **ours(model, ids, vector),
        **of_curvlinops(model, ids, vector),
        **of_eigenthings(model, ids, vector),
    }
    plain = {
        name: side if "ours" in name else attention_in_full(side) for name, side in sides.items()
    }
    gradients: dict[str, float] = {}
    for rounds in (SINGLE_ROUNDS, ROUNDS):
        some = {n: s for n, s in plain.items() if n.startswith("H") == (rounds == SINGLE_ROUNDS)}
        seconds = alternated({"gradient": gradient(model, ids), **some}, rounds, processor=True)
        unit = seconds.pop("gradient")
        gradients |= {name: taken / unit for name, taken in seconds.items()}
    for name, taken in gradients.items():
        mine = gradients[f"{name.split(',')[0]}, ours"]
        print(f"{name}: {taken:.1f} gradients, {taken / mine:.2f} of ours")
    return {"gradient (s)": unit, "gradients": gradients}


def ours(model: nn.Module, ids: Tensor, vector: Tensor) -> dict[str, Side]:
    """Seven tasks, each from model and batch."""

    def of(kind: type[Hessian] | type[OuterProduct]) -> LinearOperator:
        return kind(Problem(model, ids), everything(model))

    return {
        "H v, ours": lambda: of(Hessian) @ vector,
        "H_o v, ours": lambda: of(OuterProduct) @ vector,
        "several H v, ours": lambda: kept_in_turn(of(Hessian), vector),
        "several H_o v, ours": lambda: kept_in_turn(of(OuterProduct), vector),
        "trace, ours": lambda: trace(of(Hessian), PROBES),
        "diagonal, ours": lambda: diagonal(of(Hessian), PROBES),
        "density, ours": lambda: spectral_density(of(Hessian), STEPS, RUNS),
    }


def of_curvlinops(model: nn.Module, ids: Tensor, vector: Tensor) -> dict[str, Side]:
    """The same by curvlinops, whose estimators draw and multiply by themselves."""

    def of(kind: Any) -> Any:
        return kind(
            Flat(model),
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            [(ids, ids[:, 1:].flatten())],
            check_deterministic=False,
        )

    hessian = curvlinops.HessianLinearOperator
    return {
        "H v, curvlinops": lambda: of(hessian) @ vector,
        "H_o v, curvlinops": lambda: of(curvlinops.GGNLinearOperator) @ vector,
        "several H v, curvlinops": lambda: in_turn(of(hessian).__matmul__, vector),
        "several H_o v, curvlinops": lambda: in_turn(
            of(curvlinops.GGNLinearOperator).__matmul__, vector
        ),
        "trace, curvlinops": lambda: curvlinops.hutchinson_trace(of(hessian), PROBES),
        "diagonal, curvlinops": lambda: curvlinops.hutchinson_diag(of(hessian), PROBES),
        "density, curvlinops": lambda: curvlinops.lanczos_approximate_spectrum(
            of(hessian), STEPS, num_repeats=RUNS, boundaries=(-1.0, 10.0)
        ),
    }


def of_eigenthings(model: nn.Module, ids: Tensor, vector: Tensor) -> dict[str, Side]:
    """The same by hessian-eigenthings, which has no diagonal."""

    def hessian() -> Any:
        return hessian_eigenthings.HessianOperator(model, [ids], mean_loss)

    def outer() -> Any:
        return hessian_eigenthings.GGNOperator(
            model,
            [ids],
            lambda m, batch: m(batch, use_cache=False).logits[:, :-1].flatten(0, 1),
            lambda logits, batch: nn.functional.cross_entropy(logits, batch[:, 1:].flatten()),
        )

    return {
        "H v, hessian-eigenthings": lambda: hessian().matvec(vector),
        "H_o v, hessian-eigenthings": lambda: outer().matvec(vector),
        "several H v, hessian-eigenthings": lambda: in_turn(hessian().matvec, vector),
        "several H_o v, hessian-eigenthings": lambda: in_turn(outer().matvec, vector),
        "trace, hessian-eigenthings": lambda: hessian_eigenthings.hutchinson(
            hessian(), num_samples=PROBES, seed=0
        ),
        "density, hessian-eigenthings": lambda: hessian_eigenthings.spectral_density(
            hessian(), num_runs=RUNS, lanczos_steps=STEPS, num_grid_points=256, seed=0
        ),
    }


def in_turn(product: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor:
    """Multiply by one vector after another, each made of the product before."""
    for _ in range(PRODUCTS):
        vector = product(vector)
        vector = vector / vector.norm()
    return vector


def kept_in_turn(operator: LinearOperator, vector: Tensor) -> Tensor:
    """With one graph for all products."""
    with operator.kept():
        return in_turn(operator.__matmul__, vector)


def attention_in_full(run: Side) -> Side:
    """Without fused kernels, whose second derivative torch lacks."""

    def with_plain_attention() -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return run()

    return with_plain_attention


if __name__ == "__main__":
    main()
