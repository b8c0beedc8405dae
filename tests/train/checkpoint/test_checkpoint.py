import json
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.train.checkpoint.files import HEADER_BYTES_PER_TENSOR
from reelweave.train.checkpoint.folder import expendable, latest
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.world import World
from tests.s3server import FaultyProxy, make_bucket, s3_server

MODEL = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "a.bias": torch.ones(2).bfloat16(),
    "frozen": torch.tensor([True, False]),
    "empty": torch.ones(0, 4),
}
OPTIMIZER = {"a.weight.step": torch.tensor(3.0)}
GROUPS = {"model": MODEL, "optimizer": OPTIMIZER}
ALONE = World(0, 1, torch.device("cpu"))
PART = "00000-of-00001.safetensors"


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")
        yield endpoint


@pytest.fixture
def s3(endpoint, tmp_path):
    return open_storage(f"s3://bucket/{tmp_path.name}", StorageConfig(endpoint_url=endpoint, part_mib=5))


def empty_like(groups):
    return {group: {n: torch.zeros_like(t) for n, t in tensors.items()} for group, tensors in groups.items()}


def open_(storage, groups=GROUPS, **config):
    return Checkpoints(storage, CheckpointConfig(**config), ALONE, groups)


def save(storage, step, groups=GROUPS, **config):
    state = CheckpointState(step=step, stream={"position": step}, config={"seed": 1})
    open_(storage, groups, **config).save(state, last=True)


def load(storage, groups=GROUPS):
    targets = empty_like(groups)
    checkpoints = open_(storage, targets)
    state = checkpoints.latest()
    checkpoints.load_(state)
    return state, targets


@pytest.mark.parametrize("place", ["local", "s3"])
def test_what_is_saved_is_loaded(tmp_path, s3, place):
    storage = open_storage(tmp_path) if place == "local" else s3
    save(storage, 60)
    state, found = load(storage)
    assert (state.step, state.stream, state.groups) == (60, {"position": 60}, ["model", "optimizer"])
    for group, tensors in GROUPS.items():
        assert all(torch.equal(found[group][name], tensor) for name, tensor in tensors.items())
    assert sorted(found.path for found in storage.list()) == [
        f"step-000060/model/{PART}", f"step-000060/optimizer/{PART}", "step-000060/state.json",
    ]  # fmt: skip


def test_safetensors_itself_reads_a_part(tmp_path):
    save(open_storage(tmp_path), 1)
    found = load_file(tmp_path / "step-000001" / "model" / PART)
    assert all(torch.equal(found[name], MODEL[name]) for name in ("a.weight", "a.bias", "frozen"))


def test_the_latest_has_the_most_steps(tmp_path):
    storage = open_storage(tmp_path)
    assert latest(storage) is None
    for step in (2, 1_000_000, 999_999):
        save(storage, step)
    assert latest(storage) == 1_000_000


def test_the_last_ones_stay_and_some_for_good(tmp_path):
    storage = open_storage(tmp_path)
    for step in range(1, 9):
        save(storage, step, keep_last=2, keep_every=3, every_steps=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-00000{n}" for n in (3, 6, 7, 8)]
    assert expendable([5, 1, 4, 10], 1, None) == [1, 4, 5]
    assert expendable([5, 1, 4, 10], 9, None) == []


def test_a_checkpoint_without_its_state_is_passed_over_and_cleared_away(tmp_path):
    storage = open_storage(tmp_path)
    save(storage, 1)
    save(storage, 2)
    (tmp_path / "step-000002" / "state.json").unlink()
    (tmp_path / "step-000002" / "model" / ".reelweave-unfinished-1").write_bytes(b"half")
    assert latest(storage) == 1
    open_(storage)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


class Slow:
    """A storage whose writes wait to be let go, and may then fail."""

    def __init__(self, storage):
        self.storage, self.free, self.fails = storage, False, False

    def __getattr__(self, name):
        return getattr(self.storage, name)

    def write_chunks(self, path, chunks, size):
        while not self.free:
            time.sleep(0.001)
        if self.fails:
            raise RunError(f"no space left for {path}")
        self.storage.write_chunks(path, chunks, size)


def train_until(checkpoints, condition):
    """Steps, none of which waits for a checkpoint."""
    deadline = time.monotonic() + 300
    while not condition():
        checkpoints.advance(checkpoints.progress())
        assert time.monotonic() < deadline
        time.sleep(0.001)


def begin(checkpoints, step):
    checkpoints.save(CheckpointState(step=step, stream={}, config={}))


def test_a_checkpoint_holds_the_values_of_its_step_while_training_goes_on(tmp_path):
    storage = Slow(open_storage(tmp_path))
    weights = {"w": torch.ones(3)}
    checkpoints = open_(storage, {"model": weights})
    begin(checkpoints, 1)
    weights["w"].add_(1)
    for _ in range(9):
        checkpoints.advance(checkpoints.progress())
    assert latest(storage) is None
    storage.free = True
    train_until(checkpoints, lambda: latest(storage))
    state, found = load(storage, {"model": weights})
    assert state.step == 1
    assert found["model"]["w"].tolist() == [1, 1, 1]


def test_in_the_foreground_a_checkpoint_is_there_at_once(tmp_path):
    storage = open_storage(tmp_path)
    checkpoints = open_(storage, background=False)
    begin(checkpoints, 1)
    assert latest(storage) == 1


def test_a_failed_write_is_told_and_the_next_one_counts(tmp_path, caplog):
    storage = Slow(open_storage(tmp_path))
    storage.free = True
    checkpoints = open_(storage, keep_last=1)
    begin(checkpoints, 1)
    train_until(checkpoints, lambda: latest(storage) == 1)
    storage.fails = True
    begin(checkpoints, 2)
    (tmp_path / "step-000002" / "model").mkdir(parents=True)
    (tmp_path / "step-000002" / "ema").mkdir()  # of a rank whose first file failed
    (tmp_path / "step-000002" / "model" / "of-another-rank").write_bytes(b"part")
    train_until(checkpoints, lambda: "step-000002 could not be written (rank 0: no space left" in caplog.text)
    assert latest(storage) == 1
    # Its parts would take the room that the next one needs.
    train_until(checkpoints, lambda: [path.name for path in tmp_path.iterdir()] == ["step-000001"])
    storage.fails = False
    begin(checkpoints, 3)
    train_until(checkpoints, lambda: [path.name for path in tmp_path.iterdir()] == ["step-000003"])
    assert latest(storage) == 3


def test_two_failed_writes_in_a_row_end_the_run_and_leave_the_good_one(tmp_path):
    storage = Slow(open_storage(tmp_path))
    storage.free = True
    checkpoints = open_(storage, keep_last=1)
    begin(checkpoints, 1)
    begin(checkpoints, 2)  # waits for the first
    train_until(checkpoints, lambda: latest(storage) == 2)
    storage.fails = True
    begin(checkpoints, 3)
    begin(checkpoints, 4)
    (tmp_path / "step-000004" / "model").mkdir(parents=True)
    (tmp_path / "step-000004" / "model" / "of-another-rank").write_bytes(b"part")
    with pytest.raises(RunError, match=r"step-000004 could not be written .* nor the checkpoint before"):
        begin(checkpoints, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    assert load(storage)[0].step == 2


def test_a_last_checkpoint_that_fails_is_an_error(tmp_path):
    storage = Slow(open_storage(tmp_path))
    storage.free = storage.fails = True
    with pytest.raises(RunError, match="step-000007, the last checkpoint"):
        save(storage, 7)


def test_a_checkpoint_of_another_run_is_never_replaced(tmp_path):
    storage = open_storage(tmp_path)
    mine, others = open_(storage), open_(storage)
    begin(mine, 1)
    train_until(mine, lambda: latest(storage) == 1)
    with pytest.raises(RunError, match="the last checkpoint"):
        others.save(CheckpointState(step=1, stream={"of": "others"}, config={}), last=True)
    assert load(storage)[0].stream == {}


def test_s3_may_fail_for_a_while_and_large_parts_go_up_in_pieces(endpoint, tmp_path):
    with FaultyProxy(endpoint) as proxy:
        config = StorageConfig(endpoint_url=proxy.url, part_mib=5, backoff_base_s=0.01)
        storage = open_storage(f"s3://bucket/{tmp_path.name}", config)
        groups = {"model": {"w": torch.randn(1500, 1024)}}
        proxy.answer(503, "SlowDown", match="^PUT", times=2)
        proxy.lose_answer(match="^PUT .*state.json")
        save(storage, 1, groups)
        assert len(proxy.lines("partNumber=")) >= 2
        assert torch.equal(load(storage, groups)[1]["model"]["w"], groups["model"]["w"])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({**MODEL, "b": torch.ones(1)}, "b is missing"),
        ({**MODEL, "a.bias": torch.ones(2)}, "a.bias is bfloat16 instead of float32"),
        ({"a.weight": torch.ones(2, 3), "frozen": MODEL["frozen"]}, "a.bias is not part of it"),
        ({**MODEL, "a.weight": torch.ones(4, 3)}, r"a.weight has shape \[2, 3\] instead of \[4, 3\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_copied(tmp_path, model, words):
    storage = open_storage(tmp_path)
    save(storage, 1)
    targets = empty_like({"model": model, "optimizer": OPTIMIZER})
    checkpoints = open_(storage, targets)
    with pytest.raises(UsageError, match=words):
        checkpoints.load_(checkpoints.latest())
    assert all(not tensor.any() for tensor in targets["model"].values())


def test_a_group_that_was_not_saved_is_named(tmp_path):
    storage = open_storage(tmp_path)
    save(storage, 1)
    with pytest.raises(UsageError, match="holds no ema, only model, optimizer"):
        load(storage, {**GROUPS, "ema": MODEL})


@pytest.mark.parametrize("size", [0, 4, 100, -1, 1 << 30])
def test_a_file_of_another_size_is_called_damaged(tmp_path, size):
    storage = open_storage(tmp_path)
    save(storage, 1)
    path = tmp_path / "step-000001" / "model" / PART
    with path.open("rb+") as file:
        file.truncate(size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(
        RunError, match=r"model/00000-of-00001.safetensors is damaged .* remove .*step-000001"
    ):
        load(storage)


def test_a_missing_part_is_named(tmp_path):
    storage = open_storage(tmp_path)
    save(storage, 1)
    (tmp_path / "step-000001" / "optimizer" / PART).unlink()
    with pytest.raises(RunError, match=r"optimizer/00000-of-00001.safetensors is damaged \(it is missing\)"):
        load(storage)


def rewrite(path, change):
    """Changes the header of a file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def test_a_state_that_lacks_a_field_is_called_damaged_by_that_field(tmp_path):
    storage = open_storage(tmp_path)
    save(storage, 1)
    (tmp_path / "step-000001" / "state.json").write_text("{}")
    with pytest.raises(RunError, match=r"state.json is damaged \(step: Field required\)"):
        load(storage)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["a.weight"].update(data_offsets=[0, 1 << 60]),
        lambda header: header["a.weight"].update(data_offsets=[24, 0]),
        lambda header: header["a.weight"].update(shape=[1 << 40, 1 << 40]),
        lambda header: header["a.weight"].update(dtype="PICKLE"),
        lambda header: header["a.weight"].update(more=1),
        lambda header: header.update({"b": header.pop("a.weight") | {"shape": [-2, -3]}}),
        lambda header: header["__metadata__"].update(DCP_SHARDING_INFO='{"a.weight":{"saved_offsets":[1,0]}}'),
        lambda header: header["__metadata__"].update(DCP_SHARDING_INFO='{"a.weight":{"saved_offsets":[0]}}'),
        lambda header: header["__metadata__"].update(DCP_SHARDING_INFO="[" * 5000),
        lambda header: header["__metadata__"].update(reelweave_shapes='{"a.weight":[4,3]}'),
        lambda header: header["__metadata__"].update(padding="x" * HEADER_BYTES_PER_TENSOR * 5),
        lambda header: header.clear(),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_ours_is_called_damaged(tmp_path, change):
    storage = open_storage(tmp_path)
    save(storage, 1)
    rewrite(tmp_path / "step-000001" / "model" / PART, change)
    with pytest.raises(RunError, match="is damaged"):
        load(storage)


@pytest.mark.parametrize(
    "text", ["", "{", '{"step": -1}', '{"step": 1, "stream": {}, "config": {}, "writers": 0}']
)
def test_a_broken_state_is_called_damaged(tmp_path, text):
    storage = open_storage(tmp_path)
    save(storage, 1)
    (tmp_path / "step-000001" / "state.json").write_text(text)
    with pytest.raises(RunError, match="damaged"):
        load(storage)


def test_another_format_version_is_refused(tmp_path):
    storage = open_storage(tmp_path)
    save(storage, 1)
    path = tmp_path / "step-000001" / "state.json"
    values = json.loads(path.read_text()) | {"format_version": 8}
    del values["sha256"]
    path.write_text(json.dumps(values))
    with pytest.raises(RunError, match="version 8, this program reads 1, 2, 3, 4, 5, 6, 7"):
        load(storage)


def test_a_checkpoint_of_version_1_is_read(tmp_path):
    folder = tmp_path / "step-000005"
    folder.mkdir()
    groups = {"model": {"a.weight": torch.randn(2, 3)}, "optimizer": OPTIMIZER}
    for group, tensors in groups.items():
        save_file(tensors, folder / f"{group}.safetensors")
    state = {"format_version": 1, "step": 5, "stream": {"position": 5}, "config": {"seed": 1}}
    (folder / "state.json").write_text(json.dumps(state))
    found, targets = load(open_storage(tmp_path), groups)
    assert (found.step, found.stream) == (5, {"position": 5})
    assert torch.equal(targets["model"]["a.weight"], groups["model"]["a.weight"])
    assert targets["optimizer"]["a.weight.step"] == 3


class Allocations(TorchDispatchMode):
    """Counts the tensors that are allocated without values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket is torch.ops.aten.empty
        return function(*args, **(kwargs or {}))


def test_staging_memory_is_allocated_before_the_first_save(tmp_path):
    checkpoints = open_(open_storage(tmp_path))
    with Allocations() as before:
        checkpoints.reserve()
    with Allocations() as within:
        checkpoints.save(CheckpointState(step=1, stream={}, config={}))
    assert before.count == sum(tensor.numel() > 0 for group in GROUPS.values() for tensor in group.values())
    assert within.count == 0
