"""Jobs of SkyPilot: by its own schemas of version 0.14.1, by bash, and by the programs that they call."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from reelweave.pipelines.cli import parse_words
from tests.infra.slurm import install
from tests.thorough import thorough

INFRA = Path(__file__).parents[2] / "infra"
SCHEMAS = json.loads(Path(__file__).with_name("skypilot.json").read_text())
NAMES = ("curate", "train")
NODES = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}
TELLS = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >> "$LOG"
[[ ! -e $LOG.fails ]] || { rm "$LOG.fails"; exit 1; }
"""


def task(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((INFRA / f"sky/{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_skypilot_knows_every_field(name: str) -> None:
    found = task(name)
    jsonschema.validate(found, SCHEMAS["task"])
    jsonschema.validate(found["resources"], SCHEMAS["resources"])
    with pytest.raises(jsonschema.ValidationError, match="use_spots"):
        jsonschema.validate({**found["resources"], "use_spots": True}, SCHEMAS["resources"])


@pytest.mark.parametrize("name", NAMES)
def test_machines_install_what_is_locked(name: str) -> None:
    setup = task(name)["setup"]
    assert subprocess.run(["bash", "-n"], input=setup, text=True, check=False).returncode == 0
    locks = [word for word in shlex.split(setup) if word.startswith("infra/locks/")]
    assert locks
    assert all((INFRA.parent / lock).is_file() for lock in locks)
    assert setup.count("--require-hashes") == len(locks)


def ran(name: str, rank: int, folder: Path) -> list[list[str]]:
    """Return the command lines that a node's part of a job calls, in the order of its calls."""
    for program in ("ray", "reelweave", "torchrun", "sleep"):
        install(folder, program, TELLS)
    install(folder, "nproc", "#!/usr/bin/env bash\necho 16\n")
    own = {"SKYPILOT_NODE_RANK": str(rank), "LOG": str(folder / "log"), "HOME": str(folder)}
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", task(name)["run"]], env=NODES | own | path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in (folder / "log").read_text().splitlines()]


@thorough
def test_the_first_machine_curates_when_all_are_there(tmp_path: Path) -> None:
    from ray.scripts.scripts import start

    first, second = ran("curate", 0, tmp_path)
    assert first[:2] == ["ray", "start"]
    ray = start.make_context("start", first[2:]).params
    assert (ray["head"], ray["port"], ray["dashboard_agent_listen_port"]) == (True, 6379, 52366)
    assert second[:2] == ["reelweave", "curate"]
    assert "run.wait_for_cpus=32" in parse_words(second[1:]).set


def test_another_machine_joins_however_late_the_first_one_is(tmp_path: Path) -> None:
    (tmp_path / "log.fails").touch()
    calls = ran("curate", 1, tmp_path)
    assert [words[0] for words in calls] == ["ray", "sleep", "ray"]
    assert calls[0] == calls[2]
    assert "--address=10.0.0.1:6379" in calls[0]


def test_every_machine_starts_the_ranks_of_its_gpus(tmp_path: Path) -> None:
    from torch.distributed.run import get_args_parser

    (call,) = ran("train", 1, tmp_path)
    words = get_args_parser().parse_args(call[1:])
    assert (words.nnodes, words.nproc_per_node, words.node_rank, words.master_addr) == (
        "2",
        "8",
        1,
        "10.0.0.1",
    )
    assert [words.training_script, words.training_script_args[0]] == ["reelweave", "train"]
    assert parse_words(words.training_script_args).config == "train.yaml"
