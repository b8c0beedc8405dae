"""Scores of sampled videos by checkpoint, where `reelweave evaluate` has left them in a run's folder."""

from dataclasses import dataclass
from pathlib import Path

from reelweave.pipelines.report.run.lines import number, records
from reelweave.train.loop.logs.record import SCORES

_MOST_ROWS = 1000


@dataclass(frozen=True)
class Score:
    """Mean scores of the videos of one checkpoint.

    Attributes:
        step: optimizer steps of the checkpoint.
        prompt_set: name of captions and settings; scores of one name compare like with like.
        videos: number of videos.
        metrics: mean of each score by name.
    """

    step: int
    prompt_set: str
    videos: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class EvaluationScores:
    """Evaluation scores of a run.

    Attributes:
        rows: scores by prompt set and step.
    """

    rows: list[Score]

    @property
    def prompt_sets(self) -> list[str]:
        """Names of all prompt sets."""
        return list(dict.fromkeys(row.prompt_set for row in self.rows))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def points(self, prompt_set: str, name: str) -> list[tuple[int, float]]:
        """Return (step, mean) of a score of one prompt set."""
        rows = (row for row in self.rows if row.prompt_set == prompt_set)
        return [(row.step, row.metrics[name]) for row in rows if name in row.metrics]


def read_scores(run: Path) -> EvaluationScores:
    """Read a run's scores; a missing file has none."""
    scores: dict[tuple[str, int], Score] = {}
    for record in records(run / SCORES):
        step = number(record.get("step")) if record else None
        metrics = record.get("metrics") if record else None
        if record is None or step is None or not 0 <= step < 1 << 53 or not isinstance(metrics, dict):
            continue
        values = {
            str(name)[:80]: value
            for name, value_json in metrics.items()
            if (value := number(value_json)) is not None
        }
        prompts = str(record.get("prompt_set", ""))[:80]
        count = int(number(record.get("videos")) or 0)
        scores[prompts, int(step)] = Score(int(step), prompts, count, values)
    return EvaluationScores([scores[key] for key in sorted(scores)][-_MOST_ROWS:])
