"""What checkpoints of a test hold, read without our own reader."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from reelweave.loader.base.strict_json import digest
from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.folder import latest


def newest(out: Path) -> Path:
    """The folder of a run's newest checkpoint."""
    return out / "checkpoints" / f"step-{latest(open_storage(out / 'checkpoints')):06d}"


def tensors(out: Path, group: str = "model") -> dict[str, torch.Tensor]:
    """The tensors of a run's newest checkpoint, none of which was sharded."""
    return stored(newest(out), group)


def stored(folder: Path, group: str = "model") -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, none of which was sharded."""
    parts = sorted((folder / group).iterdir())
    return {name: tensor for part in parts for name, tensor in load_file(part).items()}


def change_state(out: Path, change: Callable[[dict], object]) -> None:
    """Changes the state of a run's newest checkpoint as an earlier version would have written it."""
    path = newest(out) / "state.json"
    values = json.loads(path.read_text())
    del values["sha256"]
    change(values)
    path.write_text(json.dumps({**values, "sha256": digest(values)}))


def metrics(out: Path) -> list[dict]:
    """The lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    """Of the steps."""
    return [line["loss"] for line in metrics(out)]
