"""Status that a curation keeps in its dataset while it works."""

from dataclasses import dataclass

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from reelweave.curate.run.runners.progress import Progress
from reelweave.loader.base.strict_json import parse
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage, is_absent

STATUS = ".ledger/status.json"
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Status(Progress):
    """Progress of a curation as its status file tells it.

    Attributes:
        at: time of writing; None if unknown.
        finished: True once the run has published its dataset; None in files of older versions.
    """

    at: AwareDatetime | None = None
    finished: bool | None = None


def read_status(storage: Storage) -> Status | None:
    """Return the status of the last curation into a dataset; None where nothing is known of one.

    Raises:
        RunError: there is neither a curation nor a dataset, or its status file is no such file.
    """
    info = storage.stat(STATUS)
    if info is None:
        if is_absent(storage):
            raise RunError(f"{storage.root} does not exist, so it is no dataset; check the path")
        if storage.stat(MANIFEST) is None:
            raise RunError(
                f"{storage.root} holds neither a dataset nor a curation that has begun: there is no {MANIFEST} and no"
                f" {STATUS} in it"
            )
        return None
    try:
        return TypeAdapter(Status).validate_python(parse(storage.read(STATUS, 0, _MAX_BYTES)))
    except (ValidationError, ValueError):
        raise RunError(
            f"{storage.uri(STATUS)} is no status of a curation; another program wrote it"
        ) from None


def is_finished(storage: Storage, status: Status | None) -> bool:
    """Return whether the dataset is published and no run changes it, as far as its status tells."""
    return (status is None or status.finished is not False) and storage.stat(MANIFEST) is not None
