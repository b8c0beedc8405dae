"""Two real runs with different settings on one output: one wins, the other is told, and the dataset is the winner's."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.foreign.run import index_tars
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.curate.run.sample_run import forecast_curation
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import DatasetWriter, Removal, verify
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage, StorageConfig, hold_lease, open_storage
from tests.media import write_video
from tests.s3server import make_bucket, s3_server
from tests.thorough import but, thorough
from tests.warm import Command, Warm

HERE = ("run.runner=sequential", "run.isolate=false", "shard.max_shard_mb=0.05", "spans.min_clip_s=1.0")
LEASE_S = 4.0


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(2):
        write_video(folder / f"{number}.mp4", (30, 34 + number), first_scene=3 * number)
    return folder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "lake")
        yield url


@pytest.fixture(params=but(["folder"], ["folder", "s3"], []))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(tmp_path / "out")
    endpoint = request.getfixturevalue("endpoint")
    config = StorageConfig(endpoint_url=endpoint, region="us-east-1", lease_s=LEASE_S)
    return open_storage(f"s3://lake/{tmp_path.name}", config)


class Runs:
    """``reelweave curate`` in processes of its own, with settings that give other clips."""

    def __init__(self, raw: Path, place: Storage, warm: Warm) -> None:
        self.raw, self.place, self.warm = raw, place, warm

    def start(self, crf: int, *options: str, killed_behind: str = "") -> Command:
        sets = [*HERE, f"cut.crf={crf}"]
        if isinstance(config := getattr(self.place, "config", None), StorageConfig):
            sets += [f"storage.endpoint_url={config.endpoint_url}", "storage.region=us-east-1"]
            sets.append(f"storage.lease_s={config.lease_s}")
        words = [word for value in sets for word in ("--set", value)]
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        command = ("curate", str(self.raw), "--out", self.place.root, *words, *options)
        return self.warm.start(*command, env=aws, killed_behind=killed_behind)

    def until(self, run: Command, prefix: str) -> None:
        while run.poll() is None and next(self.place.list(prefix), None) is None:
            time.sleep(0.01)


@pytest.fixture
def runs(raw: Path, place: Storage, warm: Warm) -> Runs:
    return Runs(raw, place, warm)


def content(place: Storage) -> dict[str, bytes]:
    """Every file of the dataset but the ledger, the report and the kept configuration, which names its own place."""
    return {
        item.path: place.read(item.path)
        for item in place.list()
        if not item.path.startswith((".ledger/", "report/", "curate.yaml"))
    }


@pytest.fixture(scope="module")
def undisturbed(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, bytes]]:
    made = {}
    for crf in (20, 32):
        out = tmp_path_factory.mktemp("undisturbed") / "out"
        sections = {"run": {"runner": "sequential", "isolate": False}, "shard": {"max_shard_mb": 0.05}}
        sections |= {"spans": {"min_clip_s": 1.0}, "cut": {"crf": crf}}
        curate([str(raw)], str(out), CurateConfig.model_validate(sections))
        made[crf] = content(open_storage(out))
    assert not {*made[20]} >= {*made[32]}  # other settings, other names
    return made


@pytest.mark.parametrize(
    "prefix", but([""], ["", ".ledger/clips/"], ()), ids=["together", "the second in the middle"]
)
def test_one_wins_and_the_other_is_told(
    runs: Runs, undisturbed: dict[int, dict[str, bytes]], prefix: str
) -> None:
    # On a busy machine a process may stand still for longer than a short lease lasts.
    long = ("--set", "storage.lease_s=12")
    started = {20: runs.start(20, *long)}
    if prefix:
        runs.until(started[20], prefix)
    started[32] = runs.start(32, *long)
    ended = {crf: run.ended() for crf, run in started.items()}
    [winner] = [crf for crf, (status, _) in ended.items() if status == 0]
    [loser] = started.keys() - {winner}
    status, words = ended[loser]
    # Whoever comes when the other has just ended meets a finished dataset of other settings.
    # It may have waited for that end: the warning of the wait names the winner, too.
    told = re.search(rf"is being written to by .*process {started[winner].pid}, reelweave curate", words)
    assert (status, told is not None) in ((1, True), (2, False)), words
    assert "Traceback" not in words
    assert content(runs.place) == undisturbed[winner]
    assert verify(runs.place).problems == []


@thorough
def test_a_killed_run_is_followed_by_one_of_other_settings(
    runs: Runs, undisturbed: dict[int, dict[str, bytes]]
) -> None:
    assert runs.start(20, killed_behind="^shards/").ended()[0] == -9
    assert runs.start(32).ended()[0] == 0
    assert content(runs.place) == undisturbed[32]


@thorough
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_stopped_run_that_was_followed_leaves_the_dataset_alone(
    runs: Runs, undisturbed: dict[int, dict[str, bytes]]
) -> None:
    first = runs.start(20)
    runs.until(first, ".ledger/clips/")
    first.signal(signal.SIGSTOP)
    assert runs.start(32).ended()[0] == 0
    first.signal(signal.SIGCONT)
    status, words = first.ended()
    assert status == 1
    assert "lost its lease" in words
    assert content(runs.place) == undisturbed[32]
    assert verify(runs.place).problems == []


COMMANDS: dict[str, Callable[[Path, str], object]] = {
    "curate": lambda raw, out: curate([str(raw)], out, CurateConfig()),
    "update": lambda raw, out: curate([str(raw)], out, CurateConfig(), update=True),
    "forecast": lambda raw, out: forecast_curation([str(raw)], out, CurateConfig(), ForecastConfig()),
    "remove": lambda _, out: remove(open_storage(out), Removal(key="k", date="", reason="", samples=0)),
    "index": lambda raw, out: index_tars(str(raw), out),
    "index beside the tars": lambda _, out: index_tars(out),
    "writer": lambda _, out: DatasetWriter(open_storage(out)).__enter__(),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_writes_asks_for_the_lease_first(raw: Path, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    with hold_lease(open_storage(out), "another command"):
        before = sorted(out.rglob("*"))
        with pytest.raises(RunError, match=f"process {os.getpid()}, another command"):
            COMMANDS[command](raw, str(out))
        assert sorted(out.rglob("*")) == before
    assert not out.exists()
