"""One stage over clips as a configuration asks for it: what it is called, loads, gives and needs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from reelweave.curate.config import config_digest, earlier_stage_digests
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_files import weights_bytes


class ModelStage(ABC):
    """A stage over clips, decided by its own part of the configuration.

    Attributes:
        name: Name in the ledger and in the accounting.
        configs: Configurations that decide its results.
        scores: Names of the scores that it writes.
        has_model: Whether it loads a model, or asks one.
        after_dedup: Whether it waits until duplicates are known, and receives kept clips only.
        makes_vectors: Whether its vectors are the video embedding.
        served: Whether its model runs elsewhere, behind an address.
        prepares: Whether its inputs are made with PyTorch, without the model.
        batch_clips: Clips of one call.
        cpus: Processors of a worker.
        gpus: Share of a GPU of a worker, where there are any.
    """

    name: str
    configs: tuple[BaseModel, ...]
    scores: tuple[str, ...] = ()
    has_model: bool = True
    after_dedup: bool = False
    makes_vectors: bool = False
    served: bool = False
    prepares: bool = False
    batch_clips: int
    cpus: float
    gpus: float

    @cached_property
    def models(self) -> Mapping[str, Path | str]:
        """Folder or file of each model that it loads, or its name on a hub, by key in the configuration."""
        return {}

    @property
    def weights_mb(self) -> float:
        """Size of the weights that it loads, megabytes; 0 for models that must be downloaded first."""
        return sum(weights_bytes(model) for model in self.models.values()) / 1e6

    def check_model_paths(self) -> None:
        """Check that its files are where the configuration says, and of a known kind; nothing is loaded or asked for.

        Raises:
            UsageError: They are not; the message says what to do.
        """
        _ = self.models  # which looks for folders

    def check(self) -> dict[str, str]:
        """Check before any work that its model is available; return its versions for the manifest.

        Raises:
            UsageError: it is not; the message says what to do.
        """
        return {}

    @abstractmethod
    def clip_stage(self, ledger: Ledger, digests: Mapping[str, str], go_on: Judge) -> ClipStage:
        """Return the stage as runners call it.

        Args:
            ledger: Destination of results.
            digests: Identities of models from `reelweave.curate.run.stages.model_stages.model_digests`.
            go_on: Whether later stages shall receive a clip.
        """

    def fingerprints(self, digests: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """Return the digest of configurations and models, and those under earlier revisions of the code."""
        models = self.digests_among(digests)
        return config_digest(*self.configs, models=models), earlier_stage_digests(
            *self.configs, models=models
        )

    def digests_among(self, digests: Mapping[str, str]) -> dict[str, str]:
        """Return the identities of its models among those of all stages."""
        return {key: digests[key] for key in self.models if key in digests}
