"""Captioning of clips: pictures of each window, a draft per window, joined, rewritten and checked."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.caption.attempts import AcceptedAnswer, accepted_answers
from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.evidence import NO_EVIDENCE, Evidence
from reelweave.curate.caption.models.backend import Ask, Backend
from reelweave.curate.caption.models.endpoint import EndpointModel, jpeg_of
from reelweave.curate.caption.models.rewrite import TEXT
from reelweave.curate.caption.models.transformers_model import TransformersModel
from reelweave.curate.caption.models.vllm_backend import VllmModel
from reelweave.curate.caption.models.vlm import VISION
from reelweave.curate.caption.no_caption import SENTENCE_ENDS
from reelweave.curate.caption.prompts import STRUCTURED, prompt_text, rewrite_text
from reelweave.curate.caption.provenance import provenance, rewritten_provenance
from reelweave.curate.caption.sidecars import UnusedSidecar
from reelweave.curate.caption.types import CONTRADICTED, Caption
from reelweave.curate.caption.windows import CaptionWindow, pictures_of, windows
from reelweave.curate.frames.source import open_video
from reelweave.curate.models.clip_frames import ClipError, Fault, clip_pictures
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import UsageError

_SENTENCE_END = re.compile(rf"[{SENTENCE_ENDS}](?=\s|$)|[。！？｡]")  # noqa: RUF001


@dataclass(frozen=True)
class CaptionInput:
    """Input of the model for one clip.

    Attributes:
        parts: Windows of the clip.
        rate: Frames per second of the clip.
        pictures: uint8 [n, height, width, 3] RGB.
        times_s: float64 [n]: display times of the pictures.
        shown: Indices of the pictures of each window.
        unused: Sidecar of the source that was not used, if any.
        variant: Name of the variant that is asked for; "" for the caption itself.
        evidence: Evidence that the question holds beside the pictures.
        files: The pictures as JPEG files, where a server gets them; ``pictures`` is empty then.
    """

    parts: list[CaptionWindow]
    rate: float
    pictures: NDArray[np.uint8]
    times_s: NDArray[np.float64]
    shown: list[list[int]]
    unused: UnusedSidecar | None = None
    variant: str = ""
    evidence: Evidence = NO_EVIDENCE
    files: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JoinedCaption:
    """Unfinished caption: text and provenance so far, and the variant that it is."""

    text: str
    provenance: Mapping[str, str]
    variant: str


class Captioner:
    """Function from encoded clips to captions. Models are loaded on first use and not pickled.

    A caption depends on its clip and the configuration alone. On a GPU kernels may round differently for
    other batch sizes.
    """

    def __init__(
        self, config: CaptionConfig, model: Backend | None = None, rewriter: Backend | None = None
    ) -> None:
        """Use the given models instead of the configured ones.

        Raises:
            UsageError: There is no model.
        """
        self._config = config
        self._model = model or _vision_model(config)
        self._rewriter = rewriter or _text_model(config)

    @cached_property
    def _settings(self) -> dict[str, CaptionConfig]:
        """Settings of the caption under "", and those of each variant under its name."""
        variants = {name: self._config.of_variant(name) for name in self._config.variants}
        return {"": self._config.of_caption(), **variants}

    def check(self) -> None:
        """Check before any work that the models are available, without loading weights.

        Raises:
            UsageError: A model is not available, or a prompt is invalid; the message says what to do.
        """
        for variant, config in self._settings.items():
            prompt_text(config.prompt, variant)
        rewrite_text(self._config.rewrite_prompt, "")
        self._model.check()
        if self._rewriter is not None:
            self._rewriter.check()

    def __call__(self, clips: Sequence[bytes]) -> list[Caption | Fault]:
        """Return a caption or a fault for each clip.

        Args:
            clips: Bytes of each clip, with a constant frame rate.
        """
        return self.answer([self.prepare(data) for data in clips])

    def prepare(self, clip: bytes) -> CaptionInput | Fault:
        """Return the model's input for a clip, or the fault; the model is not needed."""
        view = caption_input(clip, self._config)
        if self._config.backend != "endpoint" or isinstance(view, Fault):
            return view
        return replace(view, files=tuple(map(jpeg_of, view.pictures)), pictures=view.pictures[:0])

    def questions(self, view: CaptionInput) -> list[Ask]:
        """Return the questions about a clip, one for each window, as the model is asked at first."""
        return _asks(self._seen_whole(view), self._settings[view.variant])

    def answer(self, views: Sequence[CaptionInput | Fault]) -> list[Caption | Fault]:
        """Return a caption for each input, or the variant that it asks for; and each fault as it is.

        All questions are asked at once, so that the model batches them.
        """
        return self._rewrite_drafts(self._join_drafts(views))

    def _join_drafts(self, views: Sequence[CaptionInput | Fault]) -> list[JoinedCaption | Fault]:
        """Join the answers for all windows of each clip."""
        views = [self._seen_whole(view) if isinstance(view, CaptionInput) else view for view in views]
        asks = [self.questions(view) if isinstance(view, CaptionInput) else [] for view in views]
        accepted = iter(accepted_answers([ask for some in asks for ask in some], self._model, self._config))
        results: list[JoinedCaption | Fault] = []
        for view, some in zip(views, asks, strict=True):
            answers = [next(accepted) for _ in some]
            results.append(self._join(view, answers) if isinstance(view, CaptionInput) else view)
        return results

    def _join(self, view: CaptionInput, answers: Sequence[AcceptedAnswer | Fault]) -> JoinedCaption | Fault:
        good = [answer for answer in answers if isinstance(answer, AcceptedAnswer)]
        for part, answer in zip(view.parts, answers, strict=True):
            if isinstance(answer, Fault):
                where = f" (frames {part.start} to {part.end})" if len(view.parts) > 1 else ""
                return Fault(answer.reason + where)
        text = " ".join(answer.text for answer in good)
        shown_frames = sorted({frame_index for frame_indices in view.shown for frame_index in frame_indices})
        times_s, config = view.times_s[shown_frames].tolist(), self._settings[view.variant]
        fields = provenance(config, self._identities[0], view.parts, times_s, good, view.variant)
        fields |= _evidence(view).provenance()
        if any(answer.contradicts for answer in good):
            fields[CONTRADICTED] = "yes"
        return JoinedCaption(text, fields, view.variant)

    def _seen_whole(self, view: CaptionInput) -> CaptionInput:
        """Return the input of a structured caption as one window, since JSON of several cannot be joined.

        It has as many pictures as a window at most, evenly spaced.
        """
        config = self._settings[view.variant]
        if config.prompt != STRUCTURED or len(view.parts) == 1:
            return view
        count, limit = len(view.times_s), max(map(len, view.shown))
        shown = [index * count // limit for index in range(limit)]
        return replace(view, parts=[CaptionWindow(0, view.parts[-1].end)], shown=[shown])

    def _rewrite_drafts(self, drafted: Sequence[JoinedCaption | Fault]) -> list[Caption | Fault]:
        """Rewrite the drafts by the second model, where there is one."""
        asks = [
            _rewrite_ask(draft.text, self._config)
            for draft in drafted
            if isinstance(draft, JoinedCaption) and self._is_rewritten(draft)
        ]
        rewriter = self._rewriter
        rewritten = iter([] if rewriter is None else accepted_answers(asks, rewriter, self._config))
        results: list[Caption | Fault] = []
        for draft in drafted:
            if isinstance(draft, Fault):
                results.append(draft)
            elif self._is_rewritten(draft):
                results.append(self._with_rewritten(draft, next(rewritten)))
            else:
                results.append(_caption(draft, self._config))
        return results

    def _is_rewritten(self, draft: JoinedCaption) -> bool:
        return self._rewriter is not None and self._settings[draft.variant].prompt != STRUCTURED

    def _with_rewritten(self, draft: JoinedCaption, answer: AcceptedAnswer | Fault) -> Caption | Fault:
        if isinstance(answer, Fault):
            return Fault(f"rewriting failed: {answer.reason}")
        fields = rewritten_provenance(self._config, self._identities[1], answer)
        return _caption(
            replace(draft, text=answer.text, provenance={**draft.provenance, **fields}), self._config
        )

    @cached_property
    def _identities(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Identities of the model and of the one that rewrites."""
        return self._model.identity(), self._rewriter.identity() if self._rewriter is not None else {}


def _vision_model(config: CaptionConfig) -> Backend:
    if config.model is None:
        raise UsageError("captions.model is empty; give the folder of a vision-language model")
    named = NamedModel("captions.model", config.model)
    match config.backend:
        case "endpoint":
            return EndpointModel(config, named)
        case "vllm":
            return VllmModel(config, named)
        case "transformers":
            return TransformersModel(config, named, VISION)


def _text_model(config: CaptionConfig) -> Backend | None:
    if config.rewrite_model is None:
        return None
    named = NamedModel("captions.rewrite_model", config.rewrite_model)
    if config.backend == "endpoint":
        return EndpointModel(config, named)
    return TransformersModel(config, named, TEXT)


def caption_input(data: bytes, config: CaptionConfig) -> CaptionInput | Fault:
    """Decode the model's input for a clip, or return the fault."""
    try:
        pictures, times_s = clip_pictures(data, fps=config.fps, size=config.short_side_px)
    except ClipError as error:
        return Fault(str(error))
    with io.BytesIO(data) as file, open_video(file) as (container, stream):
        frames = stream.frames or sum(1 for packet in container.demux(stream) if packet.size)
        rate = float(stream.average_rate or 0)
    parts = windows(frames, config.window_frames, config.min_window_frames)
    return CaptionInput(parts, rate, pictures, times_s, pictures_of(parts, rate, times_s.tolist()))


def shorten_text(text: str, max_chars: int) -> str:
    """Cut ``text`` to as many whole sentences as fit, or to whole words where no sentence does."""
    if len(text) <= max_chars:
        return text
    head = text[:max_chars]
    ends = [match.end() for match in _SENTENCE_END.finditer(head)]
    return head[: ends[-1]] if ends else text[: max_chars + 1].rsplit(" ", 1)[0][:max_chars]


def _asks(view: CaptionInput, config: CaptionConfig) -> list[Ask]:
    asks, evidence = [], _evidence(view)
    for part, frame_indices in zip(view.parts, view.shown, strict=True):
        start_s = part.start / view.rate
        asks.append(
            Ask(
                prompt=evidence.text + prompt_text(config.prompt, view.variant),
                pictures=view.pictures if view.files else view.pictures[frame_indices],
                files=tuple(view.files[index] for index in frame_indices) if view.files else (),
                times_s=tuple(
                    max(0.0, float(view.times_s[frame_index]) - start_s) for frame_index in frame_indices
                ),
                duration_s=(part.end - part.start) / view.rate,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
                seed=config.seed,
                structured=config.prompt == STRUCTURED,
                terms=evidence.terms,
            )
        )
    return asks


def _evidence(view: CaptionInput) -> Evidence:
    """Return the evidence of a question; of a part of a clip the movement of the whole clip tells nothing."""
    return view.evidence if len(view.parts) == 1 else replace(view.evidence, terms=())


def _rewrite_ask(text: str, config: CaptionConfig) -> Ask:
    prompt = rewrite_text(config.rewrite_prompt, text)
    return Ask(prompt, None, (), 0.0, config.max_new_tokens, config.temperature, config.seed)


def _caption(written: JoinedCaption, config: CaptionConfig) -> Caption:
    source = f"model:{written.provenance['model']}"
    return Caption(shorten_text(written.text, config.max_chars), source, written.provenance)
