"""Captions: written ones of a source first, then a model's; and its variants, one stage each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from reelweave.curate.caption import CaptionConfig, Captioner
from reelweave.curate.caption.captioner import CaptionInput
from reelweave.curate.caption.sidecars import UnusedSidecar
from reelweave.curate.caption.types import CAPTIONS, NO_CAPTION, VARIANTS, Caption
from reelweave.curate.caption.written import find_written, with_unused
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.hf_model import NamedModel
from reelweave.curate.models.hub import local_folder
from reelweave.curate.run.stages.clip_evidence import NOTHING_SHOWN, ClipEvidence
from reelweave.curate.run.stages.clip_stages import ClipStage, ReadClip, caption_identity, clip_identity
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.source_pass.tasks import ClipTask
from reelweave.loader.errors import ObjectError, UsageError
from reelweave.loader.storage import StorageConfig, open_object

_CALL_OF_FLIGHTS = 4
"""Clips of one call of a server, for each question in flight (docs/benchmarks/captions.md)."""
REWRITE = "rewrite_model"
"""End of the key of the model that rewrites."""


class CaptionStage(ModelStage):
    """The stage of captions; with a model it waits until duplicates are known.

    Args:
        config: Configuration of captions.
        storage: Where sidecars are read.
        cpus: Processors of a worker with a model.
        gpus: Share of a GPU of such a worker.
        camera: Name of the stage before it that measures the movement of the camera; "" without one.
    """

    name = CAPTIONS

    def __init__(
        self, config: CaptionConfig, storage: StorageConfig, cpus: float, gpus: float, camera: str = ""
    ) -> None:
        self._config, self._storage, self.configs = config, storage, (config.of_caption(),)
        self._camera = camera if config.camera_terms else ""
        self.has_model = self.after_dedup = config.model is not None
        # Behind an endpoint models have names and no files.
        self.served = config.backend == "endpoint"
        # The last answers of a call leave a server idle, so a call holds more than are in flight.
        self.batch_clips = config.batch_clips * (_CALL_OF_FLIGHTS if self.served else 1)
        self.cpus, self.gpus = cpus, 0.0 if self.served else gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        if self.served or self._config.model is None:
            return {}
        return {key: local_folder(name) or name for key, name in self._names().items()}

    def check_model_paths(self) -> None:
        if self.has_model and self._config.camera_terms and not self._camera:
            raise UsageError(
                "captions.camera_terms needs the measured movement of the camera: set"
                " stages.camera.use=reelweave.curate.models.camera:CameraMotion, without after_dedup"
            )
        if not self.served:
            for key, name in self._names().items():
                NamedModel(key, name).check_folder()

    def check(self) -> dict[str, str]:
        if self.has_model:
            Captioner(self._config).check()
        return {}

    def _names(self) -> dict[str, str]:
        """Return the name of each configured model by its key."""
        names = {"captions.model": self._config.model, f"captions.{REWRITE}": self._config.rewrite_model}
        return {key: name for key, name in names.items() if name is not None and self.has_model}

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        fingerprint, earlier = self.fingerprints(digests)
        return ClipStage(
            self.name,
            fingerprint,
            ledger,
            self.clips,
            self.evidence.identify(caption_identity),
            go_on,
            self.after_dedup,
            self.clips.prepare,
            earlier=earlier,
        )

    @cached_property
    def clips(self) -> "CaptionClips":
        """Function of this stage and of those of its variants, which share one model."""
        captioner = Captioner(self._config) if self.has_model else None
        return CaptionClips(self._config, self._storage, captioner, self.evidence)

    @cached_property
    def evidence(self) -> ClipEvidence:
        """Evidence that questions give the model beside the pictures."""
        return ClipEvidence(self._config.evidence, self._camera) if self.has_model else NOTHING_SHOWN

    def variants(self) -> "list[VariantStage]":
        """Return a stage for each variant."""
        return (
            [VariantStage(self, self._config, name) for name in self._config.variants]
            if self.has_model
            else []
        )


class VariantStage(ModelStage):
    """The stage of one variant of the captions, written by the model of `CaptionStage`.

    Args:
        captions: Stage of the captions.
        config: Configuration of captions.
        variant: Name of the variant.
    """

    after_dedup = True

    def __init__(self, captions: CaptionStage, config: CaptionConfig, variant: str) -> None:
        self._config, self._captions, self._variant = config.of_variant(variant), captions, variant
        self.name, self.configs = f"{VARIANTS}{variant}", (self._config,)
        self.served, self.batch_clips = captions.served, captions.batch_clips
        self.cpus, self.gpus = captions.cpus, captions.gpus

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        rewrites = self._config.rewrite_model is not None
        return {
            key: model
            for key, model in self._captions.models.items()
            if rewrites or not key.endswith(REWRITE)
        }

    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        fingerprint, earlier = self.fingerprints(digests)
        clips = self._captions.clips
        prepare = partial(clips.prepare_variant, self._variant)
        identity = self._captions.evidence.identify(clip_identity)
        return ClipStage(
            self.name, fingerprint, ledger, clips, identity, go_on, True, prepare, earlier=earlier
        )


@dataclass
class CaptionClips:
    """Function from clips to captions, written ones of their source first and then a model's, and to variants."""

    config: CaptionConfig
    storage: StorageConfig
    captioner: Captioner | None
    evidence: ClipEvidence = NOTHING_SHOWN
    _latest: tuple[tuple[object, ...], Caption | Fault] | None = field(default=None, init=False, repr=False)
    _view: tuple[str, CaptionInput | Fault] | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_view": None}

    def prepare(self, task: ClipTask, read: ReadClip) -> CaptionInput | Caption | Fault:
        """Return the caption of a clip that has a written one, and the model's input for another."""
        written = None if self.captioner and self.config.overwrite_written else self._find_written(task)
        if isinstance(written, Fault) or (written and written.text):
            return written
        if self.captioner is None:
            return written or NO_CAPTION
        view = self._look(self.captioner, task, read)
        unused = UnusedSidecar.parse(written.source) if written else None
        return replace(view, unused=unused) if isinstance(view, CaptionInput) else view

    def prepare_variant(self, variant: str, task: ClipTask, read: ReadClip) -> CaptionInput | Fault:
        """Return the model's input for a variant, whether or not the clip has a written caption."""
        assert self.captioner is not None, "see `CaptionStage.variants`"
        view = self._look(self.captioner, task, read)
        return replace(view, variant=variant) if isinstance(view, CaptionInput) else view

    def _look(self, captioner: Captioner, task: ClipTask, read: ReadClip) -> CaptionInput | Fault:
        """Return the pictures of a clip, which are decoded once for its caption and all variants."""
        clip_id = task.record.clip_id
        if (latest := self._view) is None or latest[0] != clip_id:
            self._view = latest = (clip_id, captioner.prepare(read(task)))
        view = latest[1]
        return replace(view, evidence=self.evidence.of_task(task)) if isinstance(view, CaptionInput) else view

    def __call__(
        self, tasks: Sequence[ClipTask], prepared: Callable[[ClipTask], CaptionInput | Caption | Fault]
    ) -> list[ClipResult]:
        """Return a result for each clip."""
        inputs = [prepared(task) for task in tasks]
        caption_inputs = [stage_input for stage_input in inputs if isinstance(stage_input, CaptionInput)]
        by_model = iter(self.captioner.answer(caption_inputs) if self.captioner else ())
        return [
            _with_unused(next(by_model), stage_input.unused)
            if isinstance(stage_input, CaptionInput)
            else stage_input
            for stage_input in inputs
        ]

    def _find_written(self, task: ClipTask) -> Caption | Fault:
        """Return the written caption of a clip; sidecars are asked for once for adjacent clips of one source."""
        key = (
            task.record.source,
            task.listed_in,
            task.sidecars,
            task.caption,
            task.captions,
            tuple(sorted(task.tags.items())),
        )
        if (latest := self._latest) is None or latest[0] != key:
            self._latest = latest = (key, self._read_written(task))
        return latest[1]

    def _read_written(self, task: ClipTask) -> Caption | Fault:
        storage, name = open_object(task.record.source, self.storage, task.listed_in)
        try:
            return find_written(storage, name, task.caption, task.tags, self.config, task.captions)
        except ObjectError as error:
            return Fault(f"the sidecar with its caption: {error}")


def _with_unused(answer: Caption | Fault, unused: UnusedSidecar | None) -> Caption | Fault:
    return with_unused(answer, unused) if isinstance(answer, Caption) else answer
