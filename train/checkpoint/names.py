"""What the files of a checkpoint are called, and which checkpoints a place holds."""

import re

from loader.storage import Storage

STATE = "state.json"


def folder_of(step: int) -> str:
    """Relative to the checkpoints' storage."""
    return f"step-{step:06d}"


def part(group: str, rank: int, writers: int) -> str:
    """The file of a group that one of so many ranks writes, relative to the checkpoint's folder."""
    return f"{group}/{rank:05d}-of-{writers:05d}.safetensors"


def steps_of(storage: Storage) -> tuple[set[int], set[int]]:
    """The steps of the whole checkpoints, and of the unfinished ones."""
    seen, whole = set(), set()
    for found in storage.list("step-"):
        if match := re.fullmatch(r"step-(\d{6,18})/(.+)", found.path):
            seen.add(int(match[1]))
            if match[2] == STATE:
                whole.add(int(match[1]))
    return whole, seen - whole


def folder_before(storage: Storage, folder: str) -> str | None:
    """The whole checkpoint with the most steps below those of a folder; None where there is none."""
    if not (match := re.fullmatch(r"step-(\d{6,18})", folder)):
        return None
    earlier = [step for step in steps_of(storage)[0] if step < int(match[1])]
    return folder_of(max(earlier)) if earlier else None
