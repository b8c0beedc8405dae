"""Evaluation of reconstructions on held-out clips."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from reelweave.loader.batch import Microbatch, Pack
from reelweave.train.distributed.world import World
from reelweave.train.vae.contact_sheet import side_by_side
from reelweave.train.vae.losses.perceptual import Perceptual
from reelweave.train.vae.network import VideoVae
from reelweave.train.vae.quality import FrameMetric, Quality, measures
from reelweave.train.vae.reconstruction import reconstruct


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation.

    Attributes:
        measured: metrics over all ranks' clips, by name; empty without clips.
        picture: PNG of this rank's first clips and their reconstructions; None without any.
    """

    measured: dict[str, FrameMetric]
    picture: bytes | None


@dataclass(frozen=True)
class Evaluation:
    """Held-out clips with their evaluation; latents are the posterior's mean, as in use.

    Attributes:
        every_steps: optimizer steps between two evaluations.
        batches: returns this rank's batches from the first on, at each call; ranks may have unequal numbers.
        shown: maximum number of clips in the picture.
    """

    every_steps: int
    batches: Callable[[], Iterable[Microbatch | Pack]]
    shown: int = 4

    @torch.no_grad()
    def see(
        self, vae: VideoVae, perceptual: Perceptual | None, world: World, narrow: bool
    ) -> EvaluationResult:
        """Reconstruct and measure the clips; a collective.

        Args:
            vae: the tokenizer.
            perceptual: LPIPS; None: skip it.
            world: the ranks.
            narrow: True for bfloat16 activations.
        """
        quality = Quality()
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        vae.eval()
        for batch in self.batches():
            assert isinstance(batch, Microbatch)
            if not batch.weight:  # a filler, whose samples count elsewhere
                continue
            with torch.autocast(world.device.type, torch.bfloat16, enabled=narrow):
                reconstruction = reconstruct(vae, batch, world.device, seed=None)
            quality.add(measures(reconstruction.reconstructed, reconstruction.video, perceptual))
            pairs += list(zip(reconstruction.video, reconstruction.reconstructed, strict=True))[
                : self.shown - len(pairs)
            ]
        vae.train()
        names = ("psnr", "ssim", *(["lpips"] if perceptual else []))
        return EvaluationResult(quality.over(world, names), side_by_side(pairs) if pairs else None)
