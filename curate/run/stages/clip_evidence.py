"""Evidence beside the pictures of clips: what a question holds of it, as a task and as columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.camera_terms import CAMERA_SCORES, camera_terms
from reelweave.curate.caption.evidence import NO_EVIDENCE, Evidence, chosen_words
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.records import ClipEmbedding, ClipScores
from reelweave.curate.run.stages.clip_stages import Identity
from reelweave.curate.run.tables.clips import SCORE
from reelweave.curate.run.tables.closed import ClosedSources
from reelweave.curate.run.tables.columns import column
from reelweave.curate.source_pass.tasks import ClipTask


@dataclass(frozen=True)
class ClipEvidence:
    """Choice of the evidence of clips.

    Attributes:
        columns: Columns of the input list that are shown.
        camera: Name of the stage that measures the movement of the camera; "" where it is not told.
    """

    columns: tuple[str, ...] = ()
    camera: str = ""

    def of_task(self, task: ClipTask) -> Evidence:
        """Return the evidence of a clip."""
        result = task.found.get(self.camera)
        scores = result.scores if isinstance(result, ClipScores | ClipEmbedding) else None
        return Evidence(camera_terms(scores or {}), chosen_words(task.attributes, self.columns))

    def of_clips(
        self, clips: pa.Table, results: Mapping[str, pa.Table], closed: ClosedSources
    ) -> list[Evidence]:
        """Return the evidence of each clip; arguments as of `Identity`."""
        terms = [() for _ in range(len(clips))] if not self.camera else _terms(results[self.camera])
        if not self.columns:
            return [Evidence(clip_terms) for clip_terms in terms]
        spans = (column(clips, name).to_pylist() for name in ("source", "segment"))
        return [
            Evidence(clip_terms, chosen_words(closed.sources[index].attributes_of(segment), self.columns))
            for clip_terms, index, segment in zip(terms, *spans, strict=True)
        ]

    def identify(self, identity: Identity) -> Identity:
        """Return the identity of a result that depends on evidence, too; the same where nothing is told."""
        if not (self.columns or self.camera):
            return identity
        return Identity(partial(_task_id, self, identity), partial(_clip_ids, self, identity))


NOTHING_SHOWN = ClipEvidence()


def _terms(results: pa.Table) -> list[tuple[str, ...]]:
    names = [name for name in CAMERA_SCORES if f"{SCORE}{name}" in results.column_names]
    values = [column(results, f"{SCORE}{name}").to_pylist() for name in names]
    if not values:
        return [()] * len(results)
    return [
        camera_terms({name: score for name, score in zip(names, row, strict=True) if score is not None})
        for row in zip(*values, strict=True)
    ]


def _evidence_id(evidence: Evidence) -> str:
    return "none" if evidence == NO_EVIDENCE else digest(evidence.text)[:12]


def _task_id(evidence: ClipEvidence, identity: Identity, task: ClipTask) -> str:
    return f"{identity(task)}-{_evidence_id(evidence.of_task(task))}"


def _clip_ids(
    evidence: ClipEvidence,
    identity: Identity,
    clips: pa.Table,
    results: Mapping[str, pa.Table],
    closed: ClosedSources,
) -> pa.Array:
    ids = [_evidence_id(shown) for shown in evidence.of_clips(clips, results, closed)]
    return pc.binary_join_element_wise(
        identity.of_clips(clips, results, closed), pa.array(ids, pa.string()), "-"
    )
