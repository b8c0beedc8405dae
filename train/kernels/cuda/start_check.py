"""Check of the NVRTC operators against float64 before their first use on a machine.

It runs in a process of its own, since a kernel that reads what it may not ends the process's use of the GPU. The
verdict is noted beside the compiled kernels, by sources, GPUs and PyTorch. Of the ranks of a node one checks while the
others wait for its note, so that all decide alike. What passed is not checked again; what failed is, by the next run.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from reelweave.loader.base.shared.locks import lock_if_possible
from reelweave.loader.base.whole_file import whole_file
from reelweave.train.kernels.cuda.sources import architectures, cache_folder, digest

LIMIT_S = 300.0


def wrong() -> str | None:
    """Return what is wrong with the operators on the GPUs here, in words; None if they are right."""
    gpus, since = "-".join(map(str, architectures())), time.time()
    note = cache_folder() / f"checked-{digest('start check', gpus, torch.__version__)}-sm{gpus}"
    verdict = _read_verdict(note, since)
    if verdict is None:
        with lock_if_possible(note.with_name(f"{note.name}.lock")):
            verdict = _read_verdict(note, since)
            if verdict is None:
                verdict = (
                    run([sys.executable, "-P", "-m", "reelweave.train.kernels", "check", "--start"]) or ""
                )
                _write(note, verdict)
    return verdict or None


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


def _read_verdict(note: Path, since: float) -> str | None:
    """Return the noted verdict, empty if all is right; None without one, or for a failure before ``since``."""
    try:
        verdict, noted_at = note.read_text(), note.stat().st_mtime
    except (OSError, UnicodeError):  # a folder that may not be searched, too
        return None
    return verdict if not verdict or noted_at >= since else None


def _write(note: Path, verdict: str) -> None:
    try:
        with whole_file(note) as aside:
            aside.write_text(verdict)
    except OSError:  # a read-only home: the next process checks again
        return
