"""Uploads that stall or fail on one rank: the steps of all go on, and words name the rank and the object."""

import os
import threading
import time
from pathlib import Path

import torch

from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.train.checkpoint.folder import latest
from reelweave.train.checkpoint.saver import Checkpoints, SaveProgress
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.world import World, join
from tests.s3server import FaultyProxy, make_bucket, s3_server
from tests.train.ranks import Ranks

STEPS = 20


def part(step: int, rank: int) -> str:
    return f"step-{step:06}/model/{rank:05}-of-00002.safetensors"


def trainer(folder: str, url: str, endpoint: str) -> None:
    """A rank of two: it steps on whatever happens to its uploads, which the test holds up and lets go."""
    os.environ.update(AWS_ACCESS_KEY_ID="test-key-id", AWS_SECRET_ACCESS_KEY="test-secret")
    seen = open_storage("s3://bucket/run", StorageConfig(endpoint_url=endpoint))
    storage = open_storage("s3://bucket/run", StorageConfig(endpoint_url=url, max_attempts=2))
    with join("cpu") as world:
        weights = {f"w{n}": torch.ones(8) for n in range(4)}
        checkpoints = Checkpoints(storage, CheckpointConfig(max_wait_s=0.2), world, {"model": weights})

        def save(step: int) -> None:
            checkpoints.save(CheckpointState(step=step, stream={}, config={}))

        def steps(least: int, until: int | None = None) -> None:
            """Make steps, and until a checkpoint is seen by all."""
            while least > 0 or (until is not None and world.sums([latest(seen) == until])[0] != 2):
                checkpoints.advance(SaveProgress(*world.sums(checkpoints.progress())))
                least -= 1

        save(1)  # stalls on rank 1
        steps(STEPS)
        save(2)  # left out
        steps(STEPS)
        went_on(folder, world, "stalled")
        steps(1, until=1)
        save(3)  # stalls on rank 0, fails on rank 1
        steps(STEPS)
        went_on(folder, world, "failed")
        while checkpoints.progress() != SaveProgress():  # until the failure is reported
            steps(1)
            time.sleep(0.01)
        save(4)
        steps(1, until=4)


def went_on(folder: str, world: World, name: str) -> None:
    """Tell the test that steps were made, and step on when it has let the upload go."""
    world.barrier()
    (Path(folder) / f"{name}.{world.rank}").touch()
    while not (Path(folder) / f"{name}.free").exists():
        time.sleep(0.01)


def test_an_upload_that_stalls_or_fails_stops_no_step_and_is_named(tmp_path: Path, ranks: Ranks) -> None:
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "bucket")
        first = proxy.hold(f"^PUT .*{part(1, 1)}")
        second = proxy.hold(f"^PUT .*{part(3, 0)}")
        proxy.answer(403, "AccessDenied", f"^PUT .*{part(3, 1)}")
        began = threading.Thread(target=let_go, args=(tmp_path, {"stalled": first, "failed": second}))
        began.start()
        try:
            ended = ranks.run(trainer, 2, str(tmp_path), proxy.url, endpoint)
        finally:
            first.set()
            second.set()
            (tmp_path / "over").touch()
            began.join()
        assert ended.codes == [0, 0], "\n".join(ended.errors)
        # Both stalled for as long as the steps took, which a wait for them would never have made.
        assert (tmp_path / "failed.free").exists()
        said = ended.errors[0]
        assert "step-000002 is left out, since after 0.2 s rank 1 still writes s3://bucket/run/" in said
        assert f"{part(1, 1)}; training goes on" in said
        assert "step-000003 could not be written (rank 1: " in said
        assert part(3, 1) in said.split("step-000003 could not", 1)[1]
        storage = open_storage("s3://bucket/run", StorageConfig(endpoint_url=endpoint))
        assert latest(storage) == 4
        assert storage.stat("step-000002/state.json") is None


def let_go(folder: Path, held: dict[str, threading.Event]) -> None:
    """Let each upload go once both ranks have made their steps."""
    for name, event in held.items():
        while not all((folder / f"{name}.{rank}").exists() for rank in (0, 1)):
            if (folder / "over").exists():
                return
            time.sleep(0.01)
        event.set()
        (folder / f"{name}.free").touch()
