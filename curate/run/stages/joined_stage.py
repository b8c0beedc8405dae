"""Stages over clips that share one function, and so one model, as one stage of a runner."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.model_stage import ModelStage
from reelweave.curate.source_pass.tasks import ClipTask, CurationTask


@dataclass(frozen=True)
class JoinedStage:
    """Several stages whose function answers for all of them at once; called as `ClipStage`.

    Attributes:
        stages: The stages, in order; each passes a clip on to the next one.
    """

    stages: tuple[ClipStage, ...]

    @property
    def name(self) -> str:
        """Name of the first stage, for timings and messages."""
        return self.stages[0].name

    @property
    def function(self) -> Any:
        """Function that computes the results of all stages at once."""
        return self.stages[0].function

    def __call__(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the results where there was something to do."""
        return self.record(self.run_model(self.prepare_tasks(tasks)))

    def prepare_tasks(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the inputs of the stages that have something to do, by name."""
        return [self._prepare(task) if isinstance(task, ClipTask) else task for task in tasks]

    def run_model(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the answers in place of the inputs."""
        questions = [
            (at, name, replace(task, input=stage_input))
            for at, task in enumerate(tasks)
            if isinstance(task, ClipTask) and task.input is not None
            for name, stage_input in task.input.items()
        ]
        answers: dict[int, dict[str, Any]] = {}
        if questions:
            results = self.function([task for _, _, task in questions], lambda task: task.input)
            for (at, name, _), answer in zip(questions, results, strict=True):
                answers.setdefault(at, {})[name] = answer
        return [
            replace(task, input=None, answer=answers[at])
            if isinstance(task, ClipTask) and at in answers
            else task
            for at, task in enumerate(tasks)
        ]

    def record(self, tasks: Sequence[CurationTask]) -> list[CurationTask]:
        """Return every task, with the answers recorded in the ledger."""
        return [self._record(task) if isinstance(task, ClipTask) else task for task in tasks]

    def _prepare(self, task: ClipTask) -> ClipTask:
        inputs: dict[str, Any] = {}
        for stage in self.stages:
            [prepared] = stage.prepare_tasks([task])
            assert isinstance(prepared, ClipTask)
            if prepared.undone:  # the machine keeps it from being read
                return prepared
            if stage.name in task.todo:
                inputs[stage.name] = prepared.input
        return replace(task, input=inputs) if inputs else task

    def _record(self, task: ClipTask) -> ClipTask:
        answers = task.answer or {}
        for stage in self.stages:
            if stage.name in answers:
                [recorded] = stage.record([replace(task, answer=answers[stage.name])])
                assert isinstance(recorded, ClipTask)
                task = recorded
        # Of a clip that the first stage failed no later one has an entry.
        return replace(task, answer=None) if answers else task


def join_stages(
    stages: Sequence[tuple[ClipStage, ModelStage]],
) -> list[tuple[ClipStage | JoinedStage, ModelStage]]:
    """Return stages, adjacent ones of one function as one, each as the first of them is asked for."""
    stage_groups: list[tuple[ClipStage | JoinedStage, ModelStage]] = []
    for _, group in groupby(stages, lambda pair: id(pair[0].function)):
        members = list(group)
        first, configured = members[0]
        alone = len(members) == 1
        stage_groups.append(
            (first if alone else JoinedStage(tuple(stage for stage, _ in members)), configured)
        )
    return stage_groups
