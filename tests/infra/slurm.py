"""Slurm made of small programs: `srun` starts one task per node on this machine, `scontrol` names the nodes.

`infra/rehearsal` runs the scripts under Slurm itself.
"""

import os
import subprocess
from pathlib import Path

# As many tasks as nodes at once, and the exit status of the first that fails, as with --kill-on-bad-exit.
_SRUN = """#!/usr/bin/env bash
# A step beside the job's own does nothing; it fails where a node is lost.
[[ $1 != --overlap ]] || exec test ! -e "$LOG.lost"
while [[ $1 == --* ]]; do echo "srun $1" >> "$LOG"; shift; done
tasks=()
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do SLURM_NODEID=$node "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || exit $?; done
"""
_SCONTROL = """#!/usr/bin/env bash
[[ $1 != requeue ]] || { echo "scontrol $*" >> "$LOG"; exit; }
[[ $* == "show hostnames node[1-2]" ]] || exit 3
printf '%s\\n' "$FIRST_HOST" node2
"""


_SCANCEL = """#!/usr/bin/env bash
echo "scancel $*" >> "$LOG"
"""


def slurm(folder: Path) -> dict[str, str]:
    """Return the environment of a job of two nodes with two GPUs each, with Slurm's programs first on the PATH."""
    install(folder, "srun", _SRUN)
    install(folder, "scontrol", _SCONTROL)
    install(folder, "scancel", _SCANCEL)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LOG": str(folder / "log"),
        "FIRST_HOST": "node1",
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "31337",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURM_CPUS_ON_NODE": "64",
    }


def install(folder: Path, name: str, text: str) -> None:
    """Write a program."""
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def sbatch(script: Path, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a job's script with its arguments."""
    command = ["bash", str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
