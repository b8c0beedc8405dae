"""Training from stored latents: the same run as on the fly, from a dataset that proves itself whole."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset

from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset, verify
from reelweave.loader.dataset.latents import LATENT
from reelweave.loader.dataset.tables import parquet, table_reader
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.cli import main
from reelweave.pipelines.configuration.train_config import HeldOutConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.latents.stored_encoders import find_stored
from reelweave.train.loop.logs.record import LOSSES
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.stored import StoredLatents
from tests.thorough import but, thorough
from tests.train.clips import tiny_config
from tests.train.latents.latent_versions import (
    MIXED,
    WAYS,
    contents,
    losses,
    run_config,
    version,
    write_clips,
)


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
def whole(clips, tmp_path_factory) -> Path:
    """Every bucket stored, in float32."""
    return Path(version(clips, tmp_path_factory.mktemp("whole") / "set").dataset.storage.root)


@pytest.fixture(scope="module")
def mixed(clips, tmp_path_factory) -> Path:
    """One bucket on the fly."""
    return Path(version(clips, tmp_path_factory.mktemp("mixed") / "set", latents=MIXED).dataset.storage.root)


@pytest.mark.parametrize("way", but(("pack",), WAYS))
def test_a_run_is_the_same_to_the_last_bit(clips, whole, mixed, tmp_path, way):
    on_the_fly = losses(clips, tmp_path / "fly", way=way)
    assert losses(whole, tmp_path / "whole", way=way) == on_the_fly
    assert losses(mixed, tmp_path / "mixed", way=way) == on_the_fly


@thorough
def test_float16_is_the_same_but_for_its_rounding(clips, whole, tmp_path):
    dataset = version(clips, tmp_path / "set", latents={"dtype": "float16"}).dataset
    found = losses(dataset.storage.root, tmp_path / "half")
    assert found == pytest.approx(losses(whole, tmp_path / "whole"), rel=2e-3)
    for number in range(15):
        half, full = (
            webdataset.autodecode.npy_loads(one.read_member(number, LATENT))
            for one in (dataset, open_dataset(whole))
        )
        np.testing.assert_allclose(half, full, rtol=2**-11, atol=2**-24)


def test_the_new_version_is_a_dataset_that_proves_itself(clips, whole, mixed):
    for folder in (whole, mixed):
        found = verify(open_dataset(folder).storage)
        assert found.ok, found.problems
    source, new = open_dataset(clips), open_dataset(whole)
    assert new.index.column("key").equals(source.index.column("key"))
    assert new.latents.source_index == source.manifest.index_sha256
    assert new.manifest.totals.clip_bytes == 0
    first = str(whole / new.manifest.shards[0].path)
    [sample] = webdataset.WebDataset(first, shardshuffle=False).slice(1)
    assert sample["__key__"] == "key00"
    assert sample["latent.npy"][:6] == b"\x93NUMPY"
    assert json.loads(sample["json"])["caption"].encode() == sample["txt"]


def test_no_tokenizer_is_loaded_where_all_is_stored(whole, mixed):
    config = run_config("unused", Path("unused")).train
    of_whole, of_mixed = (
        find_stored(config.encoders, [open_dataset(one).latents], None) for one in (whole, mixed)
    )
    assert isinstance(Bundle(config, stored=of_whole).tokenizer, StoredLatents)
    assert not isinstance(Bundle(config, stored=of_mixed).tokenizer, StoredLatents)
    assert (
        find_stored(config.encoders, [open_dataset(whole).latents, None], None).channels is None
    )  # clips held out


@thorough
def test_clips_held_out_have_the_same_losses(clips, whole, tmp_path):
    found = []
    for dataset, held_out in ((clips, clips), (whole, clips), (whole, whole)):
        out = tmp_path / f"{dataset.parent.name}-{held_out.parent.name}"
        losses(dataset, out, held_out=HeldOutConfig(dataset=str(held_out), every_steps=6, steps=2))
        found.append((out / LOSSES).read_text())
    assert '"of": "held_out"' in found[0]
    assert found[0] == found[1] == found[2]


def test_a_flipped_byte_is_found_and_another_sample_stands_in(clips, tmp_path):
    new = version(clips, tmp_path / "set").dataset
    row = new.row(4)
    [member] = [one for one in row["members"] if one["suffix"] == LATENT]
    shard = tmp_path / "set" / row["shard"]
    data = bytearray(shard.read_bytes())
    data[member["offset"] + member["size"] // 2] ^= 1
    shard.write_bytes(data)
    found = verify(new.storage)
    assert [f"damaged (in {row['key']}.{LATENT})" in problem for problem in found.problems] == [True]
    config = run_config(tmp_path / "set", tmp_path)
    once = config.stream.model_copy(update={"epochs": 1})
    seen = list(VideoStream(open_dataset(tmp_path / "set"), once))
    assert [bad.key for batch in seen for bad in batch.bad] == [row["key"]]
    assert sum(len(batch.keys) for batch in seen if batch.weight) == 15


def test_a_large_dataset_is_read_by_parts_to_the_same_bytes(clips, mixed, tmp_path, monkeypatch):
    monkeypatch.setattr(table_reader, "GROUP_ROWS", 5)
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 3)
    version(clips, tmp_path / "new", latents=MIXED)
    assert contents(tmp_path / "new") == contents(mixed)


def test_a_sample_that_cannot_be_decoded_is_a_row(tmp_path):
    clips = write_clips(tmp_path)
    row = open_dataset(clips).row(3)
    [member] = [one for one in row["members"] if one["suffix"] == "mp4"]
    shard = clips / row["shard"]
    data = bytearray(shard.read_bytes())
    data[member["offset"] + 20] ^= 1
    shard.write_bytes(data)
    new = version(clips, tmp_path / "new").dataset
    assert new.manifest.totals.accounting == {"kept": 15, "filtered": 0, "duplicate": 0, "failed": 1}
    [failed] = [one for one in new.accounting.to_pylist() if one["state"] == "failed"]
    assert (failed["key"], failed["stage"]) == (row["key"], "latents")
    assert "damaged" in failed["reason"]
    assert verify(new.storage).ok


def test_views_are_taken_in_turn(clips, tmp_path):
    version(clips, tmp_path / "two", latents={"views": 2}, mode="window")
    # One, unless it is said how many.
    version(clips, tmp_path / "one", mode="window")
    # Six steps are more than one pass, and less than two.
    on_the_fly = losses(clips, tmp_path / "fly", mode="window")
    assert losses(tmp_path / "two", tmp_path / "of two", mode="window") == on_the_fly
    first_pass = losses(tmp_path / "one", tmp_path / "of one", mode="window")
    assert first_pass[0] == on_the_fly[0]
    assert first_pass != on_the_fly


def test_other_buckets_and_other_tokenizers_are_refused(whole, tmp_path):
    config = run_config(whole, tmp_path)
    buckets = config.stream.buckets.model_copy(update={"frames": (1, 5)})
    with pytest.raises(UsageError, match=r"stream\.buckets\.frames was \[1, 5, 9\] and is \[1, 5\] now"):
        VideoStream(open_dataset(whole), config.stream.model_copy(update={"buckets": buckets}))
    tokenizer = config.train.tokenizer.model_copy(update={"height": 4})
    other = config.train.model_copy(update={"tokenizer": tokenizer})
    with pytest.raises(UsageError, match=r"train\.tokenizer\.height was 2 and is 4 now"):
        find_stored(other.encoders, [open_dataset(whole).latents], None)


def test_what_is_there_is_never_overwritten(clips, whole, tmp_path):
    before = (whole / "manifest.json").read_bytes()
    assert version(clips, whole).already_there
    with pytest.raises(UsageError, match=r"latents\.dtype was 'float32' and is 'float16' now"):
        version(clips, whole, latents={"dtype": "float16"})
    with pytest.raises(UsageError, match="made otherwise: it is a dataset without latents"):
        version(clips, clips)
    (tmp_path / "grown").mkdir()
    with pytest.raises(UsageError, match="otherwise: its dataset has changed since"):
        version(write_clips(tmp_path / "grown", 16), whole)
    with pytest.raises(UsageError, match="is a version with latents itself"):
        version(whole, tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        version(clips, tmp_path / "full")
    assert (whole / "manifest.json").read_bytes() == before


def test_a_choice_that_stores_nothing_or_names_no_bucket_is_refused(clips, tmp_path):
    every = tuple(f"{frames}x{size}" for frames in (1, 5, 9) for size in ("16x24", "24x16"))
    with pytest.raises(UsageError, match="nothing would be stored"):
        version(clips, tmp_path / "none", latents={"on_the_fly": every})
    with pytest.raises(UsageError, match="7x16x24 is no bucket"):
        version(clips, tmp_path / "none", latents={"on_the_fly": ("7x16x24",)})


def test_clips_can_be_carried_and_are_trained_on_when_asked(clips, whole, tmp_path):
    version(clips, tmp_path / "set", latents={"clips": True})
    carried = open_dataset(tmp_path / "set")
    assert verify(carried.storage).ok
    for dataset, latents in ((carried, False), (open_dataset(clips), True)):
        stream = run_config("unused", tmp_path).stream.model_copy(update={"latents": latents, "epochs": 1})
        batch = next(iter(VideoStream(dataset, stream)))
        assert batch.latents_BCTHW is None
        assert batch.video_BCTHW.shape[2] > 0


def test_a_version_without_the_clips_that_are_read_is_refused(whole, mixed, tmp_path):
    config = run_config("unused", tmp_path).stream.model_copy(update={"latents": False, "max_bad": 0})
    other = config.buckets.model_copy(update={"frames": (3,)})
    elsewhere = config.model_copy(update={"buckets": other})
    said = f"{whole} has latents in place of the clips of bucket .*: take .*set, or a version made with"
    for stream in (config, elsewhere):
        with pytest.raises(UsageError, match=said):
            VideoStream(open_dataset(whole), stream)
    with pytest.raises(UsageError, match="in place of the clips of bucket"):
        VideoStream(open_dataset(mixed), config)
    # At another number of frames some samples may have clips.
    with pytest.raises(RunError, match="stored without its clip"):
        list(VideoStream(open_dataset(mixed), elsewhere))


def test_a_take_down_reaches_the_version(clips, tmp_path):
    new = version(clips, tmp_path / "set", latents=MIXED).dataset
    remove(new.storage, Removal(key="key03", date="2026-01-01", reason="asked", samples=0))
    left = open_dataset(tmp_path / "set")
    assert "key03" not in left.row_numbers
    assert left.latents == new.latents
    found = verify(left.storage)
    assert found.ok, found.problems


def test_the_command_prints_what_it_chose_and_why(clips, tmp_path, capsys):
    file = tmp_path / "train.yaml"
    config = run_config(clips, tmp_path, latents=MIXED).model_dump(mode="json")
    file.write_text(json.dumps(config))
    command = ["latents", str(clips), "--config", str(file), "--out", str(tmp_path / "set")]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    chosen = {(one["frames"], one["height"]): one for one in said["latents"]["buckets"]}
    assert chosen[5, 16]["latent"] is None
    assert "on_the_fly" in chosen[5, 16]["why"]
    assert chosen[9, 16]["latent"] == [24, 5, 8, 12]
    assert said["samples"] == 16
    [(reason, count)] = said["without_bucket"].items()
    assert count == 1
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "already complete" in printed
    assert f"1 sample fits no bucket and has no latents: {reason}" in printed
    assert main(["report", str(tmp_path / "set"), "--json"]) == 0


def test_numbers_that_float16_cannot_hold_stop_the_run(clips, tmp_path):
    from reelweave.train.latents.encoders import Encoders

    config = run_config(clips, tmp_path, latents={"dtype": "float16"})
    encoders = Encoders(config.train.encoders, config.latents, context=False)
    with torch.no_grad():
        encoders.tokenizer.basis_KP *= 1e5
    with pytest.raises(RunError, match=r"float16 cannot hold; set latents\.dtype=float32"):
        encoders.latent(np.full((3, 1, 16, 24), 255, np.uint8))


@pytest.mark.parametrize(
    ("key", "described", "said"),
    [
        ("tokenizer.name", None, "has neither vae/config.json nor config.json"),
        ("tokenizer.name", '{"_class_name": "AutoencoderKL"}', "is a AutoencoderKL; supported are"),
        ("text.name", None, "has no config.json"),
        ("text.name", '{"model_type": "nosuch"}', "names the model type nosuch"),
        ("text.pooled.name", '{"model_type": "nosuch"}', "names the model type nosuch"),
    ],
)
def test_encoders_of_an_unknown_class_are_refused_before_files_are_hashed_or_ray_starts(
    clips, tmp_path, monkeypatch, key, described, said
):
    known = tmp_path / "known"
    for folder, text in ((known, '{"model_type": "t5"}'), (tmp_path / "wrong", described)):
        folder.mkdir()
        if text is not None:
            (folder / "config.json").write_text(text)
    for started in ("startable", "tokenizer_identity", "text_identity"):
        monkeypatch.setattr(f"reelweave.pipelines.latents.run.{started}", lambda *_: pytest.fail("too late"))
    wrong = str(tmp_path / "wrong")
    tokenizer = {"kind": "diffusers", "name": wrong, "frames": 4, "height": 8, "width": 8}
    name = wrong if key == "text.name" else str(known)
    text = {"kind": "transformers", "name": name, "max_text_tokens": 7}
    if key == "text.pooled.name":
        text["pooled"] = {"name": wrong}
    config = tiny_config(1)
    model = {"hidden": 48, "heads": 2, "layers": 2, "patch": (1, 1, 1)}
    changed = {"tokenizer": tokenizer, "model": model} if key == "tokenizer.name" else {"text": text}
    asked = TrainConfig.model_validate(config.model_dump() | changed)
    with pytest.raises(UsageError, match=said) as refused:
        version(clips, tmp_path / "out", train_config=asked)
    assert str(refused.value).startswith(f"{key}={wrong!r}")
    assert not (tmp_path / "out").exists()
