"""Metadata of a checkpoint."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from reelweave.loader.base.strict_json import SEAL, digest, parse, unseal
from reelweave.loader.errors import RunError
from reelweave.loader.settings import Settings
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.damage import damage_error
from reelweave.train.checkpoint.names import STATE, part

FORMAT_VERSION = 7
_READ_VERSIONS = (1, 2, 3, 4, 5, 6, 7)
_CHECKSUMS_SINCE = 3
MAX_STATE_BYTES = 16 << 20
MOST_ANCESTORS = 64
"""Ancestors that a checkpoint names; those before are dropped."""


class BaseWeights(Settings):
    """Weights under adapters, which a checkpoint of adapters does not hold."""

    name: str = Field(description="model and subfolder, or the checkpoint of a run that they come from")
    sha256: str = Field(
        description="digest of the model's config.json and files, or of that checkpoint's state.json"
    )

    def __str__(self) -> str:
        return f"{self.name} (sha256 {self.sha256[:12]})"


class FrozenPart(Settings):
    """Published files that a run reads and does not train, which a checkpoint does not hold."""

    name: str = Field(description="name on the hub or folder, as the configuration has it")
    files: dict[str, str] = Field(
        max_length=4096,
        description="sha256 of each file by its path below name; of a config.json without authorship",
    )


class Ancestor(Settings):
    """Weights of another run that a run began with (``train.start_from``)."""

    name: str = Field(description="URI of the checkpoint, the file or the folder")
    step: NonNegativeInt | None = Field(None, description="its number of finished steps; null: unknown")
    weights: str | None = Field(None, description="group of its weights, ema or model; null: unknown")
    optimizer: Literal["fresh", "kept"] = Field("fresh", description="whether its moments were kept")
    sha256: str = Field(description="digest of the checkpoint's state.json, or of the files")

    def __str__(self) -> str:
        step = "" if self.step is None else f" of step {self.step}"
        return f"{self.weights or 'the'} weights{step} of {self.name} (sha256 {self.sha256[:12]})"


def ancestry(ancestors: Sequence[Ancestor]) -> str:
    """Return in words what a run began with, and what that began with; "" for a run that began with no other."""
    return ", which ".join(f"began with {ancestor}" for ancestor in ancestors)


class CheckpointState(Settings):
    """Content of ``state.json``, which marks a checkpoint as complete."""

    format_version: int = Field(FORMAT_VERSION, description="version of the folder's layout")
    step: NonNegativeInt = Field(description="number of finished optimizer steps")
    stream: dict[str, Any] = Field(description="the stream's state after the last step")
    config: dict[str, Any] = Field(description="the run's whole configuration")
    plans: dict[str, Any] | None = Field(
        None, description="keys of the stream that its plans follow from; null: unknown, as before version 4"
    )
    base: BaseWeights | None = Field(
        None, description="weights under the adapters; null: no adapters, or unknown, as before version 5"
    )
    frozen: dict[str, FrozenPart] | None = Field(
        None,
        max_length=16,
        description="frozen parts by their key; null: unknown, as before version 6",
    )
    ancestors: list[Ancestor] = Field(
        [],
        max_length=MOST_ANCESTORS,
        description="what the run began with, and what that began with, newest first; empty before version 7",
    )
    # Version 1 had one file for each of these two groups, written by rank 0.
    groups: list[str] = Field(
        ["model", "optimizer"], max_length=16, description="names of the groups of tensors"
    )
    writers: PositiveInt = Field(1, le=1 << 16, description="number of ranks that wrote a part of each group")
    headers: dict[str, str] = Field(
        {}, description="CRC-32 of each part's header, by path; the header holds those of its tensors"
    )

    @property
    def checked(self) -> bool:
        """True if its bytes have checksums; earlier formats have none."""
        return self.format_version >= _CHECKSUMS_SINCE

    def parts(self, group: str) -> list[str]:
        """Return the files of a group, relative to the checkpoint's folder."""
        if self.format_version == 1:
            return [f"{group}.safetensors"]
        return [part(group, rank, self.writers) for rank in range(self.writers)]

    @property
    def all_parts(self) -> list[str]:
        """Files of all groups, relative to the checkpoint's folder."""
        return [path for group in self.groups for path in self.parts(group)]

    def encode(self) -> bytes:
        """Return the stored bytes.

        Raises:
            RunError: they exceed the limit for reading.
        """
        body = json.loads(self.model_dump_json())
        data = json.dumps({**body, SEAL: digest(body)}, indent=1).encode()
        if len(data) > MAX_STATE_BYTES:
            raise RunError(
                f"the state of step {self.step} takes {len(data)} bytes, more than {MAX_STATE_BYTES}"
            )
        return data


def read_checkpoint_state(storage: Storage, folder: str) -> CheckpointState:
    """Read the state of a checkpoint.

    Raises:
        RunError: it is damaged or of another format.
    """
    path = f"{folder}/{STATE}"
    uri = storage.uri(path)
    try:
        # A stranger's file may be of any size.
        data = storage.read(path, 0, MAX_STATE_BYTES + 1)
        if len(data) > MAX_STATE_BYTES:
            raise RunError(f"{uri} is larger than {MAX_STATE_BYTES} bytes: not a state of ours")
        body = parse(data)
        if not isinstance(body, dict):
            raise ValueError("it is no JSON object")
        # Its own checksum first; then the version decides who can read it.
        sealed = unseal(body)
        version = body.get("format_version", FORMAT_VERSION)
        if version not in _READ_VERSIONS:
            raise RunError(
                f"{uri} has format version {version}, this program reads"
                f" {', '.join(map(str, _READ_VERSIONS))}; resume with the program that wrote it"
            )
        state = CheckpointState.model_validate(body)
        if state.checked and (not sealed or set(state.headers) != set(state.all_parts)):
            raise ValueError("it has lost its checksums")
    except FileNotFoundError as error:
        raise RunError(
            f"{uri} cannot be seen from here; all ranks must reach the same checkpoints"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        reason = ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        raise damage_error(storage, path, reason) from error
    except ValueError as error:
        raise damage_error(storage, path, error) from error
    return state
