"""Vision-language model behind an OpenAI-style endpoint, such as `vllm serve`, SGLang or TGI on other machines."""

import base64
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.models.backend import TOP_P, Ask, Draft, Follow, draft
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.hf_model import NamedModel
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.remote.retry import FAULTS, StatusError, retry
from reelweave.loader.storage.web.connections import pools, proxy_of

KEY_VARIABLE = "REELWEAVE_CAPTIONS_KEY"
"""Environment variable with the endpoint's API key, where it asks for one."""

_JPEG_QUALITY = 95
_MOST_BYTES = 16 << 20  # of an answer
_MOST_SHOWN = 200  # characters of an error that the server describes
_REJECTED = (400, 413, 422)  # the question's fault; another may be answered
_CHECK_S = 10.0
_ATTEMPTS = 100  # time ends the retries: a server that starts again loads its weights for minutes
_ASKED = 3  # times, where the answer is no chat completion
_PAUSE_S = 0.1
_IN_FLIGHT = 64  # connections that a pool keeps


class _Part(BaseModel):
    type: str
    text: str = ""


class _Message(BaseModel):
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):  # further parts hold thoughts, or pictures
            return "".join(part.text for part in self.content if part.type in ("text", "output_text"))
        return self.content or ""


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(BaseModel):
    """Chat completion, as far as it is read."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None

    def draft(self) -> Draft:
        choice, usage = self.choices[0], self.usage or _Usage()
        return draft(
            choice.message.text(),
            choice.finish_reason != "length",
            usage.prompt_tokens or 0,
            usage.completion_tokens or 0,
            choice.finish_reason == "content_filter",
        )


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    """List of the models that a server has."""

    data: list[_Model] = []


class _NoCompletionError(Exception):
    """Answer that is no chat completion, in the server's words or ours."""


class _RejectedError(Exception):
    """Question that the server does not take, in its own words."""


class EndpointModel:
    """Text generation by a server; a `reelweave.curate.caption.models.backend.Backend`.

    The server batches by itself: the questions of a call are in flight together, at most ``batch_clips`` and 64.
    """

    def __init__(self, config: CaptionConfig, named: NamedModel) -> None:
        self._config = config
        self._named = named

    def check(self) -> None:
        """Check that the server answers and lists the model.

        Raises:
            UsageError: It does not; the message says what to do.
        """
        at = f"captions.endpoint_url={self._config.endpoint_url}"
        try:
            names = [
                model.id
                for model in _Models.model_validate_json(
                    self._request("GET", "/models", None, once=True)
                ).data
            ]
        except StatusError as error:
            if error.status == 404:  # a server without a list; it names an unknown model itself
                return
            raise UsageError(f"{at}: {_error_message(error)}") from error
        except (*FAULTS, _RejectedError, ValueError) as error:
            raise UsageError(
                f"{at} does not answer as an OpenAI-style server ({type(error).__name__}); start it, or correct the"
                " address, which usually ends in /v1"
            ) from error
        if names and self._named.name not in names:
            raise UsageError(
                f"{self._named.key}={self._named.name} is not served at {at}; it serves {', '.join(names[:8])}"
            )

    def identity(self) -> Mapping[str, str]:
        """Return the name of the model, of a path its last part. The server does not tell which weights it runs."""
        name = self._named.name
        return {"model": PurePosixPath(name).name if name.startswith("/") else name, "runtime": "endpoint"}

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        """Return an answer or a fault for each question.

        Raises:
            RunError: The server fails for a reason that is no question's fault, after all retries.
        """
        drafts: dict[int, Draft | Fault] = {}

        def take(index: int, answer: Draft | Fault) -> None:
            drafts[index] = answer

        self.pursue(asks, take)
        return [drafts[index] for index in range(len(asks))]

    def pursue(self, asks: Sequence[Ask], follow: Follow) -> None:
        """Ask all questions, and what follows from each answer; see `ServedBackend`. Errors as of a call."""

        def ask_on(index: int) -> None:
            ask: Ask | None = asks[index]
            while ask is not None:
                ask = follow(index, self._answer(ask))

        if asks:
            with ThreadPoolExecutor(min(len(asks), self._config.batch_clips, _IN_FLIGHT)) as threads:
                for _ in threads.map(ask_on, range(len(asks))):
                    pass

    def _answer(self, ask: Ask) -> Draft | Fault:
        where = f"the endpoint {self._config.endpoint_url}"
        again = "; run the same command again to go on"
        try:
            return self._complete(ask)
        except _RejectedError as error:
            return Fault(f"the model does not take the question: {error}")
        except StatusError as error:
            raise RunError(f"{where}: {_error_message(error)}{again}") from error
        except FAULTS as error:
            raise RunError(f"{where} does not answer ({type(error).__name__}){again}") from error
        except _NoCompletionError as error:
            raise RunError(
                f"{where} answers with something that is no chat completion ({error}), also to a plain grey"
                f" picture{again}"
            ) from error

    def _complete(self, ask: Ask) -> Draft | Fault:
        """Return the completion, or a fault where the server has one for another question."""
        try:
            return self._request_draft(ask, _ASKED)
        except _NoCompletionError as error:
            with suppress(_RejectedError):  # this, too, is the answer of an endpoint that works
                self._request_draft(_control(ask), 1)
            return Fault(f"the server gave no chat completion in {_ASKED} attempts: {error}")

    def _request_draft(self, ask: Ask, attempts: int) -> Draft:
        question = question_of(self._named.name, ask)
        for attempt in range(1, attempts + 1):
            response = b""
            try:
                response = self._request("POST", "/chat/completions", question)
                return _Completion.model_validate_json(response).draft()
            except ValueError as error:
                if attempt == attempts:
                    raise _NoCompletionError(_words(response)) from error
            time.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, once: bool = False) -> bytes:
        """Return the answer to a request, which is repeated while that may help."""
        # A check is answered soon or not at all; questions to a model may take long.
        url = str(self._config.endpoint_url).rstrip("/") + path
        limits = _limits(_CHECK_S, 1) if once else _limits(self._config.endpoint_timeout_s, _ATTEMPTS)
        # A key comes from the environment alone, and goes to no address that a redirect names.
        sent = {"User-Agent": "reelweave", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            sent["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        parts = urlsplit(url)
        proxy = proxy_of(parts.scheme, parts.netloc)

        def send() -> bytes:
            response = pools(limits, proxy, only_public=False, pid=os.getpid()).request(
                method, url, body=data, headers=sent, redirect=False, retries=False, preload_content=False
            )
            try:
                # One byte more than is allowed tells a longer answer.
                content = response.read(_MOST_BYTES + 1)
            finally:
                response.release_conn()
            if response.status in _REJECTED:
                raise _RejectedError(_words(content))
            if response.status != 200:
                raise StatusError.of(response.status, response.headers)
            if len(content) > _MOST_BYTES:
                raise ValueError("the answer is too large")
            return content

        return retry(send, limits, url)


def _limits(timeout_s: float, attempts: int) -> StorageConfig:
    """Return the limits of a request: of its wait for an answer, and of all retries together."""
    return StorageConfig(
        max_attempts=attempts,
        backoff_base_s=0.5,
        read_timeout_s=timeout_s,
        request_timeout_s=timeout_s,
        min_rate_kib_s=0,
    )


def _control(ask: Ask) -> Ask:
    """Return a question that any server answers which has answers at all."""
    grey = None if ask.pictures is None else np.full((1, 64, 64, 3), 128, np.uint8)
    return replace(ask, prompt="Name one colour.", pictures=grey, files=(), times_s=(0.0,), max_new_tokens=16)


def question_of(model: str, ask: Ask) -> dict[str, Any]:
    """Return a question as the body of a request, as JSON values."""
    files = ask.files or [jpeg_of(picture) for picture in (() if ask.pictures is None else ask.pictures)]
    pictures = [
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"},
        }
        for file in files
    ]
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*pictures, {"type": "text", "text": ask.prompt}]}],
        "max_tokens": ask.max_new_tokens,
        "temperature": ask.temperature,
        "top_p": TOP_P if ask.temperature else 1.0,
        "seed": ask.seed,
    }


def jpeg_of(pixels: NDArray[Any]) -> bytes:
    """Return a picture as the file that a question holds."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


def _words(content: bytes) -> str:
    """Return how the server describes an error, bounded and on one line."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = content.decode(errors="replace")
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())[:_MOST_SHOWN] or "it gives no reason"


def _error_message(error: StatusError) -> str:
    if error.status in (401, 403):
        return f"it refuses the API key (HTTP {error.status}); set it in the environment as {KEY_VARIABLE}"
    if error.status == 404:
        return (
            "it knows no such address or model (HTTP 404); look at captions.endpoint_url and captions.model"
        )
    return f"it answers with HTTP {error.status}"
