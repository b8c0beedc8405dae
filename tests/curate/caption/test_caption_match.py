"""The match of captions and clips: a score of the stored embedding, and a threshold on it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.models.embed import ClipEmbedder
from reelweave.curate.run.curate import Outcome, curate
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.manifest import Removal
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from tests.chat_server import chat_server
from tests.media import write_video
from tests.tiny_models import tiny_open_clip

WORDS = {
    "a": "a red kite over the sea",
    "b": "two people walk along a street",
    "c": " ".join(["snow falls"] * 30),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_open_clip(tmp_path_factory.mktemp("model"))


@pytest.fixture
def films(tmp_path: Path) -> Path:
    for number, name in enumerate((*WORDS, "d")):
        write_video(tmp_path / f"raw/{name}.mp4", (40,), size=(320, 192), first_scene=3 * number)
        if name in WORDS:
            (tmp_path / f"raw/{name}.txt").write_text(WORDS[name])
    return tmp_path


def config(model: Path, match: bool = True, **values: object) -> CurateConfig:
    given: dict[str, Any] = {
        "run": {"runner": "sequential", "isolate": False},
        "spans": {"min_clip_s": 1},
        "embed": {"backend": "open_clip", "model": str(model), "device": "cpu"},
        "captions": {"match": match},
        "dedup": {"semantic": {"enabled": False}, "perceptual": {"enabled": False}},
        **values,
    }
    return CurateConfig.model_validate(given)


def run(folder: Path, settings: CurateConfig) -> Outcome:
    return curate([str(folder / "raw")], str(folder / "out"), settings, update=True)


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    found = open_dataset(folder / "out").index.to_pylist(maps_as_pydicts="strict")
    return {Path(row["source"]).stem: row for row in found}


def test_the_score_is_the_cosine_of_the_caption_and_the_stored_vector(films: Path, model: Path) -> None:
    outcome = run(films, config(model))
    dataset, found = open_dataset(films / "out"), rows(films)
    embedder = ClipEmbedder(config(model).embed)
    for name, row in found.items():
        if name not in WORDS:  # nothing to compare
            assert "caption_match" not in row["scores"]
            continue
        number = dataset.row_number(row["key"])
        assert number is not None
        stored = dataset.sample(number).embeddings["video.npy"]
        vector = np.asarray(np.load(io.BytesIO(stored)) if isinstance(stored, bytes) else stored, np.float64)
        cosine = embedder.text([WORDS[name]])[0] @ vector / np.linalg.norm(vector)
        assert row["scores"]["caption_match"] == pytest.approx(cosine, abs=6e-5)
    assert {name for name, row in found.items() if "caption_match_cut" in row["scores"]} == {"c"}
    assert any(
        note.startswith("1 clip has a caption that is longer than the model") for note in outcome.notes
    )
    assert verify(open_storage(films / "out")).problems == []
    # A take-down leaves no score of it in the ledger either.
    gone = found["a"]["key"]
    remove(dataset.storage, Removal(key=gone, date="2026-11-30", reason="asked", samples=0))
    held = [path for path in (films / "out/.ledger/caption_match").rglob("*") if path.is_file()]
    assert held
    assert not any(gone.encode() in path.read_bytes() or gone in path.name for path in held)
    # Without it, a dataset is what it was before there was such a score.
    run(films, config(model, match=False))
    assert not any("caption_match" in row["scores"] for row in rows(films).values())


def test_a_threshold_filters_and_another_caption_is_compared_anew(films: Path, model: Path) -> None:
    run(films, config(model))
    scores = {name: rows(films)[name]["scores"]["caption_match"] for name in WORDS}
    worst = min(scores, key=scores.__getitem__)
    bound = (sorted(scores.values())[0] + sorted(scores.values())[1]) / 2
    settings = config(model, match=False, filters={"min_caption_match": bound})
    outcome = run(films, settings)
    assert (
        "this update cuts no source and asks no model: it decides anew from stored results" in outcome.notes
    )
    assert set(rows(films)) == WORDS.keys() - {worst}
    accounted = open_dataset(films / "out").accounting.to_pylist()
    stages = {Path(row["source"]).stem: (row["state"], row["stage"]) for row in accounted if row["key"]}
    assert stages[worst] == ("filtered", "filter.caption_match")
    # A threshold on a score that a clip lacks fails it, as any does.
    assert stages["d"] == ("failed", "filter.caption_match")
    (films / f"raw/{worst}.txt").write_text("another caption")
    run(films, config(model))
    assert rows(films)[worst]["scores"]["caption_match"] != scores[worst]


def test_captions_by_a_model_are_compared_once_they_are_there(films: Path, model: Path) -> None:
    with chat_server() as server:
        captions = {"model": "teller", "backend": "endpoint", "endpoint_url": server.url, "short_side_px": 64}
        run(films, config(model, captions={**captions, "match": True, "overwrite_written": True}))
    assert {row["caption"] for row in rows(films).values()} == {"A red kite flies over the sea."}
    assert all("caption_match" in row["scores"] for row in rows(films).values())
    (record,) = pq.read_table(films / "out/scores.parquet").slice(0, 1).to_pylist(maps_as_pydicts="strict")
    assert "caption_match" in record["scores"]


def test_a_threshold_without_a_model_is_refused(films: Path) -> None:
    settings = CurateConfig.model_validate({"filters": {"min_caption_match": 0.2}})
    with pytest.raises(UsageError, match=r"min_caption_match needs .* set embed\.backend=open_clip"):
        run(films, settings)
    assert not (films / "out/.ledger/cut").exists()
    assert json.loads(settings.model_dump_json())["captions"]["match"] is False


def test_the_score_of_a_clip_depends_on_no_other(model: Path) -> None:
    embedder = ClipEmbedder(config(model).embed)
    together = embedder.text(list(WORDS.values()))
    alone = [embedder.text([words])[0] for words in WORDS.values()]
    np.testing.assert_array_equal(together, np.stack(alone))
