"""Notes of a curation run in its ledger, for the report; foreign notes are ignored."""

from typing import TypeVar

from pydantic import BaseModel, Field, FiniteFloat

from reelweave.loader.base.strict_json import parse
from reelweave.loader.dataset import Dataset

_MAX_BYTES = 16 << 20


class PlanNote(BaseModel, frozen=True):
    """Speed of a pass, and the workers that its stages kept."""

    of: str
    workers: dict[str, int]
    rows_per_s: FiniteFloat
    busy: dict[str, FiniteFloat] = {}


class RunNote(BaseModel, frozen=True):
    """Times and plans of the last run."""

    wall_s: FiniteFloat | None = None
    worker_seconds: dict[str, FiniteFloat] = {}
    plans: list[PlanNote] = []
    notes: list[str] = []
    operation_s: dict[str, FiniteFloat] = {}
    film_s: FiniteFloat = 0.0


class StatusNote(BaseModel, frozen=True):
    """Slowest sources and their seconds."""

    slowest: list[tuple[str, FiniteFloat]] = []


class EstimateNote(BaseModel, frozen=True):
    """An estimate and its interval."""

    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


class ForecastNote(BaseModel, frozen=True):
    """Forecast of a run, from its note."""

    clips: EstimateNote | None = Field(default=None)
    clip_gb: EstimateNote | None = Field(default=None)
    clip_hours: EstimateNote | None = Field(default=None)
    clip_mbps: EstimateNote | None = Field(default=None)


Note = TypeVar("Note", bound=BaseModel)


def read_note(dataset: Dataset, name: str, kind: type[Note]) -> Note:
    """Return a note, an empty one if there is none or something else in its place."""
    path = f".ledger/{name}.json"
    info = dataset.storage.stat(path)
    if info is None or info.size > _MAX_BYTES:
        return kind()
    try:
        return kind.model_validate(parse(dataset.storage.read(path, 0, _MAX_BYTES)))
    except ValueError:
        return kind()
