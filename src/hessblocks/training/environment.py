"""Refuse environment variables that make transformers train in several processes."""

import os

from hessblocks.errors import ArgumentError

OFF = {"WORLD_SIZE": ("", "0", "1"), "LOCAL_RANK": ("", "-1")}
"""Values of torchrun's variables that mean a single process."""
FALSE = ("", "0", "false", "no", "off", "n", "f")
"""Values of accelerate's variables that mean no."""


def check_environment(device: str) -> None:
    """Refuse to train if the environment asks transformers for more than one process.

    Args:
        device: cpu or cuda.

    Raises:
        ArgumentError: a variable asks for several processes, another device or a sharded model.
    """
    for name, value in os.environ.items():
        off = FALSE if name.startswith("ACCELERATE_USE_") else OFF.get(name)
        on_cpu = name == "ACCELERATE_USE_CPU" and device == "cpu"
        if off is not None and value.strip().lower() not in off and not on_cpu:
            raise ArgumentError(
                f"{name}={value} in the environment: hessblocks trains in one process on --device; "
                "unset it, or train a model of hb.build with transformers.Trainer, which torchrun "
                "starts on several devices"
            )
