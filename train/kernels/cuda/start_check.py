"""Check of the NVRTC operators against float64 before their first use on a machine.

It runs in a process of its own, since a kernel that reads what it may not ends the process's use of the GPU. What
passed is noted beside the compiled kernels, by sources, GPUs and PyTorch: later processes read the note.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from train.kernels.cuda.sources import architectures, cache_folder, digest, written

LIMIT_S = 300.0


def wrong() -> str | None:
    """Return what is wrong with the operators on the GPUs here, in words; None if they are right."""
    gpus = "-".join(map(str, architectures()))
    note = cache_folder() / f"checked-{digest('start check', gpus, torch.__version__)}-sm{gpus}"
    if _exists(note):
        return None
    problem = run([sys.executable, "-m", "train.kernels", "check", "--start"])
    if problem is None:
        _write(note)
    return problem


def run(command: list[str], limit_s: float = LIMIT_S) -> str | None:
    """Run a check in a process of its own; return the last thing that it printed if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(  # noqa: S603 - a command of ours
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its check was not done after {limit_s:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stdout.strip().splitlines()
    return f"its check failed: {lines[-1] if lines else f'exit status {done.returncode}'}"


def _exists(note: Path) -> bool:
    try:
        return note.exists()
    except OSError:  # a folder that may not be searched
        return False


def _write(note: Path) -> None:
    try:
        with written(note):
            pass
    except OSError:  # a read-only home: the next process checks again
        return
