"""What was trained on, from the logs of runs that were killed."""

import json
from collections import Counter
from dataclasses import dataclass, field

from tests.bench.loader_rank import Drawn, Run, whole_lines


@dataclass
class Ledger:
    """What came of the runs of one stream."""

    counted: Counter[tuple[int, str]] = field(default_factory=Counter)  # epoch, key
    pixels: dict[Drawn, str] = field(default_factory=dict)
    redone: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, run: Run, first: int, behind: int) -> None:
        """Takes a run's logs, of which the steps from ``first`` to before ``behind`` were saved."""
        weights: dict[int, float] = dict.fromkeys(range(first, behind), 0.0)
        for rank in range(run.ranks):
            for line in whole_lines(run.log(rank)):
                step = json.loads(line)
                saved = step["step"] in weights
                if saved:
                    weights[step["step"]] += sum(weight for *_, weight in step["microbatches"])
                for keys, passes, pixels, weight in step["microbatches"]:
                    for drawn, digest in zip(zip(keys, passes, strict=True), pixels, strict=True):
                        if self.pixels.setdefault(drawn, digest) != digest:
                            self.wrong.append(
                                f"run {run.number}: the frames of {drawn} are others than before"
                            )
                    if weight and saved:
                        self.counted.update((step["epoch"], key) for key in keys)
                    self.redone += len(keys) if weight and not saved else 0
        self.wrong += [
            f"run {run.number}: the weights of step {step} add up to {weight}"
            for step, weight in weights.items()
            if abs(weight - 1) > 1e-9
        ]

    def compare(self, expected: dict[Drawn, str], epochs: int) -> list[str]:
        """What is wrong after the last run, beside what was already.

        Args:
            expected: digest of the frames of every sample of every epoch.
            epochs: that were streamed.
        """
        keys = {key for key, _ in expected}
        whole = Counter({(epoch, key): 1 for epoch in range(epochs) for key in keys})
        counts = [
            f"epoch {epoch}: {key} counts {self.counted[epoch, key]} times"
            for epoch, key in sorted(whole.keys() | self.counted.keys())
            if self.counted[epoch, key] != whole[epoch, key]
        ]
        frames = [
            f"the frames of {drawn} are not those of an undisturbed stream"
            for drawn, digest in sorted(self.pixels.items())
            if expected.get(drawn) != digest
        ]
        return self.wrong + counts + frames
