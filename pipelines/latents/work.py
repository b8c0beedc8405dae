"""What workers of `reelweave latents` do: measure buckets, write shards. Encoders are loaded at their first use."""

from dataclasses import dataclass
from typing import Any

from curate.ledger import Ledger
from curate.records import Row
from curate.runners.pipeline import Pool, Stage, cluster_size
from loader.errors import UsageError
from pipelines.configuration.train_config import TrainRunConfig
from train.latents.encoders import Encoders
from train.latents.plan import PlannedShard
from train.latents.shard import ShardWriter

STAGE = "latents"
EMPTY = "empty-context"


class Loaded:
    """The encoders of a configuration; they stay behind when this is pickled.

    Args:
        config: of the run.
        context: whether captions are encoded.
    """

    def __init__(self, config: TrainRunConfig, context: bool) -> None:
        self._config, self._context = config, context
        self._encoders: Encoders | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_encoders": None}

    def get(self) -> Encoders:
        """Loads them once.

        Raises:
            UsageError: see `Encoders`.
        """
        if self._encoders is None:
            self._encoders = Encoders(self._config.train, self._config.latents, self._context)
        return self._encoders


@dataclass(frozen=True)
class Measure:
    """Bucket rows -> what their latents are and cost."""

    loaded: Loaded

    def __call__(self, rows: list[Row]) -> list[Row]:
        """Measures each; what is wrong with the configuration is a row, too."""
        return [self._measured(row) for row in rows]

    def _measured(self, row: Row) -> Row:
        try:
            encoders = self.loaded.get()
            latent = (encoders.tokenizer.channels, *encoders.tokenizer.latent_size(tuple(row["bucket"])))
        except UsageError as error:
            return {"bucket": row["bucket"], "error": str(error)}
        text = None
        if encoders.text is not None:
            text = {"width": encoders.text.width, "pooled_width": encoders.text.pooled_width}
        return {
            "bucket": row["bucket"],
            "latent": latent,
            "encode_s": encoders.encode_s(*row["bucket"]) if row["samples"] else None,
            "device": encoders.device_name,
            "text": text,
        }


@dataclass(frozen=True)
class WriteShard:
    """Shard plan rows -> rows that name them, once they are written and closed in the ledger.

    Whoever writes the first shard lays down the empty caption's context, too.
    """

    loaded: Loaded
    writer: ShardWriter
    ledger: Ledger
    fingerprint: str

    def __call__(self, rows: list[Row]) -> list[Row]:
        """Writes each shard."""
        return [self._written(row) for row in rows]

    def _written(self, row: Row) -> Row:
        encoders, plan = self.loaded.get(), PlannedShard.from_row(row)
        if encoders.text is not None and plan.number == 0:
            self.ledger.write_arrays(EMPTY, {"context": encoders.context("")})
        record, failed = self.writer.write(plan, encoders)
        entry = {
            "path": record.path,
            "size": record.size,
            "sha256": record.sha256,
            "rows": record.rows,
            "failed": [one._asdict() for one in failed],
        }
        self.ledger.close(STAGE, self.fingerprint, row["id"], entry)
        return {"id": row["id"], "failed": len(failed)}


def stage(function: Measure | WriteShard, config: TrainRunConfig, rows: int) -> Stage:
    """As a stage of a runner: one worker per GPU, or as many as there is room for."""
    own = config.latents
    if own.runner == "sequential":
        return Stage(STAGE, function)
    size = cluster_size()
    cpus, gpus = size.cpus, size.gpus
    on_gpus = gpus >= 1 and config.train.device != "cpu"
    threads = min(float(own.threads), cpus)
    most = own.workers or max(1, int(gpus if on_gpus else cpus // threads))
    workers = max(1, min(most, rows))
    return Stage(STAGE, function, pool=Pool(1, workers, workers), cpus=threads, gpus=float(on_gpus))
