"""What a checkpoint knows besides its tensors."""

from typing import Any

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from loader.errors import RunError
from loader.storage import Storage

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)
MAX_STATE_BYTES = 1 << 20
STATE = "state.json"


class CheckpointState(BaseModel, frozen=True, extra="forbid"):
    """The content of ``state.json``; its presence makes a checkpoint one."""

    format_version: int = Field(FORMAT_VERSION, description="of the folder's layout")
    step: NonNegativeInt = Field(description="optimizer steps done")
    stream: dict[str, Any] = Field(description="the stream's state behind the last step")
    config: dict[str, Any] = Field(description="the run's whole configuration")
    # Version 1 had one file for each of these two groups, written by rank 0.
    groups: list[str] = Field(["model", "optimizer"], max_length=16, description="of named tensors")
    writers: PositiveInt = Field(1, le=1 << 16, description="ranks that wrote a part of each group")

    def parts(self, group: str) -> list[str]:
        """The files of a group, relative to the checkpoint's folder."""
        if self.format_version == 1:
            return [f"{group}.safetensors"]
        return [part(group, rank, self.writers) for rank in range(self.writers)]

    def encoded(self) -> bytes:
        """As it is stored.

        Raises:
            RunError: it has grown too large to be read again.
        """
        data = self.model_dump_json(indent=1).encode()
        if len(data) > MAX_STATE_BYTES:
            raise RunError(
                f"the state of step {self.step} takes {len(data)} bytes, more than {MAX_STATE_BYTES}"
            )
        return data


def part(group: str, rank: int, writers: int) -> str:
    """The file of a group that one of so many ranks writes, relative to the checkpoint's folder."""
    return f"{group}/{rank:05d}-of-{writers:05d}.safetensors"


def read_state(storage: Storage, folder: str) -> CheckpointState:
    """The state of a checkpoint.

    Raises:
        RunError: it is damaged or of another format.
    """
    path = f"{folder}/{STATE}"
    uri = storage.uri(path)
    try:
        data = storage.read(path, 0, MAX_STATE_BYTES + 1)
        if len(data) > MAX_STATE_BYTES:
            raise RunError(f"{uri} is larger than {MAX_STATE_BYTES} bytes: not a state of ours")
        state = CheckpointState.model_validate_json(data)
    except FileNotFoundError as error:
        raise RunError(
            f"{uri} cannot be seen from here; all ranks must reach the same checkpoints"
        ) from error
    except ValidationError as error:
        raise RunError(
            f"{uri} is damaged; remove {storage.uri(folder)} to go on from the checkpoint before"
        ) from error
    if state.format_version not in _READ_VERSIONS:
        raise RunError(
            f"{uri} has format version {state.format_version}, this program reads"
            f" {' and '.join(map(str, _READ_VERSIONS))}; resume with the program that wrote it"
        )
    return state
