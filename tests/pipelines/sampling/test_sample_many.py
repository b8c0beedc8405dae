"""`reelweave sample --prompts`, in one process and on several: every video once, whatever happens."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import hold_lease, open_storage
from reelweave.pipelines.cli import main
from reelweave.pipelines.evaluation.videos import read_video, video_set
from reelweave.pipelines.sampling.requests import read_requests
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.encoders.tokenizer import PatchTransform
from tests.pipelines.sampling.sample_ranks import command, failing_in, killed_after
from tests.thorough import beyond, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.ranks import Ranks
from tests.train.vae import tiny

PROMPTS = ["a wave", "another wave going up and up and up", "a still", "a fourth"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    Trainer(tiny_config(2, every_steps=2), ClipStream(), out).run()
    return out


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(PROMPTS) + "\n")
    return path


def words(trained: Path, prompts: Path, out: Path, *more: str) -> list[str]:
    size = ["--size", "16x24", "--frames", "5", "--steps", "2"]
    return ["--checkpoint", str(trained), "--prompts", str(prompts), *size, "--out", str(out), *more]


def videos(out: Path) -> dict[str, tuple[int, str]]:
    """Time of writing and digest of each video."""
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(out.glob("*.mp4"))
    }


def manifest(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The videos of one undisturbed process."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    assert command(*words(trained, folder / "prompts.txt", folder / "out")) == 0
    return folder / "out"


def test_every_line_becomes_a_video_that_the_manifest_names(whole: Path) -> None:
    records, found = manifest(whole), videos(whole)
    assert [(record["number"], record["prompt"]) for record in records] == list(enumerate(PROMPTS))
    assert {record["file"]: record["sha256"] for record in records} == {n: d for n, (_, d) in found.items()}
    assert [record["config"]["seed"] for record in records] == [0, 1, 2, 3]
    assert len(set(found.values())) == 4
    assert set(records[0]["seconds"]) == {"text", "denoise", "decode", "write"}
    assert records[0]["layout"]["ranks"] == 1
    assert not list((whole / "latents").iterdir())


def test_a_restart_makes_what_is_missing_and_nothing_twice(
    trained: Path, prompts: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    short = tmp_path / "short.txt"
    short.write_text("\n".join(PROMPTS[:2]))
    assert main(["sample", *words(trained, short, out)]) == 0
    assert "2 videos made, 2 in all" in capsys.readouterr().out
    first = videos(out)
    (out / "000001.mp4").unlink()
    assert command(*words(trained, prompts, out)) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["videos"], said["made"]) == (4, 3)
    assert videos(out)["000000.mp4"] == first["000000.mp4"]
    assert [digest for _, digest in videos(out).values()] == [digest for _, digest in videos(whole).values()]
    then = videos(out)
    assert command(*words(trained, prompts, out)) == 0
    assert json.loads(capsys.readouterr().out)["made"] == 0
    assert videos(out) == then
    assert command(*words(trained, prompts, out, "--solver", "res")) == 2
    assert (
        "000000.mp4 was made otherwise: config.solver was 'euler' and is 'res' now" in capsys.readouterr().err
    )
    (out / "000002.mp4").write_bytes(b"cut")
    assert command(*words(trained, prompts, out)) == 1
    assert "000002.mp4 is not the file that" in capsys.readouterr().err


def test_two_runs_into_one_folder_are_refused(
    trained: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with hold_lease(open_storage(str(out)), "reelweave sample"):
        assert command(*words(trained, prompts, out)) == 1
    assert "reelweave sample" in capsys.readouterr().err
    assert videos(out) == {}


def test_a_failed_decode_loses_no_latents(
    trained: Path,
    prompts: Path,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise RuntimeError("CUDA out of memory")

        patched.setattr(PatchTransform, "decode", fail)
        assert command(*words(trained, prompts, out)) == 1
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert f"the sampled latents are kept in {out}/latents/000000" in said
    assert command(*words(trained, prompts, out)) == 0
    capsys.readouterr()
    assert [record["seconds"]["denoise"] > 0 for record in manifest(out)] == [False, True, True, True]
    assert [digest for _, digest in videos(out).values()] == [digest for _, digest in videos(whole).values()]


def test_a_killed_run_on_two_ranks_goes_on_and_makes_the_same_videos(
    ranks: Ranks, trained: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    """First each rank makes its own videos, and then, in the same folder, both make each together."""
    out = tmp_path / "out"
    ended = ranks.run(killed_after, 2, 1, *words(trained, prompts, out, "--layout", "prompts"))
    assert ended.codes == [-9, 1]
    assert "rank 0" in ended.errors[1]
    kept = {path.stem for path in (out / "records").glob("*.json")}
    assert "000000" in kept
    before = videos(out)
    ended = ranks.run(command, 2, *words(trained, prompts, out))
    assert ended.codes == [0, 0], ended.errors
    said = json.loads(ended.errors[0][ended.errors[0].index("{") :])
    degrees = {"prompts": 1, "cfg": 2, "lp": 1, "ring": 1, "ulysses": 1}
    assert said["layout"] == {"ranks": 2, **degrees, "vae_ranks": 2}
    assert said["made"] == 4 - len(kept)
    assert len(said["sent_bytes"]) == 2
    # Two steps, in each of which a rank sends a prediction.
    assert min(said["sent_bytes"]) >= said["made"] * 2 * 4 * 24 * 3 * 8 * 12
    assert {stem: videos(out)[f"{stem}.mp4"] for stem in kept} == {s: before[f"{s}.mp4"] for s in kept}
    assert [digest for _, digest in videos(out).values()] == [digest for _, digest in videos(whole).values()]
    assert [record["layout"]["cfg"] for record in manifest(out)] == [
        1 if f"{number:06d}" in kept else 2 for number in range(4)
    ]


def test_what_the_first_rank_finds_in_the_folder_all_ranks_say(
    ranks: Ranks, trained: Path, prompts: Path, whole: Path
) -> None:
    ended = ranks.run(command, 2, *words(trained, prompts, whole, "--fps", "3"))
    assert ended.codes == [2, 2]
    assert all("000000.mp4 was made otherwise: fps was " in said for said in ended.errors)


@thorough
@pytest.mark.parametrize("stage", beyond(1, ["denoise", "decode"]))
def test_a_rank_that_fails_ends_all_in_words(
    ranks: Ranks, trained: Path, prompts: Path, tmp_path: Path, stage: str
) -> None:
    ended = ranks.run(failing_in, 2, stage, *words(trained, prompts, tmp_path / "out"))
    assert ended.codes == [1, 1]
    assert f"no memory left in {stage}" in ended.errors[1]
    assert "rank 1 was lost" in ended.errors[0]
    assert "Traceback" not in ended.errors[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": "a", "size": "15x16"}', "line 2: size: Value error, 15x16: an MP4"),
        ('{"prompt": "a", "sed": 3}', "line 2: sed: Extra inputs"),
        ("[1]", "line 2: is no JSON object"),
        ("{", "line 2: is no JSON"),
        ('{"prompt": "a", "prompt": "b"}', "line 2: is no JSON: the key 'prompt'"),
        ('{"prompt": "a", "frames": 4}', "video 1 of --prompts: 4 frames do not fit"),
    ],
)
def test_a_wrong_line_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a wave"}}\n{line}\n')
    assert command(*words(trained, path, tmp_path / "out")) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_line_ends_where_those_of_a_file_do(tmp_path: Path) -> None:
    """JSON holds U+2028 and U+0085 as they are, and so do the manifests that we write."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028wave"}\r\n\n{"prompt": "a\x85cat"}', "utf-8-sig")
    assert [one.prompt for one in read_requests(path)] == ["a\u2028wave", "a\x85cat"]
    with pytest.raises(UsageError, match=r"prompts\.csv would be read as a caption per line"):
        read_requests(path.rename(tmp_path / "prompts.csv"))
    (tmp_path / "000000.mp4").touch()
    (tmp_path / "manifest.jsonl").write_text('{"file": "000000.mp4", "prompt": "a\u2028wave"}\n')
    assert video_set(tmp_path).caption(tmp_path / "000000.mp4") == "a\u2028wave"


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("cfg=2", "layout prompts=rest x cfg=2 must divide the 1 ranks"),
        ("cfg", "'cfg' is no degree"),
        ("dp=2", "--layout dp=2: Extra inputs.*the degrees are prompts, cfg, lp, ring, ulysses"),
        ("cfg=0", "--layout cfg=0"),
    ],
)
def test_a_wrong_layout_is_told(
    trained: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, told: str
) -> None:
    import re

    assert command(*words(trained, prompts, tmp_path / "out", "--layout", layout)) == 2
    assert re.search(told, capsys.readouterr().err)


def test_all_ranks_make_one_video_together(ranks: Ranks, trained: Path, whole: Path, tmp_path: Path) -> None:
    """Four ranks: guidance over two, a ring of two, as the advisor says; equal to one process but for rounding."""
    out = tmp_path / "one.mp4"
    size = ["--size", "16x24", "--frames", "5", "--steps", "2", "--prompt", PROMPTS[0], "--out", str(out)]
    ended = ranks.run(command, 4, "--checkpoint", str(trained), *size)
    assert ended.codes == [0] * 4, ended.errors
    said = json.loads(ended.errors[0][ended.errors[0].index("{") :])
    degrees = {name: said["layout"][name] for name in ("ranks", "prompts", "cfg", "lp", "ring", "ulysses")}
    assert degrees == {"ranks": 4, "prompts": 1, "cfg": 2, "lp": 1, "ring": 2, "ulysses": 1}
    assert "the advisor's fastest exact layout: cfg 2 x" in said["layout_reason"]
    assert len(said["sent_bytes"]) == 4
    assert min(said["sent_bytes"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.mp4"]
    found, expected = (read_video(path)[0].astype(int) for path in (out, whole / "000000.mp4"))
    assert np.abs(found - expected).mean() < 0.5


def test_an_image_to_video_model_is_given_the_picture_of_a_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Videos of other pictures differ, and the picture belongs to what a restart must repeat."""
    picture = np.zeros((32, 48, 3), np.uint8)
    picture[:, 24:] = (200, 90, 40)
    for name, one in (("left.png", picture), ("right.png", picture[:, ::-1].copy())):
        Image.fromarray(one).save(tmp_path / name)
    config = tiny_config(2, every_steps=2).model_copy(update={"first_frames": FirstFramesConfig()})
    Trainer(config, ClipStream(), tmp_path / "run").run()
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    lines = [{"prompt": "a wave", "seed": 1, "image": name} for name in ("left.png", "right.png")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    assert command(*words(tmp_path / "run", prompts, out)) == 0
    assert len({digest for _, digest in videos(out).values()}) == 2
    assert manifest(out)[0]["image"] == hashlib.sha256((tmp_path / "left.png").read_bytes()).hexdigest()
    assert command(*words(trained, prompts, tmp_path / "other")) == 2
    assert "first frames need a model that was trained with" in capsys.readouterr().err
    (tmp_path / "left.png").write_bytes((tmp_path / "right.png").read_bytes())
    assert command(*words(tmp_path / "run", prompts, out)) == 2
    assert "was made otherwise: it was of another image" in capsys.readouterr().err
    (tmp_path / "left.png").write_bytes(b"none")
    assert command(*words(tmp_path / "run", prompts, tmp_path / "third")) == 2
    assert "left.png: the clip cannot be decoded" in capsys.readouterr().err


@thorough
def test_ranks_with_parts_of_the_weights_make_the_same_videos_and_go_on_with_kept_latents(
    ranks: Ranks, trained: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    """FSDP: both ranks gather weights together, also when one has no video, or has its latents already."""
    out = tmp_path / "out"
    sharded = words(trained, prompts, out, "--layout", "dp_shard=rest")
    ended = ranks.run(failing_in, 2, "decode", *sharded)
    assert ended.codes == [1, 1], ended.errors
    kept = sorted(path.stem for path in (out / "latents").iterdir())
    assert "000001" in kept
    ended = ranks.run(command, 2, *sharded)
    assert ended.codes == [0, 0], ended.errors
    said = json.loads(ended.errors[0][ended.errors[0].index("{") :])
    degrees = {"prompts": 2, "cfg": 1, "lp": 1, "pp": 1, "ring": 1, "ulysses": 1, "tp": 1}
    shards = {"dp_replicate": 1, "dp_shard": 2}
    assert said["layout"] == {"ranks": 2, **degrees, **shards, "vae_ranks": 1}
    assert said["layout_reason"] == "--layout dp_shard=rest"
    assert [digest for _, digest in videos(out).values()] == [digest for _, digest in videos(whole).values()]
    assert [record["seconds"].get("denoise") == 0 for record in manifest(out)] == [
        f"{number:06d}" in kept for number in range(4)
    ]
    one = ["--checkpoint", str(trained), "--prompt", PROMPTS[0], *sharded[4:10]]
    ended = ranks.run(command, 2, *one, "--out", str(tmp_path / "one.mp4"), "--layout", "dp_shard=2")
    assert ended.codes == [0, 0], ended.errors
    digest = hashlib.sha256((tmp_path / "one.mp4").read_bytes()).hexdigest()
    assert digest == videos(whole)["000000.mp4"][1]


@pytest.mark.parametrize(
    ("layout", "more", "told"),
    [
        ("tp=2", [], "parallel.tp=2 must divide the 1 ranks of this run"),
        ("tp=2,cfg=2", [], "cfg is no degree of training"),
        ("tp=two", [], "--layout tp=two: Input should be a valid integer"),
        ("dp_shard=rest,dp_replicate=rest", [], "cannot both be the rest"),
        ("tp", [], "'tp' is no degree; take together, prompts, training, or such as"),
        ("training", ["--cache", "first_block"], "leave --cache out"),
    ],
)
def test_a_layout_of_training_that_cannot_be_is_said(
    trained: Path,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layout: str,
    more: list[str],
    told: str,
) -> None:
    assert command(*words(trained, prompts, tmp_path / "out", "--layout", layout, *more)) == 2
    assert told in capsys.readouterr().err


@thorough
def test_training_degrees_that_do_not_divide_the_model_are_said(
    ranks: Ranks, trained: Path, prompts: Path, tmp_path: Path
) -> None:
    for layout, told in (
        ("tp=3", "parallel.tp=3 must divide model.heads=2"),
        ("pp=3", "parallel.pp=3 must be at most model.layers=2"),
    ):
        ended = ranks.run(command, 3, *words(trained, prompts, tmp_path / "out", "--layout", layout))
        assert ended.codes == [2, 2, 2], ended.errors
        assert told in ended.errors[0]


def test_a_run_goes_on_with_the_same_files_only(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A VAE that is replaced under its name, a run that is trained again, records of before the digest."""
    tiny.publish(tmp_path)
    tokenizer = {"kind": "diffusers", "name": str(tmp_path), "frames": 2, "height": 2, "width": 2}
    values = tiny_config(1).model_dump() | {"tokenizer": tokenizer}
    out, run, file = (
        tmp_path / "out",
        tmp_path / "run",
        tmp_path / "vae" / "diffusion_pytorch_model.safetensors",
    )
    Trainer(TrainConfig.model_validate(values), ClipStream(), run).run()
    original = words(run, prompts, out)
    assert command(*original) == 0
    kept = file.read_bytes()
    save_file({name: weight + 0.1 for name, weight in load_file(file).items()}, file, {"format": "pt"})
    assert command(*original) == 2
    assert "files of its model, adapters, VAE or text encoder were others under the same names" in (
        capsys.readouterr().err
    )
    file.write_bytes(kept)
    assert command(*original) == 0
    shutil.rmtree(run)
    Trainer(TrainConfig.model_validate(values | {"seed": 1}), ClipStream(), run).run()
    assert command(*original) == 2
    for path in (out / "records").iterdir():
        record = json.loads(path.read_text())
        del record["files"]
        path.write_text(json.dumps(record))
    assert command(*original) == 0
