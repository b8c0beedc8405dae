"""The Slurm script of curation, run by bash under a Slurm made of two small programs."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli import parsed
from tests.infra.slurm import install, sbatch, slurm

SCRIPT = Path(__file__).parents[2] / "infra" / "slurm" / "curate.sbatch"
RAY_THAT_TELLS = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$LOG.$SLURM_NODEID"
printf '%s\\n' "$RAY_AUTH_MODE" "$(cat "$RAY_AUTH_TOKEN_PATH")" "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" \\
    "$RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT" > "$LOG.token.$SLURM_NODEID"
"""
ARGUMENTS = ("s3://BUCKET/raw videos", "--out", "s3://BUCKET/clips")
# The reader of these words in Ray itself: what is left is for `ray start`, or it raises.
READS = """
import sys
from ray.scripts.scripts import start
from ray.scripts.symmetric_run import curate_and_validate_ray_start_args
words = curate_and_validate_ray_start_args(sys.argv[1:])
print(start.make_context("start", ["--head", *words]).params["include_dashboard"])
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return slurm(tmp_path)


def test_every_node_joins_one_ray_that_runs_the_command_when_all_are_there(
    environment: dict[str, str], tmp_path: Path
) -> None:
    install(tmp_path, "ray", RAY_THAT_TELLS)
    done = sbatch(SCRIPT, environment, *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    told = [(tmp_path / f"log.{node}").read_text().splitlines() for node in (0, 1)]
    assert told[0] == told[1]
    address = f"node1:{20000 + 31337 % 12000}"
    begin = told[0].index("--")
    assert told[0][0] == "symmetric-run"
    assert told[0][begin + 1 : begin + 3] == ["env", f"RAY_ADDRESS={address}"]
    assert told[0][begin + 3 :] == ["reelweave", "curate", *ARGUMENTS]
    assert parsed(told[0][begin + 4 :]).out == ARGUMENTS[-1]
    options = told[0][1:begin]
    assert {"--address", address, "--min-nodes", "2"} <= set(options)
    read = subprocess.run([sys.executable, "-c", READS, *options], capture_output=True, text=True)
    assert read.stdout.split() == ["False"], read.stderr


def test_nodes_share_a_secret_that_goes_with_the_job(environment: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "ray", RAY_THAT_TELLS)
    tokens = []
    for _ in range(2):
        assert sbatch(SCRIPT, environment, *ARGUMENTS).returncode == 0
        told = [(tmp_path / f"log.token.{node}").read_text().split() for node in (0, 1)]
        assert told[0] == told[1]
        mode, token, rights, seconds = told[0]
        assert (mode, len(token), rights) == ("token", 64, "600")
        assert int(seconds) >= 300
        tokens.append(token)
        assert list(tmp_path.glob(".reelweave-ray*")) == []
    assert tokens[0] != tokens[1]


def test_a_failing_curation_fails_the_job(environment: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "ray", "#!/usr/bin/env bash\nexit 7\n")
    assert sbatch(SCRIPT, environment, *ARGUMENTS).returncode == 7
    assert list(tmp_path.glob(".reelweave-ray*")) == []


def test_without_arguments_it_says_how_it_is_called(environment: dict[str, str], tmp_path: Path) -> None:
    done = sbatch(SCRIPT, environment)
    assert done.returncode == 2
    assert "usage: sbatch infra/slurm/curate.sbatch INPUT... --out DATASET" in done.stderr
    assert not (tmp_path / "log").exists()
