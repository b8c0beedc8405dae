"""Megatron-Energon as a reader of our folders, in a process of its own."""

import subprocess
import sys
from pathlib import Path

_CODE = """
import sys
from dataclasses import dataclass
from megatron.energon import (Cooker, DefaultTaskEncoder, Sample, WorkerConfig, basic_sample_keys, get_loader,
                              get_train_dataset)
from megatron.energon.task_encoder import stateless

@dataclass
class Clip(Sample):
    size: int

@stateless
def cook(sample):
    media = next(sample[name] for name in ("mp4", "webm", "jpg", "latent.npy") if name in sample)
    return Clip(**basic_sample_keys(sample), size=len(media))

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]
    decoder = None

worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_train_dataset(sys.argv[1], worker_config=worker, batch_size=None, shuffle_buffer_size=None,
                            max_samples_per_sequence=None, task_encoder=Encoder())
samples = iter(get_loader(dataset))
for _ in range(int(sys.argv[2])):
    sample = next(samples)
    print(sample.__key__, sample.size, sep="\\t")
"""


def energon_samples(folder: Path, count: int) -> list[tuple[str, int]]:
    """Keys and bytes of the media of the first samples, sorted."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(folder), str(count)], capture_output=True, text=True, check=True
    )
    lines = (line.split("\t") for line in done.stdout.splitlines())
    return sorted((key, int(size)) for key, size in lines)
