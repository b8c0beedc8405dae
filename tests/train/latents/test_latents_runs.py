"""Runs that store latents: on Ray, after a kill, on S3, with published encoders; the same bytes each time."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.latents import LATENT, array_of
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.cli import main
from reelweave.pipelines.latents.run import make_latents
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.stored import StoredLatents, StoredText
from tests.energon import energon_samples
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.s3server import make_bucket, s3_server
from tests.thorough import but, nightly, thorough
from tests.train.clips import tiny_config
from tests.train.latents.latent_versions import (
    contents,
    killed_behind,
    losses,
    run_config,
    version,
    write_clips,
)
from tests.train.models.diffusers_vaes import FAMILIES, drawn, publish
from tests.train.published import publish_text, vocabulary

SMALL = {"max_shard_mb": 0.1}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="module")
def undisturbed(clips, tmp_path_factory) -> Path:
    """Several shards, written in this process."""
    out = tmp_path_factory.mktemp("undisturbed") / "set"
    assert len(version(clips, out, latents=SMALL).dataset.manifest.shards) > 4
    return out


def test_a_killed_run_goes_on_to_the_same_bytes(ranks, clips, undisturbed, tmp_path):
    ended = ranks.run(killed_behind, 1, str(clips), str(tmp_path / "set"), 3)
    assert ended.codes == [-9], ended.errors
    assert not (tmp_path / "set/manifest.json").exists()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "set/shards").glob("*.tar")}
    assert len(written) == 3
    with pytest.raises(UsageError, match=r"latents\.dtype was 'float32' and is 'float16' now"):
        version(clips, tmp_path / "set", latents=SMALL | {"dtype": "float16"})
    seen = []
    version(clips, tmp_path / "set", latents=SMALL, progress=seen.append)
    assert seen[0].done == 3
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert contents(tmp_path / "set") == contents(undisturbed)


@pytest.mark.parametrize("runner", but(["sequential"], ["sequential", "ray"], ()))
def test_captions_that_are_cut_off_are_counted(request, runner, published, tmp_path, capsys):
    """Lines that workers of Ray log are not seen."""
    if runner == "ray":
        request.getfixturevalue("ray_local")
    path = write_video(tmp_path / "9.mp4", (9,), size=(24, 16))
    samples = [make_sample(f"key{number}", path.read_bytes(), 9, (24, 16)) for number in range(5)]
    for sample in samples[:2]:
        sample.row["caption"] = "a dog"
    clips = write(tmp_path / "clips", samples)
    how = {"train_config": of(published, max_text_tokens=4), "latents": SMALL | {"runner": runner}}
    config = run_config(clips, tmp_path, **how).model_dump(mode="json")
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    command = [
        "latents",
        str(clips),
        "--config",
        str(tmp_path / "train.yaml"),
        "--out",
        str(tmp_path / "set"),
    ]
    assert main(command) == 0
    assert "3 of 5 captions have more than text.max_text_tokens = 4 tokens" in capsys.readouterr().out


@nightly
def test_workers_of_ray_write_the_same_bytes(ray_local, clips, undisturbed, tmp_path):
    made = version(clips, tmp_path / "set", latents=SMALL | {"runner": "ray", "workers": 2})
    assert verify(made.dataset.storage).ok
    assert contents(tmp_path / "set") == contents(undisturbed)


@thorough
def test_it_works_on_s3(clips, undisturbed, tmp_path):
    with s3_server() as endpoint:
        make_bucket(endpoint, "bucket")
        storage = StorageConfig(endpoint_url=endpoint)
        made = version(clips, "s3://bucket/set", latents=SMALL, storage=storage)
        assert made.dataset.manifest.shards == open_dataset(undisturbed).manifest.shards
        stream = run_config("unused", tmp_path).stream.model_copy(update={"epochs": 1})
        there, here = (
            [(batch.keys, batch.latents_BCTHW.sum().item()) for batch in VideoStream(one, stream)]
            for one in (made.dataset, open_dataset(undisturbed))
        )
        assert there == here


@thorough
def test_energon_opens_it(tmp_path):
    version(write_clips(tmp_path, count=4, shapeless=False), tmp_path / "new")
    made = open_dataset(tmp_path / "new")
    arrays = made.members(LATENT)
    expected = [(made.key(row), int(arrays.size[row])) for row in range(4)]
    assert energon_samples(tmp_path / "new", 4) == expected


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A pipeline's folder with Wan's VAE and text encoder, drawn."""
    folder = tmp_path_factory.mktemp("pipeline")
    publish(folder, "wan")
    publish_text(folder, kind="UMT5")
    words = vocabulary()
    end = ("</s>", words.eos_token_id)
    words.backend_tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[end])
    words.save_pretrained(folder / "tokenizer")
    return folder


def of(folder: Path, **text: object) -> TrainConfig:
    """A run with the encoders of a pipeline's folder."""
    config = tiny_config(6, every_steps=6)
    tokenizer = DiffusersVAEConfig(name=str(folder), slicing=True, **FAMILIES["wan"][2])
    changes = {
        "tokenizer": tokenizer.model_dump(),
        "text": {
            "kind": "transformers",
            "name": str(folder),
            "subfolder": "text_encoder",
            "tokenizer_subfolder": "tokenizer",
            "max_text_tokens": 8,
            **text,
        },
        "objective": {"name": "flow", "caption_dropout": 0.4},
        "model": {"hidden": 48, "heads": 2, "layers": 2, "patch": (1, 1, 1)},
    }
    return TrainConfig.model_validate(config.model_dump() | changes)


@thorough
def test_published_encoders_need_not_be_loaded(clips, published, tmp_path):
    config = of(published)
    version(clips, tmp_path / "set", train_config=config)
    made = open_dataset(tmp_path / "set")
    assert verify(made.storage).ok
    [empty] = made.latent_files().values()
    on_the_fly = losses(clips, tmp_path / "fly", train_config=config)
    # Of a caption alone and of one among others, the text encoder's last bits differ.
    assert losses(tmp_path / "set", tmp_path / "stored", train_config=config) == pytest.approx(
        on_the_fly, rel=1e-5
    )
    from reelweave.train.latents.stored_encoders import find_stored

    bundle = Bundle(config, stored=find_stored(config.encoders, [made.latents], empty))
    assert isinstance(bundle.tokenizer, StoredLatents)
    assert isinstance(bundle.text, StoredText)
    weights = dict(Bundle(config).dit.named_parameters())
    for name, weight in bundle.dit.named_parameters():
        assert torch.equal(weight, weights[name])


def test_encoders_with_other_weights_are_refused(clips, published, tmp_path):
    version(clips, tmp_path / "set", train_config=of(published))
    moved = shutil.copytree(published, tmp_path / "moved")
    losses(tmp_path / "set", tmp_path / "of moved", train_config=of(moved))
    drawn("wan", seed=1).save_pretrained(moved / "vae")
    with pytest.raises(UsageError, match=r"the files of train\.tokenizer\.name were others"):
        losses(tmp_path / "set", tmp_path / "of other", train_config=of(moved))
    with pytest.raises(UsageError, match=r"train\.text\.max_text_tokens was 8 and is 7 now"):
        losses(tmp_path / "set", tmp_path / "of less", train_config=of(published, max_text_tokens=7))


def test_stored_contexts_are_of_one_caption_and_dropped_for_the_empty_one(clips, published, tmp_path):
    config = of(published)
    version(clips, tmp_path / "set", train_config=config)
    made = open_dataset(tmp_path / "set")
    [data] = made.latent_files().values()
    empty = torch.from_numpy(array_of(data, "float32", (None, None), "empty").copy())
    stream = run_config("unused", tmp_path, train_config=config).stream
    dropping = stream.model_copy(update={"epochs": 8, "caption_dropout": 0.5})
    dropped = count = 0
    for batch in VideoStream(made, dropping):
        for caption, context in zip(batch.captions, batch.contexts, strict=True):
            assert torch.equal(context, empty) == (caption == "")
            dropped, count = dropped + (caption == ""), count + 1
    assert 0.3 < dropped / count < 0.7
    drawing = stream.model_copy(update={"captions": {"short": 1.0}})
    with pytest.raises(UsageError, match=r"draws short, but the dataset stores the contexts of one caption"):
        VideoStream(made, drawing)
    asked = run_config(clips, tmp_path, train_config=config).model_copy(update={"stream": drawing})
    with pytest.raises(UsageError, match=r"set latents\.context=false"):
        make_latents(str(clips), str(tmp_path / "other"), asked)


def test_ranks_that_share_a_stream_get_what_one_alone_gets(ranks, clips, published, tmp_path):
    version(clips, tmp_path / "set", train_config=of(published), latents={"on_the_fly": ("5x16x24",)})
    for size in (1, 2):
        ended = ranks.run(read_shared, size, str(tmp_path / "set"), str(tmp_path), str(published))
        assert ended.codes == [0] * size, ended.errors
    alone, *together = (json.loads((tmp_path / name).read_text()) for name in ("0-of-1", "0-of-2", "1-of-2"))
    assert alone
    assert together == [alone, alone]


def read_shared(dataset: str, out: str, folder: str) -> None:
    """Notes what microbatches and packs hold, read by all ranks together."""
    import torch.distributed as dist

    from reelweave.loader.read.share import Share

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(dist.get_default_backend_for_device("cpu"))
    found = []
    for way in ("step", "pack"):
        stream = run_config("unused", Path(out), train_config=of(Path(folder)), way=way).stream
        once = stream.model_copy(update={"epochs": 1})
        for batch in VideoStream(open_dataset(dataset), once, share=Share() if size > 1 else None):
            latents = getattr(batch, "latents_BCTHW", None)
            videos = getattr(batch, "videos", [latents] if latents is not None else [])
            numbers = [video.double().sum().item() for video in (*videos, *batch.contexts)]
            found.append([batch.keys, [list(video.shape) for video in videos], numbers])
    (Path(out) / f"{rank}-of-{size}").write_text(json.dumps(found))
    dist.destroy_process_group()
