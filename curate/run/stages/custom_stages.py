"""Stages of users among the stages over clips: what a worker calls, and what its results depend on."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.types import CAPTIONS
from reelweave.curate.config import config_digest
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipEmbedding, ClipResult, ClipScores, PackedArray
from reelweave.curate.models.clip_frames import ClipError, Fault
from reelweave.curate.models.custom.code import StageCode
from reelweave.curate.models.custom.configured import stage_class
from reelweave.curate.models.custom.types import Clip, CustomStage, Embedded, StageConfig
from reelweave.curate.models.device import one_thread, pick_device
from reelweave.curate.models.embed import pool_frames
from reelweave.curate.models.hub import local_folder
from reelweave.curate.run.clip_verdict import caption_of
from reelweave.curate.run.stages.clip_stages import ClipStage, Identity, ReadClip, clip_identity
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import column
from reelweave.curate.source_pass.tasks import ClipTask
from reelweave.loader.errors import RunError, UsageError, first_line


def stage_name(name: str) -> str:
    """Return the name of a user's stage in the ledger and the accounting, which no stage of ours has."""
    return f"stages.{name}"


class CustomModelStage(ModelStage):
    """Stage over clips from a user's class.

    Args:
        name: Name in the configuration.
        config: Its configuration.
        captions_late: Whether captions come after deduplication.
        makes_vectors: Whether its vectors are the video embedding.
    """

    def __init__(self, name: str, config: StageConfig, captions_late: bool, makes_vectors: bool) -> None:
        self.name, self.makes_vectors = stage_name(name), makes_vectors
        self._config, self.configs = config, (config,)
        self._class = stage_class(config.code)
        self.scores = tuple(self._class.scores)
        self.after_dedup = config.after_dedup or (self._class.reads_caption and captions_late)
        self.prepares = self._class.prepare.__func__ is not CustomStage.prepare.__func__  # type: ignore[attr-defined]
        self.batch_clips, self.cpus, self.gpus = config.batch_clips, config.cpus, config.gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        paths = {
            f"{self.name}.{index}": (model, Path(model).expanduser())
            for index, model in enumerate(self._class.models(self._config))
        }
        return {
            key: path if path.is_file() else local_folder(model) or model
            for key, (model, path) in paths.items()
        }

    def fingerprints(self, digests: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        code = {"code": self._config.code.digest}
        return config_digest(self._config, models=self.digests_among(digests) | code), ()

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        config, reads = self._config, self._class.reads_caption
        values = config.model_dump(mode="json")
        clips = CustomClips(config.code, values, config.cpus, config.gpus > 0, reads, self.prepares)
        return ClipStage(
            self.name,
            self.fingerprints(digests)[0],
            ledger,
            clips,
            captioned_identity if reads else clip_identity,
            go_on,
            after_dedup=self.after_dedup,
            prepare=clips.prepare,
        )


def stage_facts(config: StageConfig) -> dict[str, object]:
    """Return what a manifest says of a user's stage: its code, and what each of its scores means."""
    version = {"version": config.code.version} if config.code.version else {}
    return {"code": config.code.digest, **version, "scores": dict(stage_class(config.code).scores)}


class CustomClips:
    """Function from clips to the results of a user's stage, which is loaded on first use and not pickled.

    Whatever its code raises for a clip is that clip's fault. What it raises while it loads ends the run.

    Args:
        code: Code of the stage.
        values: Its configuration; the model is known to the code alone.
        cpus: Processors of a worker, and so threads of PyTorch.
        may_use_gpu: Whether a worker has a GPU where there are any.
        reads_caption: Whether it receives captions.
        prepares: Whether it makes the model's inputs by `CustomStage.prepare`.
    """

    def __init__(
        self,
        code: StageCode,
        values: Mapping[str, Any],
        cpus: float,
        may_use_gpu: bool,
        reads_caption: bool,
        prepares: bool,
    ) -> None:
        self._code, self._values, self._cpus = code, values, cpus
        self._may_use_gpu, self._reads_caption = may_use_gpu, reads_caption
        self.prepares = prepares
        self._config: StageConfig | None = None
        self._stage: CustomStage | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_config": None, "_stage": None}

    def prepare(self, task: ClipTask, read: ReadClip) -> Clip | Fault:
        """Return a clip as the stage receives it."""
        clip = self._clip(task, read(task))
        if not self.prepares:
            return clip
        stage_type, config = self._configure()
        try:
            with _threads(1):
                return replace(clip, data=b"", prepared=stage_type.prepare(config, clip))
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            return _fault(error)

    def __call__(
        self, tasks: Sequence[ClipTask], prepared: Callable[[ClipTask], Clip | Fault]
    ) -> list[ClipResult]:
        """Return a result for each clip."""
        inputs = [prepared(task) for task in tasks]
        clips = [stage_input for stage_input in inputs if isinstance(stage_input, Clip)]
        results = iter(self._process_clips(clips) if clips else ())
        return [next(results) if isinstance(stage_input, Clip) else stage_input for stage_input in inputs]

    def _process_clips(self, clips: Sequence[Clip]) -> list[ClipResult]:
        with _threads(self._cpus):
            stage = self._load_stage()
            try:
                return self._results(stage, clips)
            except Exception:  # noqa: BLE001 - a user's code may raise anything
                return [self._alone(stage, clip) for clip in clips]

    def _clip(self, task: ClipTask, data: bytes) -> Clip:
        """Return a clip with what the identity of its result covers, so that no result outlives its reasons."""
        record = task.record
        text = caption_of(task.found).text if self._reads_caption else ""
        media = (record.frames, record.fps, record.height, record.width, record.duration_s, record.audio)
        return Clip(data, record.key or "", *media, caption=text)

    def _load_stage(self) -> CustomStage:
        if self._stage is None:
            stage_type, config = self._configure()
            with self._loading():
                self._stage = stage_type(config, pick_device("auto") if self._may_use_gpu else "cpu")
        return self._stage

    def _configure(self) -> tuple[type[CustomStage], StageConfig]:
        with self._loading():
            stage_type = stage_class(self._code)
            if self._config is None:
                self._config = stage_type.Config.model_validate(self._values)
            return stage_type, self._config

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Say of what cannot be loaded which stage it is; it ends the run."""
        try:
            yield
        except (UsageError, RunError) as error:
            raise RunError(str(error)) from error
        except Exception as error:
            raise RunError(f"stages.{self._code.stage} cannot be loaded: {_error_message(error)}") from error

    def _alone(self, stage: CustomStage, clip: Clip) -> ClipResult:
        try:
            return self._results(stage, [clip])[0]
        except Exception as error:  # noqa: BLE001 - as above
            return _fault(error)

    def _results(self, stage: CustomStage, clips: Sequence[Clip]) -> list[ClipResult]:
        outputs = list(stage(clips))
        if len(outputs) != len(clips):
            raise ValueError(f"{len(outputs)} results for {len(clips)} clips")
        return [self._result(stage, output) for output in outputs]

    def _result(self, stage: CustomStage, output: object) -> ClipResult:
        if isinstance(output, Fault):
            return output
        # What a user's code returns is checked: known names, finite numbers.
        named_scores = output.scores if isinstance(output, Embedded) else output
        if not isinstance(named_scores, Mapping):
            raise TypeError(
                f"a result is a mapping of scores, Embedded or Fault, and no {type(output).__name__}"
            )
        scores = {str(name): float(value) for name, value in named_scores.items()}
        for name, value in scores.items():
            if name not in stage.scores:
                raise ValueError(f"the score {name} is not among the `scores` that the stage names")
            if not math.isfinite(value):
                raise ValueError(f"the score {name} is {value}")
        # Vectors come of stages that say so, and are stored at unit length.
        if isinstance(output, Embedded) != stage.embeds:
            raise TypeError(
                "a stage with `embeds = True` gives Embedded for each clip, and no other stage does"
            )
        if not isinstance(output, Embedded):
            return ClipScores(scores)
        unit = pool_frames(np.asarray(output.vector, np.float32).reshape(1, -1))
        if unit is None:
            raise ValueError("the vector is not finite, or zero")
        return ClipEmbedding(PackedArray.of(unit.astype(np.float16)), scores or None)


@contextmanager
def _threads(cpus: float) -> Iterator[None]:
    """Limit the threads of numpy's products to one, and those of PyTorch, where it is loaded, to the processors."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(max(1, int(cpus)))
    try:
        with one_thread():
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


def _fault(error: Exception) -> Fault:
    return Fault(str(error) if isinstance(error, ClipError) else _error_message(error))


def _error_message(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _captioned_id(task: ClipTask) -> str:
    return f"{task.record.clip_id}-{digest(caption_of(task.found).text)}"


def _captioned_ids(clips: pa.Table, results: Mapping[str, pa.Table], _closed: ClosedSources) -> pa.Array:
    texts = pc.fill_null(column(results[CAPTIONS], "text"), "").dictionary_encode()
    ids = pa.array([digest(text) for text in texts.dictionary.to_pylist()], pa.string()).take(texts.indices)
    return pc.binary_join_element_wise(clip_ids(clips), ids, "-")


captioned_identity = Identity(_captioned_id, _captioned_ids)
"""Identity of a result that depends on the clip's bytes and on its caption."""
