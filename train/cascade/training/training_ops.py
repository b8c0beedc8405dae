"""Computation of a training step's cascades."""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.cascade.training.manifest import ManifestEntry, clips_of
from reelweave.train.config.parts import CascadesConfig, LossConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.text import EncodedText
from reelweave.train.objectives.draw import draw_dropped
from reelweave.train.parallel.context.context import ContextParallel
from reelweave.train.parallel.context.denoise import ContextParallelErrors
from reelweave.train.parallel.pipeline.pipeline import Weigh
from reelweave.train.step.losses import InputSource, Losses, captions_of, losses_of, pad_contexts, stored_text
from reelweave.train.step.squared_errors import whole_model_errors
from reelweave.train.step.step_losses import StepLosses


class TrainingOps:
    """Computation of one training step, as `reelweave.train.cascade.execution.ops.CascadeOps`.

    Args:
        bundle: modules of the run.
        config: configuration of cascades.
        entries: manifest of the step; a sample's number is its index.
        local_batches: this rank's batches, in order.
        rank: rank of this process.
        device: compute device.
        weigh: adds a reported microbatch to the step and returns its weighted loss.
        clock: clock that times this rank's activities.

    Attributes:
        reported: microbatches that this rank reports, without pixels, and their losses.
    """

    def __init__(
        self,
        bundle: Bundle,
        config: CascadesConfig,
        entries: Sequence[ManifestEntry],
        local_batches: Sequence[Microbatch | Pack],
        rank: int,
        device: torch.device,
        weigh: Weigh,
        clock: StepClock,
    ) -> None:
        self.reported: list[tuple[Microbatch | Pack, Losses]] = []
        self._bundle, self._config, self._entries = bundle, config, entries
        indices = [index for index, entry in enumerate(entries) if entry.owner == rank]
        self._own = dict(zip(indices, local_batches, strict=True))
        self._device, self._weigh, self._clock = device, weigh, clock
        # Weighs microbatches that another rank reports.
        self._aside = StepLosses(config.denominator)

    def owner(self, sample: int) -> int:
        return self._entries[sample].owner

    def input_specs(self, cascade: Cascade) -> Sequence[TensorSpec]:
        """Return all clips for a VAE, nothing for a text encoder: captions are in the manifest."""
        return self._entries[cascade.sample].videos if cascade.module == Module.VAE else ()

    def output_specs(self, cascade: Cascade) -> Sequence[TensorSpec]:
        """Return latents of each clip, or contexts of each caption without padding."""
        entry = self._entries[cascade.sample]
        if cascade.module == Module.TEXT:
            return entry.contexts
        return [self._latents(video) for video in entry.videos] if entry.encodes else entry.videos

    def source(self, cascade: Cascade) -> Sequence[torch.Tensor]:
        batch = self._own[cascade.sample]
        if cascade.module == Module.TEXT:
            return batch.contexts or ()
        return clips_of(batch)

    @torch.no_grad()
    def make(
        self, cascade: Cascade, part_indices: Sequence[int], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        if not part_indices:
            return []
        entry = self._entries[cascade.sample]
        if cascade.module == Module.TEXT:
            return self._contexts(entry, part_indices)
        encode = self._bundle.tokenizer.encode
        if isinstance(entry.batch, Pack):
            return [clip.float() if clip.is_floating_point() else encode(clip[None])[0] for clip in inputs]
        return list(encode(torch.stack(list(inputs))).unbind())

    def train(
        self,
        sample: int,
        module_outputs: MutableMapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        batch, clock = self._entries[sample].batch, self._clock
        errors = whole_model_errors if context is None else ContextParallelErrors(context)
        with clock.part("forward"):
            inputs = self._inputs(sample, module_outputs)
            sample_losses = losses_of(
                self._bundle, self._config.losses, batch, inputs, self._device, None, errors, clock.part
            )
            loss = (self._weigh if first else self._aside.add)(batch, sample_losses)
            with clock.part("backward"):
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        if first:
            self.reported.append((batch, replace(sample_losses, each=sample_losses.each.detach())))

    def _latents(self, video: TensorSpec) -> TensorSpec:
        if video.dtype.is_floating_point:
            return TensorSpec(video.shape, torch.float32)
        tokenizer = self._bundle.tokenizer
        return TensorSpec((tokenizer.channels, *tokenizer.latent_size(video.shape[1:])), torch.float32)

    def _contexts(self, entry: ManifestEntry, part_indices: Sequence[int]) -> list[torch.Tensor]:
        captions = _captions(entry.batch, self._config.losses)
        with torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._config.losses.dtype == "bfloat16"
        ):
            context_BMD, _ = self._bundle.text([captions[index] for index in part_indices])
        rows = [entry.contexts[index].shape[0] for index in part_indices]
        return [context_MD[:count] for context_MD, count in zip(context_BMD, rows, strict=True)]

    def _inputs(self, sample: int, module_outputs: MutableMapping[Module, list[torch.Tensor]]) -> InputSource:
        """Return the inputs of the DiT, popped from ``module_outputs``, to live no longer than without cascades."""
        entry = self._entries[sample]
        bundle, packed = self._bundle, isinstance(entry.batch, Pack)

        def clean(_place: int) -> torch.Tensor:
            if packed:
                return module_outputs[Module.VAE].pop(0)[None].float()
            return torch.stack(module_outputs.pop(Module.VAE)).float()

        def encode_text(dropped: Sequence[bool]) -> EncodedText:
            if not entry.contexts:
                return bundle.text.encode(captions_of(entry.batch.captions, dropped))
            contexts = module_outputs.pop(Module.TEXT)
            if entry.text_stored:
                return stored_text(bundle, contexts, dropped, self._device)
            return pad_contexts(contexts)

        return InputSource(clean, encode_text)


def contexts_of(bundle: Bundle, config: CascadesConfig, batch: Microbatch | Pack) -> list[TensorSpec]:
    """Return the context shapes of a text encoder; empty if the DiT's ranks embed words themselves."""
    if isinstance(config.text, HashedTextConfig):
        return []
    lengths = bundle.text.lengths(_captions(batch, config.losses))
    return [TensorSpec((length, bundle.text.width), torch.float32) for length in lengths]


def _captions(batch: Microbatch | Pack, config: LossConfig) -> Sequence[str]:
    """Return the captions of a batch, empty where caption dropout drops them."""
    dropped = draw_dropped(config.objective.caption_dropout, config.seed, batch.draw_keys, batch.passes)
    return captions_of(batch.captions, dropped)
