"""The error of a strict group, and what the stack says: the line that calls, and whether a training step runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
STEPS = {("train/loop/steps.py", "_train_step")}
"""Functions in which a training step runs."""
BETWEEN = {("train/cascade/training/cascades.py", "_regroup")}
"""Functions that a step calls before its first message, on all ranks: cascades make groups around a slow rank, once."""
_OBJECTS = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
}
_inside = False


class Refused(Exception):
    """A call that NCCL refuses, hangs on, or whose result is wrong on a GPU."""


class Gone(RuntimeError):
    """A rank of the call has ended or left; like every backend's error, to be told apart by who hears it."""


@contextmanager
def in_step() -> Iterator[None]:
    """Have the calls inside count as those of a training step."""
    global _inside
    before, _inside = _inside, True
    try:
        yield
    finally:
        _inside = before


def step_runs() -> bool:
    """Return whether a training step has called the function that runs."""
    functions = {(_file(frame), frame.f_code.co_name) for frame in _frames()}
    return (_inside or bool(functions & STEPS)) and not functions & BETWEEN


def of_objects() -> str | None:
    """Return the function of torch that sends Python objects by the call that runs; None if none does."""
    for frame in _frames():
        if frame.f_code.co_name in _OBJECTS and frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return frame.f_code.co_name
    return None


def call_site() -> str:
    """Return file, line and function of this repository that run now."""
    for frame in _frames():
        if file := _file(frame):
            return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
    return "a line outside of this repository"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _file(frame: FrameType) -> str:
    return _own_file(frame.f_code.co_filename)


@cache
def _own_file(name: str) -> str:
    """Return a file's path inside of this repository; "" for others, and for those of this folder."""
    path = Path(name).resolve()
    own = path.is_relative_to(ROOT) and not path.is_relative_to(_HERE) and ".venv" not in path.parts
    return str(path.relative_to(ROOT)) if own else ""
