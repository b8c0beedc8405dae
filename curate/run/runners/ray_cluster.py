"""The Ray that a run works on: the cluster of RAY_ADDRESS, or one that is started on this machine."""

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reelweave.curate.run.runners.ray_errors import describe_error
from reelweave.curate.run.runners.ray_folder import ray_folder
from reelweave.curate.run.runners.ray_token import keep_token
from reelweave.curate.run.runners.reservations import Resources
from reelweave.loader.base.processors import memory_limit, processors
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage.names import redact_uri


class RayTooSlowError(RunError):
    """Ray's own processes did not start within the seconds that it gives them, which no setting changes."""


class RayNotInstalledError(UsageError):
    """Ray is not installed, and no cluster was asked for."""


_CONNECT_S = 10.0
_STARTS = 4
_WORKERS_SHARE = 0.7  # of the memory; Ray gives as much to workers, and the rest to its store
_START_TIMED_OUT = "timed out during startup"
"""Ray's error when its own processes need more than the 30 s that it gives them, as on a busy machine."""


def start_ray() -> Any:
    """Start Ray or join it, unless this process has one; return its module.

    Raises:
        RayNotInstalledError: it is not installed, and RAY_ADDRESS names no cluster.
        UsageError: it is not installed, or incomplete.
        RunError: it cannot start or be joined.
    """
    address = os.environ.get("RAY_ADDRESS")
    ray = _ray(address)
    if ray.is_initialized():
        return ray
    # Reports of usage would go to the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its C++ core writes notes for its developers to our terminal, even one that it now writes none.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if address:
        # Attempts to join, of 40 s each where something listens that is no cluster; Ray would make twenty.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
        # A node without power closes no connection: ask workers with a task whether they live once a minute, which
        # is as often as they allow and Ray does every five, and give up after 20 s, not two minutes.
        os.environ.setdefault("RAY_grpc_client_keepalive_time_ms", "61000")
        os.environ.setdefault("RAY_grpc_client_keepalive_timeout_ms", "20000")
    else:
        # Ray would start a worker for each processor, and keep us until they have registered: for ever, where a busy
        # machine ends them unregistered after 60 s. Tasks start those that they need.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        keep_token(Path(os.path.expanduser("~/.ray")))  # noqa: PTH111 - expanduser of Path raises without a home
    try:
        alone = {} if address else _own_ray()
        _check_listens(address or "")
        with _keeping_sigterm(), _held_back():
            for attempts_left in reversed(range(1 if address else _STARTS)):
                try:
                    ray.init(log_to_driver=False, logging_level="ERROR", job_config=_job(ray), **alone)
                    break
                except Exception as error:
                    if not attempts_left or _START_TIMED_OUT not in str(error):
                        raise
                    ray.shutdown()
    except Exception as error:
        if address:
            raise RunError(
                f"the Ray cluster at RAY_ADDRESS={redact_uri(address)} cannot be joined: {describe_error(error)}; start"
                " it and run the same command again, or unset RAY_ADDRESS to work on this machine alone"
            ) from error
        kind = RayTooSlowError if _START_TIMED_OUT in str(error) else RunError
        raise kind(
            f"Ray cannot start on this machine: {describe_error(error)}; run the same command again, or set the"
            " configuration's runner to sequential"
        ) from error
    return ray


class _SearchPath(list[str]):
    """Folders that Ray adds to the front of its workers' `sys.path`, without a current folder where we look for none.

    A folder of films that others made may hold an ``av.py``.
    """

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(folder for folder in folders if folder in sys.path)


def _job(ray: Any) -> Any:
    """Return the configuration of a driver whose workers look for modules where it does."""
    job = ray.job_config.JobConfig()
    job._py_driver_sys_path = _SearchPath()
    return job


def _own_ray() -> dict[str, Any]:
    """Return the options of a Ray on this machine alone, with what this process may use of it.

    Ray itself would count all that the machine has, and join any cluster that was started on it.

    Raises:
        OSError: there is no folder for it that only this user may enter.
    """
    options: dict[str, Any] = {
        "address": "local",
        "num_cpus": processors(),
        "include_dashboard": False,
        "_temp_dir": str(ray_folder()),
    }
    limit = memory_limit()
    if limit and limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        options["_memory"] = int(_WORKERS_SHARE * limit)
    return options


def _check_listens(address: str) -> None:
    """Connect to a cluster's host and port, where Ray itself would try for minutes.

    Raises:
        OSError: nothing accepts connections there.
    """
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), _CONNECT_S).close()


@contextmanager
def _keeping_sigterm() -> Iterator[None]:
    """Let SIGTERM do what it does now: `ray.init` sets a handler that writes a stack and aborts this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None stands for a handler that is not of Python.
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    heard = False
    try:
        yield
    except SystemExit as error:  # as the first of Ray's handlers ends the process
        heard = error.code == signal.SIGTERM
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if heard:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back standard error of this process; show it if the body fails."""
    sys.stderr.flush()
    saved_fd = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            file.seek(0)
            os.write(saved_fd, file.read())
            raise
        finally:
            os.dup2(saved_fd, 2)
            os.close(saved_fd)


def _ray(address: str | None) -> Any:
    """Return Ray's module, imported with Ray Data."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        advice = "pip install 'reelweave[ray]', or set the configuration's runner to sequential"
        if error.name != "ray":
            raise UsageError(f"Ray Data cannot be imported ({error}): {advice}") from error
        if address:
            raise UsageError(
                f"RAY_ADDRESS={redact_uri(address)} needs Ray, which is not installed: {advice}"
            ) from error
        raise RayNotInstalledError(f"Ray is not installed: {advice}") from error
    return ray


def cluster_nodes() -> list[Resources]:
    """Return the resources of each node of the cluster that is alive."""
    ray = start_ray()
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [
        Resources(node.get("CPU", 0.0), node.get("GPU", 0.0), node.get("memory", 0.0) / 1e6)
        for node in resources
    ]


def cluster_size() -> Resources:
    """Return the resources of all nodes together."""
    nodes = cluster_nodes()
    return Resources(
        sum(node.cpus for node in nodes) or 1.0,
        sum(node.gpus for node in nodes),
        sum(node.memory_mb for node in nodes),
    )
