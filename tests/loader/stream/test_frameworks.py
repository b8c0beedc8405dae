"""Each recipe of docs/frameworks.md on two ranks: the weights of one process over the same samples."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from reelweave.loader.batch import Microbatch
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream.framework_ranks import ROOT, Tiny, losses_of, run
from tests.loader.stream_clips import BUCKETS, config
from tests.thorough import thorough
from tests.train.ranks import Ranks

CONFIG = StreamConfig(buckets=BUCKETS, microbatches=4, epochs=2)
RECIPES = ["ddp", "fsdp2", "megatron", "accelerate", "lightning"]


def alone(dataset: Dataset, settings: StreamConfig) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
    """Weights of one process that takes the mean over each step's samples, and microbatches of each rank by step."""
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ranks = [list(VideoStream(dataset, settings, rank, 2)) for rank in range(2)]
    counts = []
    for number in range(ranks[0][-1].step + 1):
        step = [batch for rank in ranks for batch in rank if batch.step == number]
        losses = torch.cat([losses_of(model, batch) for batch in step if batch.weight])
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        counts.append(tuple(sum(batch.step == number for batch in rank) for rank in ranks))
    return [weight.detach() for weight in model.parameters()], counts


@thorough
def test_the_recipes_train_what_one_process_trains(
    dataset: Dataset, folder: Path, ranks: Ranks, tmp_path: Path
) -> None:
    files = {path.stem for path in (ROOT / "examples").glob("stream_*.py")}
    assert files | {"stream_megatron"} == {f"stream_{name}" for name in RECIPES}
    (tmp_path / "my-dataset").symlink_to(folder)
    by_step, counts = alone(dataset, CONFIG)
    by_slot, even = alone(dataset, CONFIG.model_copy(update={"regime": "slot"}))
    assert any(one != other for one, other in counts)  # or no_sync would have nothing to do
    assert set(even) == {(4, 4)}
    ended = ranks.run(run, 2, str(tmp_path), str(tmp_path), RECIPES, len(even))
    assert ended.codes == [0, 0], "\n".join(ended.errors)
    for name in RECIPES:
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        for weight, wanted in zip(found, by_slot if name in ("fsdp2", "megatron") else by_step, strict=True):
            torch.testing.assert_close(
                weight, wanted, rtol=1e-12, atol=1e-14, msg=lambda text, name=name: f"{name}: {text}"
            )
    assert not torch.allclose(found[0], Tiny().blocks[0].weight, atol=1e-3)


def test_what_accelerate_would_leave_out_of_a_prepared_loader_is_refused(dataset: Dataset) -> None:
    from accelerate.data_loader import prepare_data_loader

    stream = VideoStream(dataset, config(), 0, 2)
    loader = DataLoader(stream, batch_size=1, collate_fn=lambda batches: batches[0])
    with pytest.raises(UsageError, match="not the loader"):
        prepare_data_loader(loader, num_processes=2, process_index=0, dispatch_batches=False)


@pytest.mark.parametrize("dispatch", [None, False])
def test_what_accelerate_would_read_for_others_or_ahead_is_refused(
    dataset: Dataset, dispatch: bool | None
) -> None:
    from accelerate.data_loader import prepare_data_loader

    def tensors(batch: Microbatch) -> dict[str, torch.Tensor]:
        return {"video": batch.video_BCTHW}  # with tensors alone it would go through

    loader = DataLoader(VideoStream(dataset, config()), batch_size=None, collate_fn=tensors)
    prepared = prepare_data_loader(
        loader, torch.device("cpu"), 1, 0, put_on_device=True, dispatch_batches=dispatch
    )
    with pytest.raises(UsageError, match="not the loader"):
        next(iter(prepared))
