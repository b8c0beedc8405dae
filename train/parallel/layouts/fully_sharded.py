"""FSDP and HSDP: weights, gradients and optimizer state in pieces, on ranks that run in lockstep."""

from train.config.run import TrainConfig
from train.models.bundle import Bundle
from train.parallel.fp8 import rescale
from train.parallel.layouts.replicated import Replicated
from train.parallel.mesh import SUMMED, Ranks


class FullySharded(Replicated):
    """Each rank holds a piece of every weight of the denoiser, with its gradient and optimizer state.

    The ranks run in lockstep, as every block is gathered from all of them: a rank with fewer microbatches than others
    idles through the rounds that it lacks. What else is trained (text embeddings) is replicated.
    """

    def __init__(self, bundle: Bundle, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(bundle, config, ranks)
        self._fp8 = config.fp8
        self._others = [name for name in self.weights if not name.startswith("dit.")]

    def share(self) -> None:
        """Makes the replicas of each piece equal."""
        self.ranks.along("dp_replicate").broadcast_(list(self.weights.values()))
        self.ranks.along(*SUMMED).broadcast_([self.weights[name] for name in self._others])

    def lacking(self, rounds: int) -> int:
        """See `Replicated`: what the rank with most runs it more."""
        return self.ranks.along(*SUMMED).largest(rounds) - rounds

    def sum_gradients(self) -> None:
        """Sums what the backward has not summed already."""
        self.ranks.along(*SUMMED).sum_([self._gradient(name) for name in self._others])
        self._sum_over_model_ranks()

    def update(self) -> None:
        """Makes the optimizer's step on this rank's pieces."""
        super().update()
        if self._fp8 and self._fp8.fsdp_all_gather:
            rescale(self.bundle.dit)
