"""The Slurm script, run by bash, with torchrun itself under a Slurm made of two small programs."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.infra.slurm import install, slurm
from tests.infra.slurm import sbatch as run_script
from tests.ports import reserved_port
from tests.thorough import thorough

SCRIPT = Path(__file__).parents[2] / "infra" / "slurm" / "train.sbatch"

TORCHRUN_THAT_TELLS = """#!/usr/bin/env bash
printf '%s\\n' "torchrun $SLURM_NODEID" "$@" > "$LOG.$SLURM_NODEID"
"""
TORCHRUN_THAT_IS_WARNED = """#!/usr/bin/env bash
kill -USR1 $$
echo "still there" > "$LOG.$SLURM_NODEID"
"""
TRAINER_THAT_TELLS = """#!/usr/bin/env bash
echo "$*" > "$LOG.rank$RANK.of$WORLD_SIZE"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return slurm(tmp_path)


def sbatch(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_script(SCRIPT, environment, *arguments)


def test_bash_can_parse_it() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0


def test_slurm_is_asked_for_one_task_per_node_a_warning_and_requeueing() -> None:
    options = [line.split()[1] for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--ntasks-per-node=1", "--requeue", "--open-mode=append", "--signal=B:USR1@300"} <= set(options)
    assert any(option.startswith("--gpus-per-node=") for option in options)
    assert any(option.startswith("--time=") for option in options)


def test_every_node_starts_one_torchrun_that_meets_at_the_first_host(
    environment: dict[str, str], tmp_path: Path
) -> None:
    install(tmp_path, "torchrun", TORCHRUN_THAT_TELLS)
    done = sbatch(environment, "--config", "a run.yaml", "--set", "train.steps=3")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text().splitlines() == [
        "srun --cpus-per-task=64",
        "srun --kill-on-bad-exit=1",
    ]
    told = [(tmp_path / f"log.{node}").read_text().splitlines() for node in (0, 1)]
    assert [words[1] for words in told] == ["--rdzv-conf=is_host=1", "--rdzv-conf=is_host=0"]
    assert told[0][2:] == told[1][2:]
    assert sorted(told[0][2:8]) == [
        "--max-restarts=0",
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=node1:{20000 + 31337 % 12000}",
        "--rdzv-id=31337",
    ]
    assert told[0][8:] == [
        "--no-python",
        "reelweave",
        "train",
        "--config",
        "a run.yaml",
        "--set",
        "train.steps=3",
    ]


def test_torchrun_leaves_the_warning_to_the_ranks(environment: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "torchrun", TORCHRUN_THAT_IS_WARNED)
    done = sbatch(environment, "--config", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"log.{node}").read_text() for node in (0, 1)] == ["still there\n"] * 2


TORCHRUN_UNTIL_STOPPED = """#!/usr/bin/env bash
touch "$LOG.begun.$SLURM_NODEID"
until [[ -e $LOG.stop ]]; do sleep 0.1; done
exit $(< "$LOG.stop")
"""


@pytest.mark.parametrize(
    ("status", "event", "then"),
    [
        (1, "warned", ["scancel --signal=USR1 31337", "scontrol requeue 31337"]),
        (0, "warned", ["scancel --signal=USR1 31337"]),
        (1, "a node is lost", ["scontrol requeue 31337"]),
        (1, "", []),
    ],
    ids=["saved and stopped", "all steps done", "a node is lost", "failed by itself"],
)
def test_a_job_is_requeued_where_it_is_warned_of_its_end_or_loses_a_node(
    environment: dict[str, str], tmp_path: Path, status: int, event: str, then: list[str]
) -> None:
    install(tmp_path, "torchrun", TORCHRUN_UNTIL_STOPPED)
    job = subprocess.Popen(["bash", str(SCRIPT), "--config", "run.yaml"], env=environment)
    wait_for(lambda: all((tmp_path / f"log.begun.{node}").exists() for node in (0, 1)))
    if event == "warned":
        job.send_signal(signal.SIGUSR1)
        wait_for(lambda: "scancel" in (tmp_path / "log").read_text())
    if event == "a node is lost":
        (tmp_path / "log.lost").touch()
    (tmp_path / "log.stop").write_text(str(status))
    assert job.wait(60) == status
    assert (tmp_path / "log").read_text().splitlines()[2:] == then


def test_a_job_whose_nodes_do_not_answer_at_its_begin_ends_and_is_not_requeued(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "log.lost").touch()
    assert sbatch(environment, "--config", "run.yaml").returncode == 1
    assert not (tmp_path / "log").exists()


def wait_for(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.05)


@thorough
def test_torchrun_itself_makes_one_world_of_all_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "reelweave", TRAINER_THAT_TELLS)
    environment["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["FIRST_HOST"] = "localhost"
    with reserved_port(random.sample(range(20_000, 32_000), 100)) as port:
        environment["SLURM_JOB_ID"] = str(port - 20_000)
        done = sbatch(environment, "--config", "run.yaml")
    assert done.returncode == 0, done.stderr
    told = sorted(path.name for path in tmp_path.glob("log.rank*"))
    assert told == [f"log.rank{rank}.of4" for rank in range(4)]
    assert {path.read_text() for path in tmp_path.glob("log.rank*")} == {"train --config run.yaml\n"}


def test_a_failing_rank_fails_the_job(environment: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "torchrun", "#!/usr/bin/env bash\nexit 7\n")
    assert sbatch(environment, "--config", "run.yaml").returncode == 7


def test_without_arguments_it_says_how_it_is_called(environment: dict[str, str]) -> None:
    done = sbatch(environment)
    assert done.returncode == 2
    assert "usage: sbatch infra/slurm/train.sbatch --config FILE" in done.stderr


def test_an_unknown_node_list_stops_the_job_before_srun(environment: dict[str, str], tmp_path: Path) -> None:
    environment["SLURM_JOB_NODELIST"] = "elsewhere"
    assert sbatch(environment, "--config", "run.yaml").returncode != 0
    assert not (tmp_path / "log").exists()
