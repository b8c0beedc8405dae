"""Embeddings of clips, through a real open_clip model of random weights."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reelweave.curate.models.clip_frames import Fault, clip_pictures
from reelweave.curate.models.embed import ClipEmbedder, EmbedConfig, Embedding, pool_frames
from reelweave.loader.errors import UsageError
from tests.media import write_video
from tests.tiny_models import Program, tiny_open_clip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_open_clip(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    scenes = [(30,), (10, 20), (3,), (15, 15)]
    return [
        write_video(folder / f"{number}.mp4", frames, size=(160 + 32 * number, 128)).read_bytes()
        for number, frames in enumerate(scenes)
    ]


def embedder(model: Path, **changes: object) -> ClipEmbedder:
    return ClipEmbedder(EmbedConfig(backend="open_clip", model=str(model), device="cpu", **changes))


def test_an_embedding_is_the_mean_of_the_pictures_vectors(model: Path, clips: list[bytes]) -> None:
    found = embedder(model)(clips[:1])[0]
    assert isinstance(found, Embedding)
    assert found.frames.shape == (8, 32)
    assert found.vector.dtype == np.float16
    np.testing.assert_allclose(np.linalg.norm(found.frames, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(found.vector, pool_frames(found.frames).astype(np.float16))
    np.testing.assert_allclose(found.times_s[[0, -1]], [1 / 25, 28 / 25])


def test_pictures_are_encoded_as_open_clip_itself_does(model: Path, clips: list[bytes]) -> None:
    import open_clip

    reference, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{model}")
    pictures = clip_pictures(clips[0], count=3)[0]
    batch = torch.stack([prepare(Image.fromarray(picture)) for picture in pictures])
    with torch.no_grad():
        expected = reference.eval().encode_image(batch, normalize=True).numpy()
    np.testing.assert_allclose(embedder(model).pictures(list(pictures)), expected, atol=1e-5)


def test_words_are_encoded_as_open_clip_itself_does(model: Path) -> None:
    import open_clip

    reference = open_clip.create_model(f"local-dir:{model}").eval()
    words = ["a red kite", "snow"]
    with torch.no_grad():
        tokens = open_clip.get_tokenizer(f"local-dir:{model}")(words)
        expected = reference.encode_text(tokens, normalize=True).numpy()
    np.testing.assert_allclose(embedder(model).text(words), expected, atol=1e-5)


def test_neighbours_in_a_batch_change_nothing(model: Path, clips: list[bytes]) -> None:
    work = embedder(model, batch_clips=3)
    together = work(clips)
    for clip, found in zip(clips, together, strict=True):
        np.testing.assert_array_equal(work([clip])[0].vector, found.vector)


def test_a_clip_of_fewer_frames_than_pictures_is_embedded(model: Path, clips: list[bytes]) -> None:
    assert embedder(model)(clips[2:3])[0].frames.shape == (3, 32)


def test_a_broken_clip_is_a_fault_and_costs_no_neighbour(model: Path, clips: list[bytes]) -> None:
    work = embedder(model)
    found = work([clips[0], clips[1][:500], clips[1]])
    assert isinstance(found[1], Fault)
    assert "does not decode" in found[1].reason
    np.testing.assert_array_equal(found[2].vector, work(clips[1:2])[0].vector)


def test_a_worker_gets_the_configuration_and_not_the_model(model: Path, clips: list[bytes]) -> None:
    work = embedder(model)
    before = work(clips[:1])[0].vector
    sent = pickle.dumps(work)
    assert len(sent) < 10_000
    np.testing.assert_array_equal(pickle.loads(sent)(clips[:1])[0].vector, before)


def test_the_fingerprint_names_the_weights(model: Path, tmp_path: Path) -> None:
    other = tiny_open_clip(tmp_path / "other", seed=1)
    copy = tiny_open_clip(tmp_path / "copy", seed=0)
    one = embedder(model).fingerprint()
    assert one["model"] == str(model)
    assert one["weights_sha256"] == embedder(copy).fingerprint()["weights_sha256"]
    assert one["weights_sha256"] != embedder(other).fingerprint()["weights_sha256"]


def wrong(**config: object) -> str:
    with pytest.raises(UsageError) as caught:
        ClipEmbedder(EmbedConfig(backend="open_clip", **config)).check()
    return str(caught.value)


def test_a_misspelt_model_is_answered_with_the_nearest() -> None:
    assert "ViT-B-32" in wrong(model="ViT-B-23")


def test_a_model_without_weights_is_refused_rather_than_random() -> None:
    assert "embed.pretrained" in wrong(model="ViT-B-32")


def test_a_misspelt_tag_is_answered_with_the_nearest() -> None:
    assert "near: laion2b_e16" in wrong(model="ViT-B-32", pretrained="laion2b")


def test_weights_of_another_activation_are_refused() -> None:
    assert "embed.model=ViT-L-14-quickgelu" in wrong(model="ViT-L-14", pretrained="openai")


def test_a_folder_that_is_not_there_is_named() -> None:
    assert "no folder ./gone" in wrong(model="./gone")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "model")
    (folder / "open_clip_model.safetensors").unlink()
    assert "holds no weights" in wrong(model=str(folder))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "model", width=32)
    other = tiny_open_clip(tmp_path / "other", width=48)
    (other / "open_clip_model.safetensors").replace(folder / "open_clip_model.safetensors")
    assert "weights made for this model" in wrong(model=str(folder))


def test_a_damaged_file_of_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "model")
    weights = folder / "open_clip_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot be loaded" in wrong(model=str(folder))


def test_weights_that_are_a_program_are_not_run(tmp_path: Path) -> None:
    folder = tiny_open_clip(tmp_path / "model")
    (folder / "open_clip_model.safetensors").unlink()
    torch.save({"state_dict": Program(tmp_path / "ran")}, folder / "open_clip_pytorch_model.bin")
    assert "cannot be loaded" in wrong(model=str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_model_that_only_a_hub_has_is_said_to_be_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "nobody/nothing is not in this machine's model cache" in wrong(model="hf-hub:nobody/nothing")


def test_the_perceptual_embedding_needs_no_model(clips: list[bytes]) -> None:
    work = ClipEmbedder(EmbedConfig())
    work.check()
    one, other = work([clips[0], clips[3]])
    assert abs(float(np.linalg.norm(one.vector.astype(np.float32))) - 1) < 1e-2
    assert one.vector.shape == other.vector.shape
    assert not np.array_equal(one.vector, other.vector)


def test_a_picture_is_perceived_like_the_clip_it_is_taken_from(clips: list[bytes]) -> None:
    work = ClipEmbedder(EmbedConfig())
    picture = clip_pictures(clips[0], count=1)[0][0]
    vectors = np.stack([found.vector.astype(np.float32) for found in work(clips)])
    assert int((vectors @ work.pictures([picture])[0]).argmax()) == 0


def test_the_perceptual_embedding_knows_no_words() -> None:
    with pytest.raises(UsageError, match="open_clip"):
        ClipEmbedder(EmbedConfig()).text(["snow"])


def test_vectors_that_cancel_have_no_mean() -> None:
    assert pool_frames(np.array([[1, 0], [-1, 0]], np.float32)) is None
    assert pool_frames(np.array([[np.nan, 0]], np.float32)) is None


def test_clips_are_prepared_where_no_model_is(tmp_path: Path, clips: list[bytes]) -> None:
    folder = tiny_open_clip(tmp_path)
    here = embedder(folder)
    here.learn_preprocessing()
    there = pickle.loads(pickle.dumps(here))
    moved = folder.rename(tmp_path.parent / f"{tmp_path.name} moved")
    sample, fault = there.sample(clips[1]), there.sample(b"no clip")
    elsewhere = embedder(moved)
    (expected,) = elsewhere([clips[1]])
    found = elsewhere.embed([fault, sample])
    assert isinstance(found[0], Fault)
    np.testing.assert_array_equal(found[1].vector, expected.vector)
