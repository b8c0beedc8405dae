"""FSDP and HSDP: sharded weights, gradients and optimizer state on ranks in lockstep."""

from collections.abc import Mapping

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from reelweave.train.config.optimizer import Fp8Config
from reelweave.train.config.parts import LayoutConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.parallel.fp8 import rescale
from reelweave.train.parallel.layouts.parallel_model import ParallelModel
from reelweave.train.parallel.mesh import SUMMED, Ranks


class FSDP(ParallelModel):
    """FSDP or HSDP: each rank holds a shard of every denoiser weight, its gradient and optimizer state.

    Ranks run in lockstep, since every block is gathered from all of them: a rank with fewer microbatches runs
    dummy steps. Other trained modules (text embeddings) and the denoiser's few float32 vectors are replicated.
    """

    def __init__(
        self,
        bundle: Bundle,
        config: LayoutConfig,
        ranks: Ranks,
        wholes: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        super().__init__(bundle, config, ranks, wholes)
        self._fp8 = config.fp8
        self._reduces = True

    def share(self) -> None:
        """Make the replicas of each shard equal."""
        self.ranks.along("dp_replicate").broadcast_(list(self.weights.values()))
        self.ranks.along(*SUMMED).broadcast_([self.weights[name] for name in self._summed_whole()])

    def missing_rounds(self, rounds: int) -> int:
        """Return the difference to the largest number of rounds of any rank."""
        return self.ranks.along(*SUMMED).largest(rounds) - rounds

    @property
    def accumulates(self) -> bool:
        return self._config.parallel.reduce_gradients == "step" or self.ranks.mesh.dp_replicate > 1

    def before_backward(self, last: bool) -> None:
        """Prepare for a backward; between nodes, and with ``reduce_gradients: step`` at all, only the last one reduces.

        Args:
            last: True if it is the last one of the step.
        """
        super().before_backward(last)
        dit = self.bundle.dit
        if isinstance(dit, FSDPModule) and last != self._reduces:
            self._reduces = last
            dit.set_requires_all_reduce(last)
            if self._config.parallel.reduce_gradients == "step":
                dit.set_requires_gradient_sync(last)

    def _summed_whole(self) -> list[str]:
        return [name for name, parameter in self._wholes.items() if not isinstance(parameter, DTensor)]

    def refresh(self) -> None:
        refresh(self.bundle.dit, self._fp8)


def refresh(dit: Denoiser, fp8: Fp8Config | None) -> None:
    """Drop gathered weights, which a forward without backward leaves in the last unit, and scales of FP8."""
    if isinstance(dit, FSDPModule):
        dit.reshard()
    if fp8 and fp8.fsdp_all_gather:
        rescale(dit)
