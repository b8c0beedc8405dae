"""Looks at held-out clips now and then: how well they come back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from loader.batch import Microbatch, Pack
from train.distributed.world import World
from train.vae.losses.perceptual import Perceptual
from train.vae.network import VideoVae
from train.vae.objective import reconstruct
from train.vae.picture import side_by_side
from train.vae.quality import Measured, Quality, measures


@dataclass(frozen=True)
class Seen:
    """What a look came to.

    Attributes:
        measured: measures of all ranks' clips, by name; empty where there was no clip.
        picture: a PNG of this rank's first clips and their reconstructions; None where it had none.
    """

    measured: dict[str, Measured]
    picture: bytes | None


@dataclass(frozen=True)
class Look:
    """Clips that are not trained on; their latents are the posterior's mean, as in use.

    Attributes:
        every_steps: optimizer steps between two looks.
        batches: this rank's batches of them, from the first on, at each call; other ranks may have more or fewer.
        shown: clips in the picture, at most.
    """

    every_steps: int
    batches: Callable[[], Iterable[Microbatch | Pack]]
    shown: int = 4

    @torch.no_grad()
    def see(self, vae: VideoVae, perceptual: Perceptual | None, world: World, narrow: bool) -> Seen:
        """Reconstructs them; a collective.

        Args:
            vae: the tokenizer.
            perceptual: LPIPS; None leaves it out.
            world: the ranks.
            narrow: whether activations are bfloat16.
        """
        quality = Quality()
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        vae.eval()
        for batch in self.batches():
            assert isinstance(batch, Microbatch)
            if not batch.weight:  # repeats samples that count elsewhere
                continue
            with torch.autocast(world.device.type, torch.bfloat16, enabled=narrow):
                found = reconstruct(vae, batch, world.device, seed=None)
            quality.add(measures(found.made, found.video, perceptual))
            pairs += list(zip(found.video, found.made, strict=True))[: self.shown - len(pairs)]
        vae.train()
        names = ("psnr", "ssim", *(["lpips"] if perceptual else []))
        return Seen(quality.over(world, names), side_by_side(pairs) if pairs else None)
