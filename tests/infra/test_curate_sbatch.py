"""The Slurm script of curation, run by bash under a Slurm made of two small programs."""

import itertools
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate import CurateConfig
from reelweave.pipelines.cli import parse_words
from reelweave.pipelines.configuration.config import resolve
from tests.infra.slurm import install, sbatch, slurm
from tests.ports import reserved_port

SCRIPT = Path(__file__).parents[2] / "infra" / "slurm" / "curate.sbatch"
# Each program tells its words; the nodes of the test share a machine, and so a log for each.
TELLS = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0")" "$@" >> "$LOG.$SLURM_NODEID"
printf '%s\\n' "$RAY_AUTH_MODE" "$(cat "$RAY_AUTH_TOKEN_PATH")" "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" \\
    > "$LOG.token.$SLURM_NODEID"
"""
ARGUMENTS = ("s3://BUCKET/raw videos", "--out", "s3://BUCKET/clips")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of a job whose port is its own: tests run beside others."""
    with reserved_port(random.sample(range(20_000, 32_000), 100)) as port:
        yield slurm(tmp_path) | {"FIRST_HOST": "127.0.0.1", "SLURM_JOB_ID": str(port - 20_000)}


def port_of(job: object) -> int:
    return 20000 + int(str(job)) % 12000


@pytest.fixture
def listens(environment: dict[str, str]) -> Iterator[int]:
    """Ray's port on the first node."""
    port = port_of(environment["SLURM_JOB_ID"])
    with socket.create_server(("127.0.0.1", port)):
        yield port


def told(folder: Path, node: int) -> list[list[str]]:
    """Return the command lines of a node's programs."""
    words = (folder / f"log.{node}").read_text().splitlines()
    starts = [at for at, word in enumerate(words) if word in ("ray", "reelweave")] + [len(words)]
    return [words[begin:end] for begin, end in itertools.pairwise(starts)]


def test_every_node_joins_one_ray_that_runs_the_command_when_all_are_there(
    environment: dict[str, str], listens: int, tmp_path: Path
) -> None:
    from ray.scripts.scripts import start

    for name in ("ray", "reelweave"):
        install(tmp_path, name, TELLS)
    done = sbatch(SCRIPT, environment, *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    first, second = told(tmp_path, 0), told(tmp_path, 1)
    assert [words[:2] for words in first] == [["ray", "start"], ["reelweave", "curate"], ["ray", "stop"]]
    assert [words[:2] for words in second] == 3 * [
        ["ray", "start"]
    ]  # this Ray ends at once while the first one listens
    # By the reader of these words in Ray itself.
    head, joined = (start.make_context("start", words[2:]).params for words in (first[0], second[0]))
    assert (head["head"], head["port"], head["include_dashboard"]) == (True, listens, False)
    assert (joined["address"], joined["block"]) == (f"127.0.0.1:{listens}", True)
    assert head["num_cpus"] == joined["num_cpus"] == 64
    words = parse_words(first[1][1:])
    assert (words.inputs, words.out) == ([ARGUMENTS[0]], ARGUMENTS[2])
    assert resolve(CurateConfig, None, words.set).run.wait_for_cpus == 128
    # Slurm ends a step that lost a node unless srun, too, is told not to.
    assert "srun --no-kill" in (tmp_path / "log").read_text().splitlines()


def test_a_node_waits_for_the_first_one(environment: dict[str, str], tmp_path: Path) -> None:
    # The port opens only when the first node's Ray has started, here after a while.
    port = port_of(environment["SLURM_JOB_ID"])
    late = f"""#!/usr/bin/env bash
echo "$SLURM_NODEID $1" >> "$LOG.order"
[[ "$*" == *--head* ]] || exit 0
sleep 1
echo "0 listens" >> "$LOG.order"
{sys.executable} -c 'import socket, time; s = socket.create_server(("127.0.0.1", {port})); time.sleep(8)' \\
    > /dev/null 2>&1 &
"""
    install(tmp_path, "ray", late)
    install(tmp_path, "reelweave", "#!/usr/bin/env bash\nsleep 4\n")
    assert sbatch(SCRIPT, environment, *ARGUMENTS).returncode == 0
    order = (tmp_path / "log.order").read_text().splitlines()
    assert order.index("0 listens") < order.index("1 start")


@pytest.mark.usefixtures("listens")
def test_a_container_of_pyxis_sees_the_token(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("ray", "reelweave"):
        install(tmp_path, name, TELLS)
    options = ("--container-image=REGISTRY#reelweave-curate:0.1.0", "--container-mounts=/data:/data")
    assert sbatch(SCRIPT, environment, *options, *ARGUMENTS).returncode == 0
    token = tmp_path / f".reelweave-ray-{environment['SLURM_JOB_ID']}"
    given = (tmp_path / "log").read_text().splitlines()
    assert given[3:] == [f"srun {options[0]}", f"srun {options[1]},{token}:{token}:ro"]
    assert told(tmp_path, 0)[1][-3:] == list(ARGUMENTS)


@pytest.mark.usefixtures("listens")
def test_nodes_share_a_secret_that_goes_with_the_job(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("ray", "reelweave"):
        install(tmp_path, name, TELLS)
    tokens = []
    for _ in range(2):
        assert sbatch(SCRIPT, environment, *ARGUMENTS).returncode == 0
        secrets = [(tmp_path / f"log.token.{node}").read_text().split() for node in (0, 1)]
        assert secrets[0] == secrets[1]
        mode, token, rights = secrets[0]
        assert (mode, len(token), rights) == ("token", 64, "600")
        tokens.append(token)
        assert list(tmp_path.glob(".reelweave-ray*")) == []
    assert tokens[0] != tokens[1]


@pytest.mark.usefixtures("listens")
@pytest.mark.parametrize("failing", ["ray", "reelweave"])
def test_a_failing_curation_or_ray_fails_the_job(
    environment: dict[str, str], tmp_path: Path, failing: str
) -> None:
    for name in ("ray", "reelweave"):
        install(tmp_path, name, f"#!/usr/bin/env bash\nexit {7 if name == failing else 0}\n")
    assert sbatch(SCRIPT, environment, *ARGUMENTS).returncode == 7
    assert list(tmp_path.glob(".reelweave-ray*")) == []


def test_without_arguments_it_says_how_it_is_called(environment: dict[str, str], tmp_path: Path) -> None:
    done = sbatch(SCRIPT, environment)
    assert done.returncode == 2
    assert "usage: sbatch infra/slurm/curate.sbatch [--container-...] INPUT... --out DATASET" in done.stderr
    assert not (tmp_path / "log").exists()
