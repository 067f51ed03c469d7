"""Ray as the crew of `cluster.py`. Ray is an extra: it is imported when a study asks for a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from deepauc.studies.load import Parcel
from deepauc.studies.running.cluster import Answer, Cluster, Order, unpack_and_carry_out

STORE_BYTES = 200_000_000  # of a cluster started here: what tasks are sent and return is small


class RayCrew:
    """Orders as Ray tasks, which Ray itself starts again when a worker is lost."""

    local = False

    def __init__(self, cluster: Cluster, *, gpus: float) -> None:
        import ray

        there = ray.cluster_resources()
        slots = [int(there.get("CPU", 0) // cluster.cpus), *([int(there.get("GPU", 0) / gpus)] if gpus else [])]
        if min(slots) < 1:
            raise ValueError(
                f"the cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs: not enough for a task "
                f"that asks for {cluster.cpus} and {gpus:g}."
            )
        self.slots, self.threads = min(slots), cluster.cpus
        self._going: dict[Any, Order] = {}
        options = {"num_cpus": cluster.cpus, "num_gpus": gpus, "max_retries": cluster.retries}
        self._task = ray.remote(**options)(unpack_and_carry_out)
        self._retries = cluster.retries

    def begin(self, order: Order) -> None:
        self._going[self._task.remote(Parcel.of(order))] = order

    def next_ended(self) -> tuple[Order, Answer | str]:
        import ray
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

        (task,), _ = ray.wait(list(self._going), num_returns=1)
        order = self._going.pop(task)
        try:
            return order, ray.get(task)
        except RayTaskError as error:
            return order, f"its task failed: {' '.join(str(error.cause).split())}"
        except OutOfMemoryError:
            return order, "its worker was killed: the machine ran out of memory"
        except RayError as error:
            return order, f"its worker was lost {self._retries + 1} times ({type(error).__name__})"


@contextmanager
def joined(cluster: Cluster, device: str | torch.device | None) -> Iterator[tuple[RayCrew, torch.device]]:
    """The crew of this cluster, and the device of its tasks: a GPU where the cluster has one, unless said otherwise.

    Where the program has joined a cluster already, that one is taken and stays joined.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError(
            "studies on a cluster need Ray: pip install 'deepauc[cluster]'; --jobs starts local processes without it."
        ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told about a cluster that starts here
    ours = not ray.is_initialized()
    if ours:
        starts = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if cluster.address == "local" else {}
        try:
            ray.init(cluster.address, log_to_driver=False, logging_level="ERROR", **starts)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster at {cluster.address!r} ({error}). `local` starts one here.") from None
    try:
        has_gpu = ray.cluster_resources().get("GPU", 0) > 0
        target = torch.device(device or ("cuda" if has_gpu else "cpu"))
        gpus = cluster.gpus if cluster.gpus is not None else float(target.type == "cuda")
        yield RayCrew(cluster, gpus=gpus), target
    finally:
        if ours:
            ray.shutdown()
