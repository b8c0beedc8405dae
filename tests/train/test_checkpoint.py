import json

import pytest
import torch

from loader.errors import RunError, UsageError
from train import checkpoint
from train.checkpoint import CheckpointState

MODEL = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}
OPTIMIZER = {"a.weight.step": torch.tensor(3.0)}


def save(out, step, keep_last=3):
    state = CheckpointState(step=step, stream={"position": step}, config={"seed": 1})
    return checkpoint.save(out, state, MODEL, OPTIMIZER, keep_last)


def empty_like(tensors):
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def test_what_is_saved_is_loaded(tmp_path):
    folder = save(tmp_path, 60)
    model, optimizer = empty_like(MODEL), empty_like(OPTIMIZER)
    checkpoint.load_(folder / checkpoint.MODEL, model)
    checkpoint.load_(folder / checkpoint.OPTIMIZER, optimizer)
    assert folder == tmp_path / "checkpoints" / "step-000060"
    assert all(torch.equal(model[name], MODEL[name]) for name in MODEL)
    assert optimizer["a.weight.step"] == 3
    assert checkpoint.read_state(folder).stream == {"position": 60}


def test_the_latest_has_the_most_steps(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    for step in (2, 1_000_000, 999_999):
        save(tmp_path, step)
    assert checkpoint.latest(tmp_path).name == "step-1000000"


def test_only_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep_last=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-000003", "step-000004"]


def test_a_half_written_checkpoint_is_passed_over_and_cleared_away(tmp_path):
    folder = save(tmp_path, 1)
    half = tmp_path / "checkpoints" / ".step-000002"
    half.mkdir()
    (half / checkpoint.MODEL).write_bytes(b"half")
    assert checkpoint.latest(tmp_path) == folder
    save(tmp_path, 2)
    assert not half.exists()


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({**MODEL, "b": torch.ones(1)}, "b is missing"),
        ({"a.weight": torch.ones(2, 4)}, "a.bias is not part of it"),
        ({**MODEL, "a.weight": torch.ones(4, 3)}, r"a.weight has shape \[2, 3\] instead of \[4, 3\]"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, targets, words):
    with pytest.raises(UsageError, match=words):
        checkpoint.load_(save(tmp_path, 1) / checkpoint.MODEL, empty_like(targets))


def test_a_file_larger_than_the_configuration_needs_is_not_read(tmp_path):
    folder = save(tmp_path, 1)
    with (folder / checkpoint.MODEL).open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="larger"):
        checkpoint.load_(folder / checkpoint.MODEL, empty_like(MODEL))


@pytest.mark.parametrize("size", [0, 4, 100])
def test_a_cut_off_file_is_called_damaged(tmp_path, size):
    path = save(tmp_path, 1) / checkpoint.MODEL
    with path.open("rb+") as file:
        file.truncate(size)
    with pytest.raises(RunError, match="damaged"):
        checkpoint.load_(path, empty_like(MODEL))


@pytest.mark.parametrize("text", ["", "{", '{"step": -1}'])
def test_a_broken_state_is_called_damaged(tmp_path, text):
    folder = save(tmp_path, 1)
    (folder / checkpoint.STATE).write_text(text)
    with pytest.raises(RunError, match="damaged"):
        checkpoint.read_state(folder)


def test_another_format_version_is_refused(tmp_path):
    folder = save(tmp_path, 1)
    state = json.loads((folder / checkpoint.STATE).read_text()) | {"format_version": 2}
    (folder / checkpoint.STATE).write_text(json.dumps(state))
    with pytest.raises(RunError, match="version 2"):
        checkpoint.read_state(folder)


def test_the_first_differing_key_is_named():
    saved, current = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "d": 4}
    assert checkpoint.first_difference(saved, saved) is None
    assert checkpoint.first_difference(saved, current) == "a.c was 2 and is 5 now"
