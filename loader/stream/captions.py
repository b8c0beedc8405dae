"""Choice of each sample's caption in training: one of several by weights, or none by dropout; a pure function."""

import hashlib
import logging
from bisect import bisect_right
from itertools import accumulate
from typing import TypeGuard

from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.dataset.schema import WRITTEN
from reelweave.loader.dataset.tables.captions import FurtherCaptions, caption_names, further_captions
from reelweave.loader.errors import UsageError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.checks.unassigned import WORTH_A_WARNING, drawn_mask

DEFAULT = "default"
"""Name of the caption of the sample itself."""
_log = logging.getLogger(__name__)


class CaptionChoice:
    """Captions by weights of their names.

    What a sample gets follows from seed, key and pass alone, so it is the same on any rank and after a resume.

    Args:
        source: a dataset, or a blend of several.
        config: configuration of the stream.

    Raises:
        UsageError: no dataset has captions of a name, or contexts of other captions are stored.
    """

    def __init__(self, source: SampleSource, config: StreamConfig) -> None:
        weights = {name: weight for name, weight in sorted(config.captions.items()) if weight}
        self._seed, self._dropout = config.seed, config.caption_dropout
        self._names, self._ends = list(weights), list(accumulate(weights.values()))
        self._datasets = source.datasets if isinstance(source, Blend) else (source,)
        rows = [len(dataset.plan_index) for dataset in self._datasets]
        self._starts = [0, *accumulate(rows)][:-1]
        self._source, self._empty = source, None
        latents = source.latents if config.latents and config.decode else None
        if latents is not None and latents.text is not None:
            _check_contexts(self.names)
            first = self._datasets[0]
            if self._dropout and isinstance(first, Dataset):
                self._empty = memoryview(first.latent_files()[latents.text.empty])
        self._further = [self._read(dataset) for dataset in self._datasets]
        self._check_names()

    @property
    def names(self) -> list[str]:
        """Names of further captions that are drawn."""
        return [name for name in self._names if name != DEFAULT]

    def __call__(self, row_number: int, sample: TrainingSample, passed: int) -> TrainingSample:
        """Return a sample with the caption of this pass.

        Args:
            row_number: row of the sample in the source's index.
            sample: its content.
            passed: number of earlier draws of the sample.
        """
        if not (self._names or self._dropout):
            return sample
        drops, which, nth = _uniform(f"{self._seed}/{passed}/{sample.key}/caption")
        if drops < self._dropout:
            return sample._replace(caption="", context=self._empty or sample.context)
        if not self._names:
            return sample
        name = self._names[bisect_right(self._ends, which * self._ends[-1], hi=len(self._ends) - 1)]
        captions = self._captions_of(row_number, sample, name)
        return sample._replace(caption=captions[int(nth * len(captions))]) if captions else sample

    def log_missing(self) -> None:
        """Log how many samples lack each caption that is drawn, and so keep their own; a warning from 1 % on."""
        drawn_N = drawn_mask(self._source)
        samples = int(drawn_N.sum())
        for name in self.names:
            present = 0
            for start, further, dataset in zip(self._starts, self._further, self._datasets, strict=True):
                if _reads_lists(dataset, name):
                    _log.info(
                        "%s has tars of other origin: whether a sample has a list of captions is known when it is read;"
                        " one without keeps its caption (stream.captions)",
                        dataset.storage.root,
                    )
                    present += int(drawn_N[start : start + len(dataset.plan_index)].sum())
                elif further is not None:
                    present += int(drawn_N[start + further.rows_with(name)].sum())
            if lacking := samples - present:
                share = lacking / samples
                _log.log(
                    logging.WARNING if share >= WORTH_A_WARNING else logging.INFO,
                    "%s of %s samples (%.2f%%) have no caption %s: where it is drawn they keep their caption"
                    " (stream.captions)",
                    f"{lacking:,}",
                    f"{samples:,}",
                    100 * share,
                    name,
                )

    def _read(self, dataset: object) -> FurtherCaptions | None:
        if not self.names or not isinstance(dataset, Dataset):
            return None
        return further_captions(dataset, self.names, dataset.node)

    def _check_names(self) -> None:
        """Raise a `UsageError` for a name under which no dataset has captions."""
        for name in self.names:
            present = any(further is not None and len(further.rows_with(name)) for further in self._further)
            if not present and not any(_reads_lists(dataset, name) for dataset in self._datasets):
                raise UsageError(
                    f"stream.captions.{name}: no sample has a caption of this name; {self._describe_names()}"
                )

    def _describe_names(self) -> str:
        """Return in words which names there are."""
        datasets = [dataset for dataset in self._datasets if isinstance(dataset, Dataset)]
        names = sorted({name for dataset in datasets for name in caption_names(dataset)})
        there = ", ".join([DEFAULT, *names])
        return f"there are {there}, and captions.variants of `reelweave curate` makes others"

    def _captions_of(self, row_number: int, sample: TrainingSample, name: str) -> list[str]:
        if name == DEFAULT:
            return []
        if name == WRITTEN and sample.captions:
            return list(sample.captions)
        index = self._source.dataset_of(row_number)
        further = self._further[index]
        return [] if further is None else further.of(row_number - self._starts[index], name)


def _check_contexts(names: list[str]) -> None:
    if names:
        raise UsageError(
            f"stream.captions draws {', '.join(names)}, but the dataset stores the contexts of one caption for each"
            " sample: leave stream.captions out, make a version with latents.context=false, or set"
            " stream.latents=false where the clips are there"
        )


def _reads_lists(dataset: object, name: str) -> TypeGuard[Dataset]:
    """Return whether captions of a name are read from the lists in tars of other origin."""
    return name == WRITTEN and isinstance(dataset, Dataset) and dataset.manifest.foreign is not None


def _uniform(words: str) -> list[float]:
    """Return three numbers in [0, 1) that follow from some words."""
    digest = hashlib.sha256(words.encode()).digest()
    return [(int.from_bytes(digest[at : at + 8], "little") >> 11) * 2.0**-53 for at in (0, 8, 16)]
