"""Megatron-Energon as a reader of our folders."""

from dataclasses import dataclass
from pathlib import Path


def energon_samples(folder: Path, count: int) -> list[tuple[str, int]]:
    """Keys and bytes of the media of the first samples, sorted."""
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        Sample,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_train_dataset,
    )
    from megatron.energon.task_encoder import stateless

    @dataclass
    class Clip(Sample):
        size: int

    @stateless
    def cook(sample: dict) -> Clip:
        media = next(sample[name] for name in ("mp4", "webm", "jpg", "latent.npy") if name in sample)
        return Clip(**basic_sample_keys(sample), size=len(media))

    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(cook),)
        decoder = None

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    samples = iter(get_loader(dataset))
    found = [next(samples) for _ in range(count)]
    return sorted((sample.__key__, sample.size) for sample in found)
