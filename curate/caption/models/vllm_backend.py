"""Vision-language model through vLLM, which batches by itself; an optional dependency."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.models.backend import TOP_P, Ask, Draft, draft
from reelweave.curate.caption.models.chat import chat_text, takes_video, video
from reelweave.curate.caption.models.vlm import load_processor
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import UsageError, first_line


class VllmModel:
    """Text generation by vLLM; a `reelweave.curate.caption.models.backend.Backend`."""

    def __init__(self, config: CaptionConfig, named: NamedModel) -> None:
        self._config = config
        self._named = named
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def check(self) -> None:
        """Check that vLLM is installed and the model available; no weights are loaded.

        Raises:
            UsageError: One of them is missing; the message says what to do.
        """
        _check_installed()
        self._named.check_files()
        self._processor()

    def identity(self) -> Mapping[str, str]:
        """Return name, sha256 of configuration and weights, and the version of vLLM."""
        return self._named.identity("vllm")

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """Return an answer or a fault for each question."""
        model, processor = self._model()
        return _answers(model, [_request(processor, ask) for ask in asks], [_sampling(ask) for ask in asks])

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            _check_installed()
            from vllm import LLM  # type: ignore[import-not-found, unused-ignore]

            folder = str(self._named.folder())
            processor = self._processor()
            config = self._config
            model = self._named.load_guarded(
                lambda: LLM(
                    model=folder,
                    trust_remote_code=False,
                    dtype=config.dtype,
                    seed=config.seed,
                    gpu_memory_utilization=config.vllm_gpu_share,
                    max_model_len=config.vllm_max_tokens,
                    limit_mm_per_prompt={"video": 1},
                )
            )
            self._loaded = (model, processor)
        return self._loaded

    def _processor(self) -> Any:
        processor = load_processor(self._named)
        if not takes_video(processor):
            raise UsageError(
                f"{self._named.key}={self._named.name} takes single images only;"
                " set captions.backend=transformers for it"
            )
        return processor


def _check_installed() -> None:
    if find_spec("vllm") is None:
        raise UsageError(
            "captions.backend=vllm needs vLLM, which is not installed; install it (pip install vllm) on a machine"
            " with a GPU, or set captions.backend=transformers"
        )


def _request(processor: Any, ask: Ask) -> dict[str, Any]:
    pictures, metadata = video(ask)
    return {
        "prompt": chat_text(processor, ask, as_video=True),
        "multi_modal_data": {"video": [(pictures, {**metadata, "do_sample_frames": False})]},
        "mm_processor_kwargs": {"do_sample_frames": False},
    }


def _sampling(ask: Ask) -> Any:
    from vllm import SamplingParams  # type: ignore[import-not-found, unused-ignore]

    top_p = TOP_P if ask.temperature else 1.0
    return SamplingParams(
        temperature=ask.temperature, top_p=top_p, top_k=0, max_tokens=ask.max_new_tokens, seed=ask.seed
    )


def _answers(model: Any, requests: Sequence[dict[str, Any]], sampling: Sequence[Any]) -> list[Draft | Fault]:
    try:
        outputs = model.generate(list(requests), list(sampling), use_tqdm=False)
    except ValueError as error:
        # vLLM rejects the whole batch when one of its questions is too long.
        if len(requests) == 1:
            return [Fault(f"the model does not take the pictures: {first_line(error)}")]
        return [_answers(model, [request], [how])[0] for request, how in zip(requests, sampling, strict=True)]
    return [
        draft(
            output.outputs[0].text,
            output.outputs[0].finish_reason != "length",
            len(output.prompt_token_ids),
            len(output.outputs[0].token_ids),
        )
        for output in outputs
    ]
