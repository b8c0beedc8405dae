"""Wall time of cutting and then captioning, against both at once, where captions wait for a device of their own.

    python -m tests.bench.caption_while_cutting [--turns 2]

24 sources of two clips on Ray with four processors and one GPU, as it is told. A source takes 4 s, a caption 1 s; both
sleep, so that neither the load of the machine nor its processors count, only what is scheduled when.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from reelweave.curate.run.runners.passes import run_pass
from reelweave.curate.run.runners.pipeline import Stage

_SOURCES, _CLIPS, _CUT_S, _CAPTION_S = 24, 2, 4.0, 1.0

Clip = tuple[int, int]


class Cut:
    """Sources to clips."""

    def __call__(self, tasks: Sequence[int]) -> Iterator[Clip]:
        """Yield the clips of each source."""
        for task in tasks:
            time.sleep(_CUT_S)
            for number in range(_CLIPS):
                yield task, number


class Captions:
    """Clips to themselves, as slowly as a model on a GPU."""

    def __call__(self, tasks: Sequence[Clip]) -> Sequence[Clip]:
        """Return the clips."""
        time.sleep(_CAPTION_S * len(tasks))
        return tasks


def cut() -> Stage[Any]:
    """The stage of cutting."""
    return Stage("cut", Cut())


def captions() -> Stage[Any]:
    """The stage of captions, with workers of its own."""
    return Stage("captions", Captions(), keeps=True, gpus=1.0)


def apart() -> int:
    """One pass over sources, then one over clips."""
    clips: list[Clip] = []
    run_pass("sources", list(range(_SOURCES)), [cut()], "ray", clips.append)
    done: list[Clip] = []
    run_pass("clips", clips, [captions()], "ray", done.append)
    return len(done)


def together() -> int:
    """One pass over sources, with captions in it."""
    done: list[Clip] = []
    both = range(_SOURCES)
    run_pass("sources", list(both), [cut(), captions()], "ray", done.append)
    return len(done)


def main() -> None:
    """Print a JSON line for each turn."""
    import ray

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    for _ in range(options.turns):
        row: dict[str, float] = {}
        for work in (apart, together):
            began = time.monotonic()
            assert work() == _SOURCES * _CLIPS
            row[work.__name__] = round(time.monotonic() - began, 1)
        print(json.dumps(row | {"ratio": round(row["together"] / row["apart"], 2)}), flush=True)


if __name__ == "__main__":
    main()
