"""FSDP and HSDP: weights, gradients and optimizer state in pieces, on ranks that run in lockstep."""

import torch

from train.config import TrainConfig
from train.models.bundle import Bundle
from train.parallel.fp8 import rescale
from train.parallel.mesh import CONTEXT, SUMMED, Ranks
from train.parallel.replicated import Replicated
from train.squared_errors import Question


class FullySharded(Replicated):
    """Each rank holds a piece of every weight of the denoiser, with its gradient and optimizer state.

    The ranks run in lockstep, as every block is gathered from all of them: a rank with fewer microbatches than others
    idles through the rounds that it lacks. What else is trained (text embeddings) is replicated.
    """

    def __init__(self, bundle: Bundle, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(bundle, config, ranks)
        self._fp8 = config.fp8
        self._half = config.dtype == "bfloat16"
        self._others = [name for name in self.weights if not name.startswith("dit.")]

    def share(self) -> None:
        """Makes the replicas of each piece equal."""
        self.ranks.along("dp_replicate").broadcast_(list(self.weights.values()))
        self.ranks.along(*SUMMED).broadcast_([self.weights[name] for name in self._others])

    def keep_up(self, rounds: int) -> None:
        """Before a rank runs the model so often: runs it on nothing as often as the rank with most runs it more."""
        for _ in range(self.ranks.along(*SUMMED).largest(rounds) - rounds):
            self._idle()

    def sum_gradients(self) -> None:
        """Sums what the backward has not summed already."""
        self.ranks.along(*SUMMED).sum_([self._gradient(name) for name in self._others])
        self._sum_over_tensor_ranks()

    def update(self) -> None:
        """Makes the optimizer's step on this rank's pieces."""
        super().update()
        if self._fp8 and self._fp8.fsdp_all_gather:
            rescale(self.bundle.dit)

    def _idle(self) -> None:
        """A forward of a token, and a backward of zeros where gradients are wanted: nothing but the collectives."""
        bundle, device = self.bundle, self.ranks.world.device
        frames, rows, columns = bundle.dit.patch
        # A token for each rank that shares a sequence.
        size = (frames * self.ranks.mesh.degree(CONTEXT), rows, columns)
        latents = torch.zeros(1, bundle.tokenizer.channels, *size, device=device)
        # A row of text, and one for models that take the whole caption in a row of its own.
        context = torch.zeros(1, 2, bundle.text.width, device=device)
        mask = torch.ones(1, 2, dtype=torch.bool, device=device)
        asked = Question([latents], [latents], torch.zeros(1, device=device), context, mask, packed=False)
        with torch.autocast(device.type, torch.bfloat16, enabled=self._half):
            error_1 = self.errors(bundle.dit, asked)
        if error_1.requires_grad:
            error_1.backward(torch.zeros_like(error_1))  # type: ignore[no-untyped-call]  # torch's own
