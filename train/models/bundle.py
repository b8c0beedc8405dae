"""Modules of a run: tokenizer, text encoder, denoiser and objective."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.models.build import build_denoiser, build_tokenizer, initial_weights
from reelweave.train.models.encoders.stored import StoredEncoders, StoredLatents, StoredText
from reelweave.train.models.encoders.text import TextEncoder, build_text_encoder
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.models.lora import adapt, initial_adapters, load_adapters, starting_adapters
from reelweave.train.models.precision.narrow import narrow_note
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.objectives.build import build_objective


class Bundle(nn.Module):
    """Modules that a configuration describes, with weights determined by its seed.

    Args:
        config: configuration of the modules.
        meta: leave the denoiser on the meta device, to be sharded and then filled with `initial_weights`.
        stored: encoders that need not be loaded.
        unread: leave published VAE and text encoder on the meta device, where only shapes matter; config.json and the
            files of the text's tokenizer are enough then.

    Attributes:
        tokenizer: frozen video tokenizer.
        text: text encoder.
        dit: denoiser of any kind; it predicts the objective's target.
        objective: training objective.

    Raises:
        UsageError: a published model is missing, or the modules do not match.
    """

    def __init__(
        self,
        config: ModulesConfig,
        meta: bool = False,
        stored: StoredEncoders | None = None,
        unread: bool = False,
    ) -> None:
        super().__init__()
        self._unread, self._meta = unread, meta
        self._config, self._stored = config, stored or StoredEncoders()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.tokenizer = self._tokenizer()
            self.text = self._text()
            self._drawn = torch.get_rng_state()
            channels = self.tokenizer.channels
            self._build = partial(
                build_denoiser, config.model, channels, self.text.width, config.first_frames, unread
            )
            with torch.device("meta") if meta else nullcontext():
                self.dit = self._build()
            self._check_fit(config)
            self.objective = build_objective(config.objective, self.dit.times)
            if config.lora:
                self._adapt(config.lora)

    def initial_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and initial value of each parameter and buffer of the denoiser, whole, on the CPU.

        Yields layer by layer, and tensors of a published model mapped from its files, in the dtype that these have.
        Loads an adapted model of ours as a whole first.
        """
        if isinstance(self.dit, DiffusersDenoiser):
            return chain(self.dit.initial_weights(), self._initial_adapters().items())
        if self._config.lora:
            dit = Bundle(self._config, stored=self._stored).dit
            named = chain(dit.named_parameters(), dit.named_buffers())
            return ((name, tensor.detach()) for name, tensor in named)
        with torch.device("meta"):
            twin = self._build()
        return initial_weights(twin, self._drawn)

    def trained_weights(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by name: none of frozen encoders, and only adapters under LoRA."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def latent_size(self, size: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return frames, rows and columns of the latents of a video.

        Raises:
            UsageError: it does not divide into the tokens of tokenizer and model; the message says what would.
        """
        (_, rows, columns), (_, h, w) = self.tokenizer.compression, self._config.model.patch
        _, height, width = size
        if height % (rows * h) or width % (columns * w):
            raise UsageError(
                f"{height}x{width} pixels do not fit the model: height must be a multiple of {rows * h},"
                f" width a multiple of {columns * w}"
            )
        return self.tokenizer.latent_size(size)

    def _tokenizer(self) -> Tokenizer:
        config = self._config.tokenizer
        if self._stored.channels is not None:
            return StoredLatents((config.frames, config.height, config.width), self._stored.channels)
        # A published tokenizer must not consume the seed's numbers: the denoiser gets the first ones either way.
        with torch.random.fork_rng(devices=[]):
            return build_tokenizer(config, self._unread)

    def _text(self) -> TextEncoder:
        config = self._config.text
        if self._stored.empty_MD is not None:
            return StoredText(self._stored.empty_MD, self._stored.pooled_width)
        if isinstance(config, HashedTextConfig):
            return build_text_encoder(config)
        with torch.random.fork_rng(devices=[]):
            return build_text_encoder(config, meta=self._unread)

    def _adapt(self, config: LoraConfig) -> None:
        if config.checkpoint is not None:
            weights_of(config.checkpoint).load_(self.trained_weights())
        self.requires_grad_(False)
        start = None
        if config.start_from is not None and not self._meta:
            start, self.dit.start_notes = starting_adapters(self.dit, config)
        adapt(self.dit, config)
        if config.base_dtype:
            self.dit.start_notes = [
                *self.dit.start_notes,
                narrow_note(self.dit.frozen_layers(), config.base_dtype),
            ]
        if start is not None:
            load_adapters(self.dit, start)

    def _initial_adapters(self) -> dict[str, torch.Tensor]:
        """Draw the adapters of a published model again, with the same numbers as construction."""
        if self._config.lora is None:
            return {}
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._drawn)
            with torch.device("meta"):
                twin = self._build()
            start = None
            if self._config.lora.start_from is not None:
                start, notes = starting_adapters(twin, self._config.lora)
                self.dit.start_notes = [*notes, *self.dit.start_notes]
            drawn = initial_adapters(twin, self._config.lora)
        if start is None:
            return drawn
        return {name: start[name.removeprefix("model.").replace(".default.", ".")] for name in drawn}

    def _check_fit(self, config: ModulesConfig) -> None:
        """Check consistency between modules."""
        if config.objective.name not in self.dit.objectives:
            raise UsageError(
                f"objective.name={config.objective.name}: this model was published with, and is trained with,"
                f" {' or '.join(self.dit.objectives)}"
            )
        if self.text.pooled_width != self.dit.pooled_width:
            needed = (
                f"be an encoder of {self.dit.pooled_width} values" if self.dit.pooled_width else "be unset"
            )
            raise UsageError(
                f"text.pooled must {needed}: this is what the model takes of a caption as a whole"
            )
