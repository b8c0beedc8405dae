"""Readers of a run's records: TensorBoard, Weights & Biases, MLflow."""

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.train.config.log import WandbConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.loop.logs.record import Record
from reelweave.train.loop.logs.run_id import run_id


class RecordReader(Protocol):
    """Reader of a run's records, in the order of their lines."""

    def read(self, record: Record) -> None:
        """Show the numbers and pictures of a record."""

    def close(self, failed: bool) -> None:
        """Close the reader; the last call."""


def open_readers(
    out: Path, config: TrainConfig | VaeTrainConfig, start_step: int, writes: bool
) -> list[RecordReader]:
    """Open the readers of a run after ``start_step``; none on ranks that do not write.

    Args:
        out: folder of the run.
        config: configuration of the run, also logged.
        start_step: number of finished steps; points of later ones, left by a killed run, are overwritten.
        writes: True on the one rank that writes.

    Raises:
        UsageError: Weights & Biases or MLflow is enabled but not installed; on every rank.
        RunError: it is unreachable, or nobody is logged in.
    """
    wandb, mlflow = config.log.wandb, config.log.mlflow
    for name, settings in (("wandb", wandb), ("mlflow", mlflow)):
        if settings and find_spec(name) is None:
            raise UsageError(f"log.{name} needs {name}: pip install 'reelweave[{name}]', or set it to null")
    opened: list[RecordReader] = []
    if writes and config.log.tensorboard:
        opened.append(TensorBoardReader(out, start_step))
    if writes and wandb:
        opened.append(WandbReader(out, wandb, config))
    if writes and mlflow:
        from reelweave.train.loop.logs.mlflow_reader import MlflowReader

        opened.append(MlflowReader(out, mlflow, config))
    return opened


class TensorBoardReader:
    """Reader that writes TensorBoard events in ``tensorboard`` of the run's folder."""

    def __init__(self, out: Path, start_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and optional

        self._events = SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1)

    def read(self, record: Record) -> None:
        for name, value in record.scalars().items():
            self._events.add_scalar(name, value, record.step)
        for name, picture_HWC in record.pictures().items():
            self._events.add_image(name, picture_HWC, record.step, dataformats="HWC")

    def close(self, failed: bool) -> None:  # noqa: ARG002 - as `RecordReader` has it
        self._events.close()


class WandbReader:
    """Reader that sends to Weights & Biases; a resumed run goes on in the same wandb run.

    Points may arrive in any order, so that repeated steps after a kill appear again. Only scalars and the
    configuration, which holds no secrets, are sent: no command line, source or console output.
    """

    def __init__(self, out: Path, config: WandbConfig, run: TrainConfig | VaeTrainConfig) -> None:
        import wandb  # takes seconds, and not every run wants it

        try:
            self._run = wandb.init(
                project=config.project,
                name=config.name,
                entity=config.entity,
                mode=config.mode,
                id=run_id(out),
                resume="allow",
                dir=str(out),
                config=run.model_dump(mode="json"),
                settings=wandb.Settings(
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    disable_job_creation=True,
                    x_disable_meta=True,
                    silent=True,
                ),
            )
        except wandb.errors.Error as error:
            raise RunError(
                f"wandb did not begin a run ({first_line(error)}): wandb login, or set log.wandb.mode=offline"
            ) from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def read(self, record: Record) -> None:
        import wandb

        pictures = {name: wandb.Image(picture_HWC) for name, picture_HWC in record.pictures().items()}
        if points := {**record.scalars(), **pictures}:
            self._run.log({**points, "step": record.step})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
