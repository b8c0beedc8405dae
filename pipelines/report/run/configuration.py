"""Configuration of a run, and what differs between those of several."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.yaml_text import MAX_BYTES, read_yaml
from reelweave.loader.errors import UsageError

FILES = ("train.yaml", "train-vae.yaml")
"""Resolved configurations that commands leave in a run's folder."""

_MOST_LIST = 200  # characters of a list shown in one cell


@dataclass(frozen=True)
class Configuration:
    """Resolved configuration of a run.

    Attributes:
        file: name of its file; "" without one.
        problem: why it cannot be read; "" if it can.
        command: command that repeats the run; "" if the file does not say it.
        values: values as JSON text by dotted key.
    """

    file: str
    problem: str
    command: str
    values: dict[str, str]

    def value(self, key: str) -> Any:
        """Return the value of a dotted key; None without it."""
        return json.loads(self.values[key]) if key in self.values else None

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps that the run makes; None if it does not say."""
        return self.whole("train.schedule.total_steps") or self.whole("schedule.total_steps")

    def whole(self, key: str) -> int | None:
        """Return a positive whole number of a dotted key; None without one."""
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True)
class KeyDifference:
    """A key that is not the same in all runs.

    Attributes:
        key: dotted key.
        values: JSON text in each run, in their order; None where a run lacks the key.
    """

    key: str
    values: list[str | None]


def read_configuration(run: Path) -> Configuration:
    """Read the configuration that a run left in its folder."""
    name = next((name for name in FILES if (run / name).is_file()), "")
    if not name:
        return Configuration("", "", "", {})
    try:
        text = read_named(run / name, MAX_BYTES)
        values = read_yaml(text, name).values
    except UsageError as error:
        return Configuration(name, str(error), "", {})
    flattened = flat(values) if isinstance(values, dict) else {}
    return Configuration(name, "", _command(text.decode("utf-8", "replace")), flattened)


def differences(runs: Sequence[Configuration]) -> list[KeyDifference]:
    """Return the keys whose values differ, `out` aside, in the order of the first run."""
    keys = dict.fromkeys(key for run in runs for key in run.values)
    key_differences = [
        KeyDifference(key, [run.values.get(key) for run in runs]) for key in keys if key != "out"
    ]
    return [difference for difference in key_differences if len(set(difference.values)) > 1]


def flat(value: Any, key: str = "") -> dict[str, str]:
    """Return the values of nested mappings as JSON text by dotted key, below ``key``."""
    if isinstance(value, dict) and value:
        return {
            name: text
            for part, inner in value.items()
            for name, text in flat(inner, f"{key}.{part}" if key else str(part)).items()
        }
    text = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, list) and len(text) > _MOST_LIST:
        return {
            name: text
            for index, inner in enumerate(value)
            for name, text in flat(inner, f"{key}.{index}").items()
        }
    return {key: text}


def _command(text: str) -> str:
    """Return the second line of the file, which holds the command that repeats the run."""
    lines = text.split("\n", 2)
    return lines[1][2:] if len(lines) > 2 and lines[1].startswith("# reelweave ") else ""
