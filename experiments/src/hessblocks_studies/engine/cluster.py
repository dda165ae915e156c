"""Connect to a Ray cluster, as a backend of joblib."""

import logging
import socket
from typing import Any
from urllib.parse import urlsplit

from joblib import register_parallel_backend

from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies.engine.point import Point

PATIENCE = 5.0
"""Seconds to wait for an answer of the cluster's port."""


class RayCluster:
    """Running Ray cluster whose machines have hessblocks installed."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster.

        Args:
            address: `host:port` of the head, `ray://host:port`, or `auto` for the cluster on this
                machine.

        Raises:
            ArgumentError: Ray is not installed, or the address is invalid.
            RunError: no cluster answers.
        """
        try:
            import ray
            from ray.util.joblib.ray_backend import RayBackend
        except ImportError as error:
            raise ArgumentError(
                f"--ray: {error}; run pip install 'hessblocks-studies[cluster]'."
            ) from error

        class Unordered(RayBackend):
            # it does, and points must be stored as they finish
            supports_return_generator = True

        self._ray: Any = ray
        self._address = address
        _check_answer(address)
        try:
            self._ray.init(
                address=address,
                ignore_reinit_error=True,
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise RunError(f"--ray: no Ray cluster at {address!r} ({first}).") from error
        register_parallel_backend("ray", Unordered)
        # it warns of an option that joblib always passes
        logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
        self.deaths = (ray.exceptions.RayError,)
        """Errors that tell of a dead worker, or of a dead cluster."""

    def options(self, point: Point) -> tuple[int, dict[str, Any]]:
        """Count the points like this one that fit the cluster at once.

        Returns:
            The number, and joblib's options for such points.

        Raises:
            RunError: the cluster has ended, or no machine fits the point; Ray would wait forever.
        """
        _check_answer(self._address)
        wanted = {"CPU": point.cpus, "GPU": point.gpus}
        width = sum(
            int(min(node["Resources"].get(name, 0) / n for name, n in wanted.items() if n))
            for node in self._ray.nodes()
            if node["Alive"]
        )
        if not width:
            raise RunError(
                f"--ray: no machine of the cluster has the {point.cpus:g} cores and "
                f"{point.gpus:g} accelerators that a point of {point.study} needs."
            )
        share = 1 if width > 1 else 0.5  # two workers, of which one waits
        remote = {"num_cpus": point.cpus * share, "num_gpus": point.gpus * share}
        return width, {"backend": "ray", "ray_remote_args": remote}

    def close(self) -> None:
        """Disconnect; the cluster continues to run."""
        self._ray.shutdown()


def _check_answer(address: str) -> None:
    """Check that the cluster answers; Ray itself waits for minutes."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ArgumentError(f"ray: expected host:port, ray://host:port or auto, got {address!r}")
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        raise RunError(
            f"--ray: nothing answers at {address!r} ({error}); start the cluster with `ray start "
            "--head` or check the address."
        ) from error
