"""What Lanczos spends beside its products: time, memory and residuals, next to hessian-eigenthings.

Run `python -m benchmarks lanczos`. The model is a GPT-2 of 4 layers, width 256, vocabulary 512
(3.3M parameters) on 2 x 64 tokens, float32, random weights; H over all parameters. One thread,
processor time, the best of three runs that take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import hessian_eigenthings
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from benchmarks._timing import kept
from benchmarks.curvature_products import everything, gpt, kilobytes
from hessblocks.curvature import Hessian, Problem
from hessblocks.linalg import LinearOperator, extreme_eigenvalues, spectral_density

PRODUCTS = 22
STEPS, PROBES = 40, 2
ROUNDS = 3
BASIS = 16


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    operator = kept(Timed(whole_hessian()))
    _ = operator @ torch.randn(operator.shape[0], 1)  # builds the graph
    found: dict[str, Any] = {"parameters": operator.shape[0], "products": PRODUCTS}
    found["time"] = times(operator)
    found["residuals"] = residuals(operator)
    found["peak memory (vectors)"] = memory()
    return found


def whole_hessian() -> LinearOperator:
    """H of all parameters."""
    model = gpt(256, 512)
    return Hessian(Problem(model, torch.randint(0, 512, (2, 64))), everything(model))


class Timed(LinearOperator):
    """An operator that knows how long its products took."""

    def __init__(self, of: LinearOperator) -> None:
        super().__init__(of.shape, dtype=of.dtype, device=of.device, symmetric=True)
        self._of = of
        self.seconds, self.products = 0.0, 0

    def _matmat(self, columns: Tensor) -> Tensor:
        start = time.process_time()
        product = self._of @ columns
        self.seconds += time.process_time() - start
        self.products += columns.shape[1]
        return product


def ends(operator: LinearOperator) -> object:
    """Both ends by ours."""
    return extreme_eigenvalues(operator, 1, "both", max_products=PRODUCTS, tolerance=0)


def theirs(operator: LinearOperator, which: str = "LM") -> Any:
    """The largest in size by hessian-eigenthings."""
    foreign = hessian_eigenthings.LambdaOperator(operator.__matmul__, operator.shape[0])
    return hessian_eigenthings.lanczos(foreign, k=1, max_iter=PRODUCTS, which=which, seed=0)


def times(operator: Timed) -> dict[str, dict[str, float]]:
    """Processor seconds of each side, in all and in products."""
    sides: dict[str, Callable[[], object]] = {
        "both ends": lambda: ends(operator),
        "hessian-eigenthings, both ends of one basis": lambda: theirs(operator),
        "scipy eigsh, one end": lambda: eigsh(operator.to_scipy(), 1, ncv=20, maxiter=1, tol=1),
        f"density, {STEPS} steps and {PROBES} probes": lambda: spectral_density(
            operator, STEPS, PROBES
        ),
    }
    best: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for name, run in sides.items():
            operator.seconds, operator.products = 0.0, 0
            start = time.process_time()
            run()
            seconds = time.process_time() - start
            if name not in best or seconds < best[name]["seconds"]:
                share = operator.seconds / seconds
                best[name] = {
                    "seconds": seconds,
                    "share in products": share,
                    "products": operator.products,
                }
    for name, found in best.items():
        print(
            f"{name}: {found['seconds']:.2f} s, {found['share in products']:.0%} of them in "
            f"{found['products']:.0f} products"
        )
    return best


def residuals(operator: LinearOperator) -> dict[str, dict[str, list[float]]]:
    """‖H v − θ v‖ / |θ| of both ends, measured with a further product, at equal products."""
    ours = extreme_eigenvalues(operator, 1, "both", max_products=PRODUCTS, tolerance=0)
    pairs = {"ours": list(zip(ours.values.tolist(), ours.vectors.T, strict=True))}
    others = [theirs(operator, which) for which in ("LA", "SA")]
    pairs["hessian-eigenthings"] = [
        (float(other.eigenvalues[0]), other.eigenvectors[0]) for other in others
    ]
    found = {}
    for name, ends_of in pairs.items():
        sizes = [
            float(torch.linalg.vector_norm(operator @ v - value * v, dtype=torch.float64))
            for value, v in ends_of
        ]
        shares = [size / abs(value) for size, (value, _) in zip(sizes, ends_of, strict=True)]
        found[name] = {"values": [value for value, _ in ends_of], "relative": shares}
        print(f"{name}: residuals {', '.join(f'{share:.1e}' for share in shares)} of the values")
    return found


def memory() -> dict[str, float]:
    """Count vectors held at the worst moment of a search with a restart, in a process (Linux)."""
    code = "from benchmarks.lanczos import peak; peak()"
    environment = {
        **os.environ,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout
    vectors = json.loads(output)
    print(f"basis_size={BASIS}: {vectors:.2f} vectors at the worst moment")
    return {"basis_size": BASIS, "held": vectors}


class Scaled(LinearOperator):
    """A diagonal matrix, whose product is one new vector."""

    def __init__(self, size: int) -> None:
        super().__init__(
            (size, size), dtype=torch.float32, device=torch.device("cpu"), symmetric=True
        )
        self._diagonal = torch.linspace(-1, 2, size)

    def _matmat(self, columns: Tensor) -> Tensor:
        return (self._diagonal * columns.T).T


def peak(size: int = 3_300_000) -> None:
    """Print the vectors that a search adds at its worst moment."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    extreme_eigenvalues(Scaled(1000), 1, "both", basis_size=BASIS, max_products=24)
    operator = Scaled(size)
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")
    before = kilobytes("VmRSS")
    extreme_eigenvalues(operator, 1, "both", basis_size=BASIS, max_products=24)
    print((kilobytes("VmHWM") - before) * 1024 / (4 * size))


if __name__ == "__main__":
    main()
