"""File names of a checkpoint, and the list of checkpoints in a storage."""

import re

from reelweave.loader.storage import Storage

STATE = "state.json"


def folder_of(step: int) -> str:
    """Return the folder of a step, relative to the checkpoints' storage."""
    return f"step-{step:06d}"


def part(group: str, rank: int, writers: int) -> str:
    """Return the file of a group that one of several ranks writes, relative to the checkpoint's folder."""
    return f"{group}/{rank:05d}-of-{writers:05d}.safetensors"


def steps_of(storage: Storage) -> tuple[set[int], set[int]]:
    """Return the steps of complete and of unfinished checkpoints."""
    all_steps, complete = set(), set()
    for file in storage.list("step-"):
        if match := re.fullmatch(r"step-(\d{6,18})/(.+)", file.path):
            all_steps.add(int(match[1]))
            if match[2] == STATE:
                complete.add(int(match[1]))
    return complete, all_steps - complete


def folder_before(storage: Storage, folder: str) -> str | None:
    """Return the last complete checkpoint before a folder's step; None if there is none."""
    if not (match := re.fullmatch(r"step-(\d{6,18})", folder)):
        return None
    earlier = [step for step in steps_of(storage)[0] if step < int(match[1])]
    return folder_of(max(earlier)) if earlier else None
