"""Captions that a stream draws: by weights, with fallbacks and dropout, the same on any ranks and after a resume."""

import json
import logging
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from reelweave.curate.foreign.run import index_tars
from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.blend import open_blend
from reelweave.loader.dataset import Content, Dataset, Row, Sample, open_dataset, publish, verify
from reelweave.loader.dataset.tables.captions import caption_names, further_captions
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.foreign_tars import by_tarfile, video
from tests.loader.stream_clips import BUCKETS, SAMPLES, config, make_sample, small, write

WEIGHTS = {"short": 0.3, "long": 0.6, "default": 0.1}
LACKING = "key03"
"""Key without a short caption."""


def row(key: str, name: str, number: int = 0, caption: str | None = "") -> Row:
    caption = f"{name} {number} of {key}" if caption == "" else caption
    return {
        "key": key,
        "name": name,
        "number": number,
        "caption": caption,
        "text_tokens": 4,
        "caption_source": "model:teller",
        "caption_provenance": {},
        "reason": "" if caption else "it refused",
    }


def rows_of(key: str) -> list[Row]:
    written = [row(key, "written", number) for number in range(3)]
    return [row(key, "short", 0, None if key == LACKING else ""), row(key, "long"), *written]


def with_captions(folder: Path, samples: list[Sample]) -> Dataset:
    """A dataset whose next revision has a table of captions, given in no order."""
    write(folder, samples)
    dataset = open_dataset(folder)
    further = {"captions": [one for sample in reversed(samples) for one in rows_of(sample.row["key"])]}
    content = Content(list(dataset.accounting.to_pylist()), config=dataset.manifest.config, further=further)
    publish(dataset.storage, dataset.shards(), content, dataset.manifest)
    return open_dataset(folder)


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Dataset:
    return with_captions(tmp_path_factory.mktemp("captioned") / "set", samples)


def drawn(batches: Iterator[Microbatch | Pack]) -> dict[tuple[str, int], str]:
    """Caption by key and pass."""
    return {
        (key, passed): caption
        for batch in batches
        for key, passed, caption in zip(batch.keys, batch.passes, batch.captions, strict=True)
    }


def name_of(key: str, caption: str) -> str:
    return "default" if caption == f"the caption of {key}" else caption.split()[0]


def test_captions_are_drawn_by_their_weights(captioned: Dataset) -> None:
    passes = 60
    found = drawn(iter(small(captioned, captions=WEIGHTS, epochs=passes)))
    assert len(found) == SAMPLES * passes
    for (key, _), caption in found.items():
        assert caption in (f"the caption of {key}", f"short 0 of {key}", f"long 0 of {key}")
    counts = Counter(name_of(key, caption) for (key, _), caption in found.items() if key != LACKING)
    shares = {name: count / counts.total() for name, count in counts.items()}
    assert shares == pytest.approx(WEIGHTS, abs=0.05)
    # One without the drawn caption keeps its own; the others are as likely as elsewhere.
    lacking = Counter(name_of(key, caption) for (key, _), caption in found.items() if key == LACKING)
    assert set(lacking) == {"long", "default"}
    assert lacking["long"] / passes == pytest.approx(0.6, abs=0.2)


def test_what_is_drawn_follows_from_seed_key_and_pass(captioned: Dataset) -> None:
    found = drawn(iter(small(captioned, captions=WEIGHTS)))
    ranks = [drawn(iter(small(captioned, rank, 3, captions=WEIGHTS))) for rank in range(3)]
    assert {**ranks[0], **ranks[1], **ranks[2]} == found
    # After a resume, in another process, on other ranks.
    first = small(captioned, captions=WEIGHTS)
    begun = drawn(islice(iter(first), 9))
    later = pickle.loads(pickle.dumps(small(captioned, captions=WEIGHTS)))
    later.load_state_dict(first.state_dict())
    assert {**begun, **drawn(iter(later))} == found
    assert drawn(iter(small(captioned, captions=WEIGHTS, seed=4))) != found
    # Weights that only have the same ratios are the same, and one of 0 is as if it were not there.
    tenfold = {"default": 1, "long": 6, "short": 3, "written": 0}
    assert drawn(iter(small(captioned, captions=tenfold))) == found


def test_written_captions_are_equally_likely(captioned: Dataset) -> None:
    found = drawn(iter(small(captioned, captions={"written": 1}, epochs=40)))
    counts = Counter(caption.split()[1] for caption in found.values())
    assert set(counts) == {"0", "1", "2"}
    assert min(counts.values()) > 0.25 * len(found)


def test_without_weights_nothing_changes(captioned: Dataset, dataset: Dataset) -> None:
    assert drawn(iter(small(captioned))) == drawn(iter(small(dataset)))


def test_samples_that_lack_a_caption_are_counted_by_the_first_rank(
    captioned: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    small(captioned, captions=WEIGHTS)
    small(captioned, 1, 2, captions=WEIGHTS)
    (record,) = (one for one in caplog.records if one.name == "reelweave.loader.stream.captions")
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"1 of {SAMPLES + 1} samples (5.56%) have no caption short: where it is drawn they keep their caption"
        " (stream.captions)"
    )


def test_captions_are_dropped_at_random(captioned: Dataset) -> None:
    plain = drawn(iter(small(captioned, captions=WEIGHTS, epochs=40)))
    found = drawn(iter(small(captioned, captions=WEIGHTS, epochs=40, caption_dropout=0.3)))
    empty = [draw for draw, caption in found.items() if not caption]
    assert len(empty) / len(found) == pytest.approx(0.3, abs=0.05)
    assert {draw: caption for draw, caption in found.items() if caption}.items() <= plain.items()
    alone = drawn(iter(small(captioned, epochs=40, caption_dropout=0.3)))
    assert [draw for draw, caption in alone.items() if not caption] == empty


def test_names_that_no_sample_has_are_refused(captioned: Dataset, dataset: Dataset) -> None:
    with pytest.raises(
        UsageError, match=r"stream\.captions\.brief: .*there are default, long, short, written, and"
    ):
        small(captioned, captions={"brief": 1, "long": 1})
    with pytest.raises(UsageError, match=r"stream\.captions\.long: .*there are default, and"):
        small(dataset, captions={"long": 1})
    with pytest.raises(ValidationError, match=r"captions has weights of 0 alone \(long\)"):
        config(captions={"long": 0})
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        config(captions={"long": -1})


def test_packs_count_the_longest_text_of_every_sample(captioned: Dataset) -> None:
    stream = small(captioned, captions=WEIGHTS, regime="pack", microbatches=2)
    assert set(stream.assignment.text_tokens.tolist()) == {BUCKETS.max_text_tokens}
    lengths = dict(zip(stream.assignment.buckets, stream.assignment.lengths, strict=True))
    for batch in islice(iter(stream), 3):
        assert isinstance(batch, Pack)
        assert list(batch.lengths) == [lengths[bucket] for bucket in batch.buckets]
    # Other steps than those of captions as they are: their state is no state of this stream.
    plain = small(captioned, regime="pack", microbatches=2)
    with pytest.raises(UsageError, match="config was"):
        stream.load_state_dict(plain.state_dict())
    steps = small(captioned, captions=WEIGHTS)
    steps.load_state_dict(small(captioned).state_dict())


def test_a_blend_draws_from_the_captions_of_each_dataset(
    captioned: Dataset, samples: list[Sample], tmp_path: Path
) -> None:
    others = [make_sample(f"other{n}", samples[0].clip, 7, (80, 64)) for n in range(4)]
    write(tmp_path / "others", others)
    with_captions(
        tmp_path / "third", [make_sample(f"third{n}", samples[0].clip, 7, (80, 64)) for n in range(4)]
    )
    nodes = [
        {"weight": 1, "path": path}
        for path in (str(tmp_path / "others"), captioned.storage.root, str(tmp_path / "third"))
    ]
    (tmp_path / "mix.yaml").write_text(json.dumps({"splits": {"train": {"blend": nodes}}}))
    stream = VideoStream(
        open_blend(tmp_path / "mix.yaml"), config(decode=False, workers=1, epochs=1, captions={"long": 1})
    )
    found = drawn(iter(stream))
    assert {key[:5] for key, _ in found} >= {"other", "third", "key00"}
    for (key, _), caption in found.items():
        assert caption == (f"the caption of {key}" if key.startswith("other") else f"long 0 of {key}")


def test_lists_in_tars_of_others_are_drawn_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clip = video(tmp_path, 0)
    texts = ["A boat.", "A boat on a lake.", "Water."]
    contents = {
        "a": {"mp4": clip, "json": json.dumps({"caption": texts}).encode()},
        "b": {"mp4": clip, "json": json.dumps({"caption": "A kite."}).encode()},
        "c": {"mp4": clip, "txt": b"A child."},
    }
    by_tarfile(tmp_path / "set/a.tar", contents.items())
    index_tars(str(tmp_path / "set"))
    buckets = BUCKETS.model_copy(update={"sizes": ((64, 96),), "max_batch": 1})
    with caplog.at_level(logging.INFO, "reelweave.loader.stream.captions"):
        stream = VideoStream(
            open_dataset(tmp_path / "set"),
            config(
                buckets=buckets, decode=False, workers=1, epochs=30, captions={"written": 3, "default": 1}
            ),
        )
    assert "is known when it is read" in caplog.text
    found = drawn(iter(stream))
    counts = Counter(caption for (key, _), caption in found.items() if key == "a")
    assert set(counts) == set(texts)
    assert counts["A boat."] > counts["Water."] > 0
    assert {caption for (key, _), caption in found.items() if key != "a"} == {"A kite.", "A child."}
    with pytest.raises(UsageError, match=r"stream\.captions\.long"):
        VideoStream(stream.source, config(buckets=buckets, captions={"long": 1}))


def test_the_table_is_read_by_rows_of_the_index(captioned: Dataset) -> None:
    captions = further_captions(captioned, ["written", "short"], captioned.node)
    assert captions is not None
    for row_number, key in enumerate(captioned.column("key").to_pylist()):
        assert captions.of(row_number, "short") == ([] if key == LACKING else [f"short 0 of {key}"])
        assert captions.of(row_number, "written") == [f"written {number} of {key}" for number in range(3)]
    assert len(captions.rows_with("short")) == len(captioned) - 1
    assert caption_names(captioned) == {"long": 18, "short": 17, "written": 54}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"key": "nobody"}, "captions.parquet has captions of nobody, but index.parquet does not have it"),
        ({"caption": None}, "captions.parquet: key00 has neither a caption nor a reason (short)"),
        ({"reason": "why"}, "captions.parquet: key00 has a caption, and a reason for none (short)"),
        ({"name": "long"}, "captions.parquet: key00 long 0 occurs twice"),
    ],
)
def test_captions_that_contradict_the_dataset_are_problems(
    change: dict[str, object], problem: str, samples: list[Sample], tmp_path: Path
) -> None:
    write(tmp_path, samples)
    dataset = open_dataset(tmp_path)
    rows = [row("key00", "long"), {**row("key00", "short"), **change}]
    content = Content(list(dataset.accounting.to_pylist()), config={}, further={"captions": rows})
    publish(dataset.storage, dataset.shards(), content, dataset.manifest)
    assert verify(dataset.storage).problems == [problem]
