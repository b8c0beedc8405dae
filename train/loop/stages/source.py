"""Weights that a new run begins with: those of a checkpoint, or of what `reelweave export` wrote."""

import hashlib
import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.loader.settings import Settings
from reelweave.loader.storage import Storage, StorageConfig, open_object, open_storage
from reelweave.train.checkpoint.directory import Together, locate
from reelweave.train.checkpoint.files import Header, StoredPiece, pieces_in, read_header
from reelweave.train.checkpoint.names import STATE
from reelweave.train.checkpoint.pieces import Tensors
from reelweave.train.checkpoint.reading import copy_, find, shapes_of
from reelweave.train.checkpoint.state import Ancestor, BaseWeights, FrozenPart, read_checkpoint_state
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.checkpoint import StartFromConfig
from reelweave.train.config.lora import LORA_FILE
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.published.folder import DESCRIPTION, MAX_DESCRIPTION_BYTES, part_description

KEY = "train.start_from"
_OURS: TypeAdapter[ModelConfig] = TypeAdapter(Annotated[ModelConfig, Field(discriminator="kind")])
_MOST_TENSORS = 1 << 16
_MOST_FILES = 4096
_CHUNK = 16 << 20  # bytes
_PREFIXES = ("diffusion_pytorch_model", "model")
_WEIGHTS = re.compile(r"(diffusion_pytorch_model(-\d{5}-of-\d{5})?|model)\.safetensors")

StoredShapes = dict[str, tuple[str, tuple[int, ...]]]


class Source(Settings):
    """Facts about stored weights before any is read; the first rank reads them for all.

    Attributes:
        ancestor: name, step and digest for the record of the new run.
        ancestors: what the source itself began with, newest first.
        root: URI of its storage.
        folder: folder of the checkpoint there; "" for files.
        files: files of weights there; none for a checkpoint.
        prefix: what the names in the files lack of those in a run.
        shapes: dtypes and shapes of the weights by their names in a run.
        moments: dtypes and shapes of the optimizer's state; empty without one.
        config: configuration of its run; None for a folder.
        architecture: config.json of a folder; None for others.
        base: weights under its adapters; None: none, or unknown.
        frozen: frozen parts of its run by their key; None: unknown.
        under: checkpoint under its adapters, which are to be merged into its weights; None: nothing is merged.
    """

    ancestor: Ancestor
    ancestors: tuple[Ancestor, ...] = ()
    root: str
    folder: str = ""
    files: tuple[str, ...] = ()
    prefix: str = ""
    shapes: StoredShapes
    moments: StoredShapes = Field({})
    config: TrainConfig | None = None
    architecture: dict[str, Any] | None = None
    base: BaseWeights | None = None
    frozen: dict[str, FrozenPart] | None = None
    under: "Source | None" = None

    @property
    def lineage(self) -> tuple[Ancestor, ...]:
        """Ancestors of a run that begins with this source, newest first."""
        return (self.ancestor, *self.ancestors, *(self.under.lineage if self.under else ()))

    @property
    def adapted(self) -> bool:
        """True if it holds adapters."""
        return any(".lora_" in name for name in self.shapes)

    @property
    def group(self) -> str:
        """Name of the group of weights in its checkpoint."""
        return self.ancestor.weights or "model"

    def read_(
        self, group: str, targets: Tensors, storage: StorageConfig, world: World, together: Together
    ) -> None:
        """Copy tensors of a group, whose shapes are those stored; of sharded ones, this rank's part; a collective.

        Args:
            group: `group`, or ``optimizer``.
            targets: tensors of this rank, by some of the names; values are rounded to their dtypes.
            storage: configuration of the storage.
            world: all ranks.
            together: runs what may fail on a single rank.

        Raises:
            RunError: the source is damaged.
            UsageError: it is gone.
        """
        root = open_storage(self.root, storage)
        if self.folder:
            shapes = self.moments if group == "optimizer" else self.shapes
            state = together(partial(read_checkpoint_state, root, self.folder))
            pieces = locate(root, self.folder, state, group, targets, shapes, world, together)
        else:
            pieces = {
                piece.piece.name: [piece]
                for piece in together(lambda: _pieces(root, self.files, self.prefix))
            }
        together(lambda: copy_(root, group, targets, pieces))


def describe(
    start: StartFromConfig, model: ModelConfig | DiffusersConfig, adapts: bool, storage: StorageConfig
) -> Source:
    """Describe the source of a new run.

    Args:
        start: the source.
        model: model of the run, whose subfolder a pipeline's weights are in.
        adapts: True if the run trains adapters; False: adapters on a run of ours are to be merged.
        storage: configuration of the storage.

    Raises:
        UsageError: nothing is there, or it is of another kind.
        RunError: it is damaged.
    """
    if start.source.endswith(".safetensors"):
        return _of_file(start, storage)
    try:
        root = open_storage(start.source, storage)
    except UsageError as error:
        raise UsageError(f"{KEY}: {error}, or a .safetensors file") from error
    subfolders = ("", f"{model.subfolder}/") if isinstance(model, DiffusersConfig) else ("",)
    for subfolder in subfolders:
        if root.stat(f"{subfolder}{DESCRIPTION}") is not None:
            found = _of_folder(start, open_storage(f"{root.root}/{subfolder}".rstrip("/"), storage))
            _check_class(found, model)
            return found
    if root.stat(LORA_FILE) is not None:
        raise UsageError(
            f"{KEY}: {start.source} holds adapters as diffusers reads them; name the run that they come from, or its"
            " export to a .safetensors file, or begin with them by train.lora.start_from"
        )
    source = _of_checkpoint(start, storage)
    of = source.config.model if source.config else None
    if adapts or not source.adapted or isinstance(model, DiffusersConfig) or isinstance(of, DiffusersConfig):
        return source
    return source.model_copy(update={"under": _under(source, storage)})


def _under(source: Source, storage: StorageConfig) -> Source:
    """Describe the checkpoint that adapters of a model of ours were trained on.

    Raises:
        UsageError: it is gone or another one, or the optimizer's state was asked for.
    """
    uri, base = source.ancestor.name, source.base
    if source.moments:
        raise UsageError(
            f"{KEY}.optimizer kept: {uri} has moments of adapters, which are merged here: take fresh"
        )
    if base is None:
        raise UsageError(
            f"{KEY}: {uri} does not name the checkpoint under its adapters: it is too old to be merged"
        )
    try:
        under = _of_checkpoint(StartFromConfig(source=base.name), storage)
    except UsageError as error:
        reason = str(error).removeprefix(f"{KEY}: ")
        raise UsageError(
            f"{KEY}: the weights under the adapters of {uri} are not to be had, and adapters are merged into them:"
            f" {reason}"
        ) from error
    if under.ancestor.sha256 != base.sha256:
        raise UsageError(
            f"{KEY}: the adapters of {uri} were trained on {base}, and that checkpoint is another one now: put the old"
            " one back"
        )
    return under


def _of_checkpoint(start: StartFromConfig, storage: StorageConfig) -> Source:
    try:
        saved = weights_of(start.source, start.weights, storage)
    except UsageError as error:
        raise UsageError(f"{KEY}: {error}") from error
    state = saved.state
    if start.optimizer == "kept" and saved.group == "ema":
        raise UsageError(
            f"{KEY}.optimizer kept has moments of the last weights, and {saved.uri} has an average of them, which is"
            " taken first: set train.start_from.weights=model"
        )

    def shapes(group: str) -> StoredShapes:
        found = find(saved.storage, saved.folder, state, group, _MOST_TENSORS)
        return {name: (pieces[0].piece.dtype, pieces[0].piece.shape) for name, pieces in found.items()}

    return Source(
        ancestor=Ancestor(
            name=saved.uri,
            step=state.step,
            weights=saved.group,
            optimizer=start.optimizer,
            sha256=hashlib.sha256(saved.storage.read(f"{saved.folder}/{STATE}")).hexdigest(),
        ),
        ancestors=tuple(state.ancestors),
        root=saved.storage.root,
        folder=saved.folder,
        shapes=shapes(saved.group),
        moments=shapes("optimizer") if start.optimizer == "kept" else {},
        config=_config(saved.uri, state.config),
        base=state.base,
        frozen=state.frozen,
    )


def _of_file(start: StartFromConfig, storage: StorageConfig) -> Source:
    root, path = open_object(start.source, storage)
    _refuse_keys_of_checkpoints(start, "a file")
    if root.stat(path) is None:
        raise UsageError(f"{KEY}: {root.uri(path)} does not exist; check the path")
    header = _header(root, path)
    try:
        metadata = json.loads(header.content)["__metadata__"]
        step, values = int(metadata["step"]), json.loads(metadata["config"])
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{KEY}: {root.uri(path)} names no step and configuration of a run, as `reelweave export` without --format"
            " writes; weights by names of other tools are train.model.weights, such adapters train.lora.start_from"
        ) from error
    ancestor = Ancestor(
        name=root.uri(path),
        step=step,
        weights=str(metadata.get("weights", "model")),
        sha256=_digest(root, [path]),
    )
    shapes = _shapes(root, [path], "")
    config = _config(root.uri(path), values)
    return Source(ancestor=ancestor, root=root.root, files=(path,), shapes=shapes, config=config)


def _of_folder(start: StartFromConfig, root: Storage) -> Source:
    _refuse_keys_of_checkpoints(start, "a folder of weights")
    description = root.read(DESCRIPTION, 0, MAX_DESCRIPTION_BYTES + 1)
    try:
        if len(description) > MAX_DESCRIPTION_BYTES:
            raise ValueError("it is too large")
        architecture = json.loads(description)
        if not isinstance(architecture, dict):
            raise ValueError("it is no JSON object")
        if "_class_name" not in architecture:
            architecture = _OURS.validate_python(architecture).model_dump(mode="json")
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{KEY}: {root.uri(DESCRIPTION)} describes no model that this version knows: {first_line(error)}"
        ) from error
    listed = (file.path for prefix in _PREFIXES for file in islice(root.list(prefix), _MOST_FILES))
    files = sorted({path for path in listed if _WEIGHTS.fullmatch(path)})
    if not files:
        raise UsageError(
            f"{KEY}: {root.root} has a {DESCRIPTION} and no weights in safetensors; name a folder that"
            " `reelweave export` wrote"
        )
    prefix = "dit.model." if "_class_name" in architecture else "dit."
    return Source(
        ancestor=Ancestor(name=root.root, sha256=_digest(root, [DESCRIPTION, *files])),
        root=root.root,
        files=tuple(files),
        prefix=prefix,
        shapes=_shapes(root, files, prefix),
        architecture=architecture,
    )


def _check_class(source: Source, model: ModelConfig | DiffusersConfig) -> None:
    """Refuse weights of another class of diffusers, whose tensors may have the same names."""
    stored = (source.architecture or {}).get("_class_name")
    if stored is None or not isinstance(model, DiffusersConfig):
        return
    expected = part_description(model.name, model.subfolder, "train.model.name").get("_class_name")
    if stored != expected:
        raise UsageError(
            f"{KEY}: {source.ancestor.name} is a {stored}, and train.model.name={model.name!r} a {expected}: a run"
            " begins with weights of the same class"
        )


def _refuse_keys_of_checkpoints(start: StartFromConfig, what: str) -> None:
    for key, is_set in (("weights", start.weights is not None), ("optimizer", start.optimizer == "kept")):
        if is_set:
            raise UsageError(
                f"{KEY}.{key} is for a run or its checkpoint, and {start.source} is {what}: leave it out"
            )


def _config(uri: str, values: dict[str, Any]) -> TrainConfig:
    if isinstance(values, dict) and values.get("kind") == "vae":
        raise UsageError(f"{KEY}: {uri} is of `reelweave train-vae`, a tokenizer and no model that denoises")
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(
            f"{KEY}: {uri} describes a model that this version does not know: {first_line(error)}"
        ) from error


def _shapes(root: Storage, files: Sequence[str], prefix: str) -> StoredShapes:
    pieces = [stored.piece for stored in _pieces(root, files, prefix)]
    return shapes_of((piece.name, piece.dtype, piece.shape) for piece in pieces)


def _pieces(root: Storage, files: Sequence[str], prefix: str) -> list[StoredPiece]:
    """Return the tensors of files by their names in a run.

    Raises:
        RunError: a file is damaged.
        UsageError: a tensor is in two files.
    """
    pieces: dict[str, StoredPiece] = {}
    for path in files:
        for stored in _header_pieces(root, path):
            name = f"{prefix}{stored.piece.name}"
            if name in pieces:
                raise UsageError(
                    f"{KEY}: {root.uri(pieces[name].path)} and {root.uri(path)} both hold {stored.piece.name};"
                    " remove the one that does not belong there"
                )
            pieces[name] = stored._replace(piece=stored.piece._replace(name=name))
    return list(pieces.values())


def _header(root: Storage, path: str) -> Header:
    found = root.stat(path)
    if found is None:
        raise UsageError(f"{KEY}: {root.uri(path)} does not exist any more; put it back")
    try:
        return read_header(root, path, found.size, _MOST_TENSORS, None)
    except RunError as error:
        raise _damaged(root, path, error) from error


def _header_pieces(root: Storage, path: str) -> list[StoredPiece]:
    header = _header(root, path)
    try:
        return pieces_in(root, path, "model", header, checked=False)
    except RunError as error:
        raise _damaged(root, path, error) from error


def _damaged(root: Storage, path: str, error: RunError) -> RunError:
    """Return the error of a damaged file that is no part of a checkpoint."""
    reason = first_line(error.__cause__ or error)
    return RunError(
        f"{KEY}: {root.uri(path)} is damaged ({reason}); export it again, or restore it from a copy"
    )


def _digest(root: Storage, files: Sequence[str]) -> str:
    """Return the sha256 of a file, or of the names and digests of several."""
    digests = []
    for path in files:
        digest = hashlib.sha256()
        with root.open(path) as file:
            while data := file.read(_CHUNK):
                digest.update(data)
        digests.append(digest.hexdigest())
    if len(files) == 1:
        return digests[0]
    lines = "".join(f"{path} {digest}\n" for path, digest in zip(files, digests, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()
