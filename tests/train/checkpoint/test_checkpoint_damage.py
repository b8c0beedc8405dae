"""Wrong bytes in any file of a checkpoint are named before they are used, with the checkpoint to take instead."""

import json
import logging
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from reelweave.train.checkpoint.checksums import BLOCK
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.checkpoint.verify import verify
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.world import World
from tests.hostile import KINDS, damage, files
from tests.train.checkpoint import sharded
from tests.train.loop import worlds
from tests.train.ranks import Ranks

# More than one block, and rows that do not end where blocks do.
GROUPS = {
    "model": {"w": torch.arange(3 * 700_000.0).reshape(3, -1), "b": torch.ones(7).bfloat16()},
    "optimizer": {"w.step": torch.tensor(3.0)},
}
ALONE = World(0, 1, torch.device("cpu"))
LAST = "step-000002"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    out = tmp_path_factory.mktemp("run")
    for step in (1, 2):
        state = CheckpointState(step=step, stream={"position": step}, config={"seed": 1})
        opened(out, GROUPS).save(state, last=True)
    return out


def opened(out: Path, groups: dict) -> Checkpoints:
    return Checkpoints(open_storage(out / "checkpoints"), CheckpointConfig(), ALONE, groups)


def load(out: Path) -> dict:
    targets = {group: {n: torch.zeros_like(t) for n, t in held.items()} for group, held in GROUPS.items()}
    checkpoints = opened(out, targets)
    checkpoints.load_(checkpoints.latest())
    return targets


def overwritten(path: Path, at: int, count: int = 100) -> bytes:
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes(byte ^ 0x55 for byte in data[at : at + count]) + data[at + count :])
    return data


def test_whole_ones_load_and_verify(made: Path) -> None:
    found = load(made)
    assert torch.equal(found["model"]["w"], GROUPS["model"]["w"])
    assert GROUPS["model"]["w"].nbytes > BLOCK
    seen = verify(open_storage(made / "checkpoints"), LAST)
    assert seen.checked
    assert not seen.problems
    assert seen.bytes == sum(path.stat().st_size for path in files(made / "checkpoints" / LAST))


@pytest.mark.parametrize("group", ["model", "optimizer"])
def test_a_hundred_overwritten_bytes_are_never_used(made: Path, tmp_path: Path, group: str, capsys) -> None:
    [path] = files(made / "checkpoints" / LAST / group)
    whole = overwritten(path, path.stat().st_size - 60)
    words = rf"{group}/00000-of-00001.safetensors is damaged .*checksum.* checkpoint before it.*step-000001"
    try:
        with pytest.raises(RunError, match=words):
            load(made)
        assert main(["verify", str(made)]) == 1
        told = capsys.readouterr().out
        assert str(path) in told
        assert "1 of 2 checkpoints are damaged; the newest good one is" in told
        assert main(["verify", str(made / "checkpoints" / "step-000001")]) == 0
        if group == "model":
            out = tmp_path / "a.safetensors"
            assert main(["export", str(made), "--out", str(out)]) == 1
            assert str(path) in capsys.readouterr().err
            assert not out.exists()
            with pytest.raises(RunError, match="is damaged"):
                weights_of(str(made)).load_({n: torch.zeros_like(t) for n, t in GROUPS["model"].items()})
    finally:
        path.write_bytes(whole)


def test_only_the_blocks_that_are_read_are_checked(made: Path) -> None:
    from reelweave.train.checkpoint.files import read_rows
    from reelweave.train.checkpoint.reading import find
    from reelweave.train.checkpoint.state import read_checkpoint_state

    storage = open_storage(made / "checkpoints")
    [stored] = find(storage, LAST, read_checkpoint_state(storage, LAST), "model", 9)["w"]
    [path] = files(made / "checkpoints" / LAST / "model")
    whole = overwritten(path, stored.start + 1)
    try:
        assert torch.equal(read_rows(storage, stored, 2, 3), GROUPS["model"]["w"][2:3])
        with pytest.raises(RunError, match="is damaged"):
            read_rows(storage, stored, 0, 1)
    finally:
        path.write_bytes(whole)


def copied(made: Path, out: Path, name: str) -> Path:
    """A file of the newest checkpoint in a copy of the run, of which no other file is written anew."""
    shutil.copytree(made, out, copy_function=os.link)
    path = out / "checkpoints" / LAST / name
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def test_every_kind_of_damage_to_every_file_ends_in_words(made: Path, tmp_path: Path) -> None:
    chance = random.Random(11)
    last = made / "checkpoints" / LAST
    for name in (str(path.relative_to(last)) for path in files(last)):
        for kind in KINDS:
            out = tmp_path / f"{name.replace('/', '-')}-{kind}"
            path = copied(made, out, name)
            damage(path, kind, chance)
            if name == "state.json" and not path.is_file():
                # Without its state it is no checkpoint, and the one before is taken.
                assert torch.equal(load(out)["model"]["w"], GROUPS["model"]["w"])
                continue
            assert verify(open_storage(out / "checkpoints"), LAST).problems, (name, kind)
            with pytest.raises(RunError, match="damaged"):
                load(out)


def test_a_checkpoint_of_an_earlier_format_is_read_with_a_word_of_warning(
    made: Path, tmp_path: Path, caplog, ranks: Ranks
) -> None:
    out = tmp_path / "run"
    state = copied(made, out, "state.json")
    values = json.loads(state.read_text())
    older = {name: value for name, value in values.items() if name not in ("sha256", "headers")}
    state.write_text(json.dumps({**older, "format_version": 2}))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(load(out)["model"]["w"], GROUPS["model"]["w"])
    assert "without checksums" in caplog.text
    ended = ranks.run(worlds.read_weights, 2, str(out))
    assert ended.codes == [0, 0], ended.errors
    assert ["without checksums" in error for error in ended.errors] == [True, False]
    assert not verify(open_storage(out / "checkpoints"), LAST).checked
    # One flipped bit makes a 2 of a 3; the checksums that are there count all the same.
    state.write_text(json.dumps({**values, "format_version": 2}))
    with pytest.raises(RunError, match="damaged"):
        load(out)


def test_a_part_that_one_rank_reads_ends_all_of_them_in_words(tmp_path: Path, ranks: Ranks) -> None:
    saved = ranks.run(sharded.save, 2, str(tmp_path), [2])
    assert saved.codes == [0, 0], saved.errors
    path = sorted(tmp_path.rglob("00001-of-00002.safetensors"))[0]
    overwritten(path, path.stat().st_size - 10, 4)
    ended = ranks.run(sharded.load_damaged, 2, str(tmp_path), [2], path.name)
    assert ended.codes == [0, 0], "\n".join(ended.errors)
