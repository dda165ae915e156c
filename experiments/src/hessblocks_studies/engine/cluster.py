"""Measure points on a Ray cluster with enough cores and accelerators."""

import socket
from collections.abc import Generator, Sequence
from typing import Any
from urllib.parse import urlsplit

from hessblocks.errors import ArgumentError, RunError, check_extra
from hessblocks_studies.engine.executors import Executor, after_death, attempt
from hessblocks_studies.engine.point import Measure, Outcome, Point

PATIENCE = 5.0
"""Seconds to wait for an answer of the cluster's port."""


class RayCluster(Executor):
    """Executor on a running Ray cluster whose machines have hessblocks installed."""

    def __init__(self, address: str) -> None:
        """Connect to the cluster.

        Args:
            address: `host:port` of the head, `ray://host:port`, or `auto` for the cluster on this
                machine.

        Raises:
            ArgumentError: Ray is not installed, or the address is invalid.
            RunError: no cluster answers.
        """
        check_extra("ray", "cluster", "ray", distribution="hessblocks-studies")
        import ray

        self._ray: Any = ray
        self._address = address
        _check_answer(self._address)
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
        self._attempt = self._ray.remote(attempt)  # once: each such call sends the function again

    def outcomes(self, measure: Measure[Any], points: Sequence[Point]) -> Generator[Outcome]:
        """Yield the outcome of each point; see `Executor`."""
        _check_answer(self._address)
        self._check_resources(points)
        running = {self._start(measure, point, 1): (point, 1) for point in points}
        try:
            while running:
                (ready, *_), _ = self._ray.wait(list(running), num_returns=1)
                point, attempts = running.pop(ready)
                outcome = self._outcome(ready, point, attempts)
                if outcome is None:
                    again = self._start(measure, point, attempts + 1)
                    running[again] = (point, attempts + 1)
                else:
                    yield outcome
        finally:
            for task in running:
                self._ray.cancel(task, force=True)

    def _outcome(self, ready: Any, point: Point, attempts: int) -> Outcome | None:
        """Return the outcome of a point; None if its worker died and the point must restart."""
        try:
            outcome: Outcome = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError as error:  # `attempt` raises nothing itself
            reason = str(error.cause or error).strip().splitlines()[-1]
            return Outcome(
                point=point,
                attempts=attempts,
                error=f"no worker of the cluster can run it: {reason}.",
            )
        except self._ray.exceptions.RayError:
            _check_answer(self._address)
            return after_death(point, attempts)
        return outcome

    def close(self) -> None:
        """Disconnect; the cluster continues to run."""
        self._ray.shutdown()

    def _start(self, measure: Measure[Any], point: Point, attempts: int) -> Any:
        placed = self._attempt.options(num_cpus=point.cpus, num_gpus=point.gpus, max_retries=0)
        return placed.remote(measure, point, attempts)

    def _check_resources(self, points: Sequence[Point]) -> None:
        """Check that a machine of the cluster fits each point; Ray would wait forever."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for point in points:
            if not any(
                node.get("CPU", 0) >= point.cpus and node.get("GPU", 0) >= point.gpus
                for node in nodes
            ):
                raise RunError(
                    f"--ray: no machine of the cluster has the {point.cpus:g} cores and "
                    f"{point.gpus:g} accelerators that a point of {point.study} needs."
                )


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
