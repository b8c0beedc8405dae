"""Search in a finished dataset: by words, by a sample, by a picture, by a video."""

import hashlib
import io
import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelweave.curate.models.embed import ClipEmbedder, EmbedConfig, Embedding
from reelweave.curate.search.search import WEIGHTS_VERSION, ClipSearch
from reelweave.loader.dataset import Dataset, DatasetWriter, Sample, open_dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from tests.commands import reelweave
from tests.media import write_video
from tests.tiny_models import tiny_open_clip

CLIPS = 6


def sample(number: int, clip: bytes, vector: np.ndarray | None) -> Sample:
    row = {
        "key": hashlib.sha256(str(number).encode()).hexdigest()[:20],
        "frames": 12,
        "fps": 25.0,
        "height": 128,
        "width": 160,
        "duration_s": 0.48,
        "text_tokens": 2,
        "caption": f"[bold]clip[/bold] number {number}",
        "caption_source": "input",
        "source": f"raw/{number}.mp4",
        "source_sha256": f"{number:064x}",
        "start_s": 0.0,
        "end_s": 0.48,
        "scores": {},
        "sha256": hashlib.sha256(clip).hexdigest(),
    }
    return Sample(row, clip, {} if vector is None else {"video.npy": vector})


def write(
    folder: Path,
    samples: list[Sample],
    config: EmbedConfig | None = None,
    versions: dict[str, str] | None = None,
) -> Dataset:
    said = {"curate": {"embed": (config or EmbedConfig()).model_dump(mode="json")}}
    with DatasetWriter(
        open_storage(folder), max_shard_bytes=20_000, config=said, versions=versions
    ) as writer:
        for item in samples:
            writer.add(item)
    return open_dataset(folder)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EmbedConfig:
    folder = tiny_open_clip(tmp_path_factory.mktemp("model"))
    return EmbedConfig(backend="open_clip", model=str(folder), device="cpu", frames=3)


@pytest.fixture(scope="module")
def embedder(config: EmbedConfig) -> ClipEmbedder:
    return ClipEmbedder(config)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("clips")
    # Scenes before the last one are one frame long, so that each clip shows another scene.
    return [write_video(folder / f"{n}.mp4", (*([1] * n), 12)) for n in range(CLIPS)]


@pytest.fixture(scope="module")
def vectors(embedder: ClipEmbedder, clips: list[Path]) -> list[np.ndarray]:
    found = embedder([clip.read_bytes() for clip in clips])
    return [item.vector for item in found if isinstance(item, Embedding)]


@pytest.fixture(scope="module")
def dataset(
    tmp_path_factory: pytest.TempPathFactory,
    clips: list[Path],
    vectors: list[np.ndarray],
    embedder: ClipEmbedder,
    config: EmbedConfig,
) -> Dataset:
    samples = [sample(n, clip.read_bytes(), vectors[n]) for n, clip in enumerate(clips)]
    samples.append(sample(CLIPS, clips[0].read_bytes(), None))
    versions = {WEIGHTS_VERSION: embedder.fingerprint()["weights_sha256"]}
    return write(tmp_path_factory.mktemp("out") / "dataset", samples, config, versions)


def sources(dataset: Dataset, hits: list) -> list[str]:
    return [dataset.row(hit.row_number)["source"] for hit in hits]


def test_words_find_the_nearest_by_cosine(
    dataset: Dataset, embedder: ClipEmbedder, vectors: list[np.ndarray]
) -> None:
    hits = ClipSearch(dataset).by_words("a red kite", embedder, 4)
    query = embedder.text(["a red kite"])[0]
    cosines = [float(v.astype(np.float32) @ query / np.linalg.norm(v.astype(np.float32))) for v in vectors]
    order = sorted(range(CLIPS), key=lambda n: -cosines[n])[:4]
    assert sources(dataset, hits) == [f"raw/{n}.mp4" for n in order]
    np.testing.assert_allclose([hit.score for hit in hits], [cosines[n] for n in order], atol=1e-3)


def test_a_sample_is_not_its_own_neighbour(dataset: Dataset) -> None:
    own = dataset.row_numbers[sample(2, b"", None).row["key"]]
    hits = ClipSearch(dataset).by_key(dataset.row(own)["key"], 100)
    assert len(hits) == CLIPS - 1
    assert own not in [hit.row_number for hit in hits]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_video_finds_its_own_clip(dataset: Dataset, embedder: ClipEmbedder, clips: list[Path]) -> None:
    hits = ClipSearch(dataset).by_file(str(clips[3]), embedder, 1)
    assert sources(dataset, hits) == ["raw/3.mp4"]
    assert hits[0].score == pytest.approx(1, abs=2e-3)


def test_a_picture_finds_the_clip_it_is_taken_from(
    dataset: Dataset, embedder: ClipEmbedder, clips: list[Path], tmp_path: Path
) -> None:
    with av.open(str(clips[4])) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
    frames[10].save(tmp_path / "picture.png")
    hits = ClipSearch(dataset).by_file(str(tmp_path / "picture.png"), embedder, 1)
    assert sources(dataset, hits) == ["raw/4.mp4"]


def test_samples_without_an_embedding_are_left_out(dataset: Dataset) -> None:
    search = ClipSearch(dataset)
    assert search.searched == CLIPS
    bare = next(
        row["key"] for row in map(dataset.row, range(dataset.index.num_rows)) if not row["embeddings"]
    )
    with pytest.raises(UsageError, match="has no embedding"):
        search.by_key(bare, 3)


def test_a_dataset_without_embeddings_says_so(tmp_path: Path, clips: list[Path]) -> None:
    bare = write(tmp_path / "bare", [sample(0, clips[0].read_bytes(), None)])
    with pytest.raises(UsageError, match="holds no video embeddings"):
        ClipSearch(bare).by_key(bare.row(0)["key"], 3)


def test_another_model_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    other = tiny_open_clip(tmp_path / "other", seed=7)
    with pytest.raises(UsageError, match="other weights"):
        ClipSearch(dataset).by_words(
            "snow", ClipEmbedder(EmbedConfig(backend="open_clip", model=str(other))), 3
        )


def test_vectors_of_different_length_are_named(tmp_path: Path, clips: list[Path]) -> None:
    clip = clips[0].read_bytes()
    mixed = write(tmp_path / "mixed", [sample(n, clip, np.ones(4 + n % 2, np.float16)) for n in range(3)])
    with pytest.raises(RunError, match="numbers, others have"):
        ClipSearch(mixed).by_key(mixed.row(0)["key"], 3)


def test_what_does_not_fit_in_memory_is_refused(dataset: Dataset) -> None:
    with pytest.raises(RunError, match="more than"):
        ClipSearch(dataset, max_bytes=100).by_key(sample(0, b"", None).row["key"], 3)


def test_a_header_that_promises_terabytes_allocates_nothing(tmp_path: Path, clips: list[Path]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": (1 << 42,)})
    lying = write(
        tmp_path / "lying", [Sample(sample(0, b"x", None).row, b"x", {"video.npy": file.getvalue()})]
    )
    with pytest.raises(RunError, match="is no vector"):
        ClipSearch(lying).by_key(lying.row(0)["key"], 3)


def test_a_file_that_is_neither_is_named(dataset: Dataset, embedder: ClipEmbedder, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no picture")
    with pytest.raises(RunError, match="neither a picture nor a video"):
        ClipSearch(dataset).by_file(str(tmp_path / "note.txt"), embedder, 3)


def test_a_damaged_picture_is_named(dataset: Dataset, embedder: ClipEmbedder, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    (tmp_path / "half.png").write_bytes(file.getvalue()[:5000])
    with pytest.raises(RunError, match=r"half\.png is a picture that cannot be read"):
        ClipSearch(dataset).by_file(str(tmp_path / "half.png"), embedder, 3)


def test_the_command_prints_the_nearest_as_json(dataset: Dataset) -> None:
    model = dataset.manifest.config["curate"]["embed"]["model"]
    done = reelweave("search", dataset.storage.root, "a red kite", "--top", "2", "--json", "--model", model)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["searched"] == CLIPS
    assert [set(hit) for hit in found["hits"]] == [
        {"key", "score", "source", "start_s", "end_s", "caption"}
    ] * 2


def test_the_command_prints_a_table(dataset: Dataset) -> None:
    key = sample(2, b"", None).row["key"]
    done = reelweave("search", dataset.storage.root, "--like", key, "--top", "3")
    assert reelweave("search", dataset.storage.root, "--like", key[:-1], "--top", "3").stdout == done.stdout
    assert done.returncode == 0, done.stderr
    assert "[bold]" in done.stdout


def test_words_in_a_dataset_of_perceptual_embeddings_are_a_wrong_call(
    tmp_path: Path, clips: list[Path]
) -> None:
    made = write(tmp_path / "made", [sample(0, clips[0].read_bytes(), np.ones(8, np.float16))])
    done = reelweave("search", made.storage.root, "snow")
    assert done.returncode == 2
    assert "embed.backend=open_clip" in done.stderr
