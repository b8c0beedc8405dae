"""Wait for a cluster that is still growing: for the processors and GPUs that a run counts on."""

import time
from collections.abc import Callable

from reelweave.curate.run.runners.ray_cluster import cluster_size
from reelweave.curate.run.runners.reservations import Resources
from reelweave.loader.errors import RunError


def await_cluster(
    required: Resources,
    limit_s: float,
    waiting: Callable[[Resources], None],
    size: Callable[[], Resources] = cluster_size,
    poll_s: float = 5.0,
) -> None:
    """Return once the cluster has the processors and GPUs; ask its autoscaler for them until then.

    Whether stages with a model use GPUs is decided by the nodes that are there. Autoscalers add nodes only for work
    that waits, so a run that begins before its GPU nodes would keep its models on processors.

    Args:
        required: Processors and GPUs of all nodes together.
        limit_s: Longest wait, seconds.
        waiting: Called with what is there before each further wait.
        size: Returns what all nodes have together.
        poll_s: Seconds between two looks.

    Raises:
        RunError: they are not there in time; the message names the key.
    """
    if _enough(size(), required):
        return
    end = time.monotonic() + limit_s
    _ask_for(required)
    try:
        while not _enough(available := size(), required):
            if time.monotonic() >= end:
                raise RunError(_too_few(required, available, limit_s))
            waiting(available)
            time.sleep(min(poll_s, max(0.0, end - time.monotonic())))
    finally:
        _ask_for(Resources(0))  # a request that stands holds its nodes for ever


def _enough(available: Resources, required: Resources) -> bool:
    return available.cpus >= required.cpus and available.gpus >= required.gpus


def _ask_for(required: Resources) -> None:
    from ray.autoscaler.sdk import request_resources

    # A bundle of one GPU each: nodes of any number of GPUs will do.
    request_resources(num_cpus=int(required.cpus), bundles=[{"GPU": 1}] * int(required.gpus))


def _too_few(required: Resources, available: Resources, limit_s: float) -> str:
    missing = [
        f"{has:g} of the {needed:g} {name} of run.wait_for_{name.lower()}"
        for name, needed, has in (
            ("CPUs", required.cpus, available.cpus),
            ("GPUs", required.gpus, available.gpus),
        )
        if has < needed
    ]
    return (
        f"after {limit_s:.0f} s the Ray cluster has {' and '.join(missing)}: look whether its nodes can start, lower"
        " that key, or raise run.wait_s; the same command goes on"
    )
