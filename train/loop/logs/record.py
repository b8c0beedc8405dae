"""Records of a run: what the loop writes as lines of JSON, and what readers of them show."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

METRICS, LOSSES, BAD_SAMPLES = "metrics.jsonl", "losses.jsonl", "bad_samples.jsonl"
RECONSTRUCTION, VALIDATION, RANKS = "reconstruction.jsonl", "validation.jsonl", "ranks.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
SCORES = "scores.jsonl"
"""Written by `reelweave evaluate`."""

Pictures = Mapping[str, NDArray[np.uint8]]
"""RGB pictures [height, width, 3] by name."""


@dataclass(frozen=True)
class Record:
    """One line of a run's records.

    Attributes:
        FILE: name of the file in the run's folder.
        step: number of finished optimizer steps.
    """

    FILE: ClassVar[str]

    step: int

    def line(self, run: str) -> str:  # noqa: ARG002 - `StepMetrics` names its run
        """Return the line of JSON of a run with this id."""
        return json.dumps(self.values(), allow_nan=False) + "\n"

    def values(self) -> dict[str, Any]:
        """Return the JSON values by name."""
        return asdict(self)

    def scalars(self) -> dict[str, float]:
        """Return the numbers to show; a slash in a name groups them."""
        return {}

    def pictures(self) -> Pictures:
        """Return the pictures to show."""
        return {}


@dataclass(frozen=True)
class CheckpointRecord(Record):
    """A checkpoint that became visible.

    Attributes:
        at: time in seconds since 1970.
    """

    FILE = CHECKPOINTS

    at: float


@dataclass(frozen=True)
class ReconstructionRecord(Record):
    """Held-out clips behind a tokenizer.

    Attributes:
        metrics: values by name of each metric; single numbers are scalars.
    """

    FILE = RECONSTRUCTION

    metrics: Mapping[str, Mapping[str, Any]]

    def values(self) -> dict[str, Any]:
        return {"step": self.step, **self.metrics}

    def scalars(self) -> dict[str, float]:
        return {
            f"{metric}/{name}": value
            for metric, values in self.metrics.items()
            for name, value in values.items()
            if isinstance(value, float)
        }


@dataclass(frozen=True)
class ValidationRecord(Record):
    """Results of one round of validation videos.

    Attributes:
        results: JSON values by name; single numbers are scalars.
        sheets: pictures of the videos.
    """

    FILE = VALIDATION

    results: Mapping[str, Any]
    sheets: Pictures = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        return {"step": self.step, **self.results}

    def scalars(self) -> dict[str, float]:
        return {f"validation/{name}": x for name, x in self.results.items() if isinstance(x, float)}

    def pictures(self) -> Pictures:
        return {f"validation/{name}": picture for name, picture in self.sheets.items()}
