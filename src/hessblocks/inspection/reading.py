"""Read saved results."""

from __future__ import annotations

from pathlib import Path

from hessblocks import bill, curvature, linalg, signal
from hessblocks.conventions import AnyPath
from hessblocks.storage import CurvatureResults, Rows, Tabular, load_curvature, read_result

_CLASSES: tuple[type[Tabular], ...] = (
    *(linalg.Estimate, linalg.DiagonalEstimate, linalg.Eigenvalues),
    *(linalg.Spectrum, linalg.Solution, signal.Signal, CurvatureResults, Rows),
    *(curvature.GroupNorms, curvature.CurvatureMap),
    *(curvature.DerivativeCheck, bill.Price, bill.ActivationPrice, bill.BillCheck),
)
KINDS = {kind.__name__: kind for kind in _CLASSES}
"""Name in the file → class of the result."""


def read(path: AnyPath) -> Tabular:
    """Read a result that its `.save` wrote, or a run folder of `hessblocks curvature`.

    Args:
        path: a .json or .safetensors file, or a folder.

    Returns:
        An equal object of the same class, with its tensors on the CPU. Bills, allocations and
        callbacks need a model or a training; they are read as `Rows`.

    Raises:
        ArgumentError: the path has another ending, or the folder is of another command.
        RunError: the file cannot be read, is damaged, or is not a result; nothing in it is
            executed.

    Examples:
        >>> import pathlib, tempfile, torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hb.spectral_density(problem).save(file := pathlib.Path(folder, "s.safetensors"))
        ...     hb.read(file)
        spectrum of 2 eigenvalues from 1 to 4, mean 2.5, standard deviation 1.5 (exact)
    """
    path = Path(path)
    return load_curvature(path) if path.is_dir() else read_result(path, KINDS)
