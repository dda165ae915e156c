"""Forward a public name that moved to the experiments, with a DeprecationWarning."""

import warnings
from importlib import import_module
from typing import Any

from hessblocks.errors import ArgumentError

STUDIES = "hessblocks_studies.shared"
"""Module that now has the name; a string, since the core must not import experiments."""


def blockwise_learning_rates(*given: Any, **options: Any) -> Any:
    """Call `blockwise_learning_rates` of the experiments (deprecated).

    Our study finds no gain from such rates.

    Args:
        *given: see the function in the experiments.
        **options: see the function in the experiments.

    Returns:
        Parameter groups for an optimiser of torch, each with its own learning rate.

    Raises:
        ArgumentError: the experiments are not installed.

    Warns:
        DeprecationWarning: always.

    Examples:
        >>> import hessblocks as hb
        >>> hb.blockwise_learning_rates(model, base=1e-3, rule="published")  # doctest: +SKIP
    """
    warnings.warn(
        f"hb.blockwise_learning_rates: is {STUDIES}.blockwise_learning_rates now; one tuned rate "
        "trains as well",
        DeprecationWarning,
        stacklevel=2,
    )
    try:
        place: Any = import_module(STUDIES)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            "blockwise_learning_rates: moved to the experiments; run pip install "
            "hessblocks-studies."
        ) from error
    return place.blockwise_learning_rates(*given, **options)
