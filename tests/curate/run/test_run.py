"""Curation end to end on real files: accounted for, the same bytes always, restartable."""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import Progress, curate
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from tests.media import CORPUS, NO_CORPUS, read_numbers, write_video
from tests.thorough import thorough
from tests.warm import Warm

HERE = {"runner": "sequential", "isolate": False}
BASE = {"shard": {"max_shard_mb": 0.05}, "spans": {"min_clip_s": 1.0}, "run": HERE}


def config(**changes: dict) -> CurateConfig:
    sections = {name: {**BASE.get(name, {}), **changes.get(name, {})} for name in {*BASE, *changes}}
    return CurateConfig.model_validate(sections)


SMALL = config()
SMALL_WORDS = [
    f"--set={section}.{key}={value}" for section, keys in BASE.items() for key, value in keys.items()
]
ON_RAY = config(run={"runner": "ray", "isolate": True})
ISOLATED = config(run={"isolate": True})


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "two scenes.mp4", (40, 45))
    write_video(
        folder / "deep/other.webm",
        (50,),
        first_scene=5,
        codec="libvpx-vp9",
        options={"cpu-used": "8", "deadline": "realtime"},
    )
    write_video(folder / "short.mp4", (10,))
    write_video(folder / "tiny.mkv", (30,), size=(64, 48))
    (folder / "two scenes.txt").write_text("Blocks that count.")
    (folder / "broken.mp4").write_bytes((folder / "two scenes.mp4").read_bytes()[:900])
    (folder / "empty.mp4").touch()
    shutil.copy(folder / "two scenes.mp4", folder / "zz the same again.mp4")
    return folder


def make(raw: Path, out: Path, config: CurateConfig = SMALL, **options: object) -> Path:
    curate([str(raw)], str(out), config, **options)
    return out


@pytest.fixture(scope="module")
def made(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(raw, tmp_path_factory.mktemp("made") / "dataset")


def tree(folder: Path) -> dict[str, bytes]:
    """Path to content of everything but the ledger, which also holds times."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(".ledger/")}


def published(folder: Path) -> dict[str, bytes]:
    """A tree without what the command adds behind the manifest, where a kill may strike, too."""
    return {
        name: data
        for name, data in tree(folder).items()
        if name != "curate.yaml" and not name.startswith("report/")
    }


def fates(folder: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for row in open_dataset(folder).accounting.to_pylist():
        found.setdefault(Path(row["source"]).name, []).append((row["state"], row["stage"]))
    return found


def test_every_input_has_its_fate(made: Path) -> None:
    assert fates(made) == {
        "two scenes.mp4": [("kept", "cut"), ("kept", "cut")],
        "other.webm": [("kept", "cut")],
        "short.mp4": [("filtered", "spans")],
        "tiny.mkv": [("filtered", "filter.short_side_px")],
        "broken.mp4": [("failed", "probe")],
        "empty.mp4": [("failed", "probe")],
        "zz the same again.mp4": [("duplicate", "dedup.source"), ("duplicate", "dedup.source")],
    }


def test_the_dataset_verifies(made: Path) -> None:
    assert verify(open_storage(made)).problems == []


def test_clips_are_what_their_rows_say(made: Path) -> None:
    dataset = open_dataset(made)
    rows = dataset.index.to_pylist(maps_as_pydicts="strict")
    assert len(rows) == 3
    for number, row in enumerate(rows):
        numbers = read_numbers(dataset.read_member(number, "mp4"))
        first = round(row["start_s"] * 25)
        assert numbers == list(range(first, first + row["frames"]))
        assert row["duration_s"] == row["frames"] / row["fps"]
        assert row["scores"]["short_side_px"] == 128
        scenes = Path(row["source"]).name == "two scenes.mp4"
        assert row["caption"] == ("Blocks that count." if scenes else "")
        assert row["caption_source"] == ("sidecar:two scenes.txt" if scenes else "none")
        assert row["text_tokens"] == (3 if scenes else 0)


def test_nothing_but_the_contract_is_left(made: Path) -> None:
    tops = {path.split("/")[0] for path in tree(made)}
    assert tops == {
        "shards",
        "index.parquet",
        "accounting.parquet",
        "scores.parquet",
        "transitions.parquet",
        "plan.arrow",
        "manifest.json",
        ".nv-meta",
        "README.md",
    }


def test_the_same_call_again_changes_nothing(raw: Path, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert curate([str(raw)], str(made), SMALL).already_there
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_another_configuration_is_refused_naming_the_key(raw: Path, made: Path) -> None:
    with pytest.raises(UsageError, match=r"cut\.crf.*--update"):
        curate([str(raw)], str(made), config(cut={"crf": 30}))


def test_other_inputs_are_refused(raw: Path, made: Path) -> None:
    with pytest.raises(UsageError, match="other inputs"):
        curate([str(raw / "deep")], str(made), SMALL)


def test_keys_come_from_content_not_from_paths(raw: Path, made: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(raw, tmp_path / "moved somewhere")
    again = open_dataset(make(moved, tmp_path / "dataset")).index
    assert again.column("key").to_pylist() == open_dataset(made).index.column("key").to_pylist()
    assert again.column("sha256").to_pylist() == open_dataset(made).index.column("sha256").to_pylist()


def test_progress_counts_every_source_once(raw: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    make(raw, tmp_path / "dataset", progress=seen.append)
    assert [p.done for p in seen if p.phase == "cut"] == list(range(8))
    assert {p.total for p in seen if p.phase == "cut"} == {7}
    assert seen[-1].done_weight == seen[-1].total_weight


def test_a_stopped_run_does_not_cut_again(raw: Path, made: Path, tmp_path: Path) -> None:
    class StopHere(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.phase == "shard":
            raise StopHere

    out = tmp_path / "dataset"
    with pytest.raises(StopHere):
        make(raw, out, progress=stop)
    staged = {path: path.stat().st_mtime_ns for path in (out / ".ledger").rglob("*.mp4")}
    assert staged
    seen: list[Progress] = []
    make(raw, out, progress=seen.append)
    assert [p.done for p in seen if p.phase == "cut"] == [7]
    assert tree(out) == tree(made)


CURATE = """
import sys
from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
curate([sys.argv[1]], sys.argv[2], CurateConfig.model_validate_json(sys.argv[3]))
# Without a model there is no need of what takes seconds to import.
assert "torch" not in sys.modules
"""


def test_no_byte_depends_on_what_memory_held_before(
    raw: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", "85")
    command = [sys.executable, "-c", CURATE, str(raw), str(tmp_path / "dataset"), SMALL.model_dump_json()]
    subprocess.run(command, check=True)
    assert tree(tmp_path / "dataset") == tree(made)


def killed_at_work(warm: Warm, raw: Path, out: Path, after_s: float) -> bool:
    """Starts a run and kills it some time after its first staged file; False when it was finished before."""
    run = warm.start("curate", str(raw), "--out", str(out), *SMALL_WORDS)
    while not run.has_ended() and not list((out / ".ledger").rglob("*.mp4")):
        time.sleep(0.005)
    time.sleep(after_s)
    return run.kill()


def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    raw: Path, made: Path, tmp_path: Path, warm: Warm
) -> None:
    """Three kills; `tests.bench.exactly_once` has hundreds."""
    moments, kills = random.Random(20), 0
    for attempt in range(40):
        out = tmp_path / f"dataset {attempt // 2}"
        if not (out / "manifest.json").exists():
            kills += killed_at_work(warm, raw, out, moments.uniform(0, 0.6))
        if kills == 3:
            break
    assert kills == 3
    for out in tmp_path.iterdir():
        make(raw, out)
        assert published(out) == tree(made)


def test_killed_behind_the_manifest_the_same_command_adds_what_is_missing(
    raw: Path, tmp_path: Path, warm: Warm
) -> None:
    command = ("curate", str(raw), "--out", str(tmp_path / "dataset"), *SMALL_WORDS)
    assert warm.start(*command).ended()[0] == 0
    whole = tree(tmp_path / "dataset")
    (tmp_path / "dataset" / "curate.yaml").unlink()
    shutil.rmtree(tmp_path / "dataset" / "report")
    assert warm.start(*command).ended()[0] == 0
    again = tree(tmp_path / "dataset")
    assert again.keys() == whole.keys()
    assert again["curate.yaml"] == whole["curate.yaml"]


def test_interrupted_between_a_segment_and_its_entries_it_ends_with_the_same_bytes(
    raw: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reelweave.curate.run.tables.closed._ENTRIES", 2)
    monkeypatch.setattr("reelweave.curate.run.tables.results._ENTRIES", 2)
    out = tmp_path / "dataset"
    with monkeypatch.context() as patched:
        delete_many = "reelweave.curate.ledger.entries.delete_many"
        patched.setattr(delete_many, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(raw, out)
    [segment] = out.rglob("packed/*.parquet")
    assert len(list(segment.parent.parent.glob("*.json"))) >= 2
    assert tree(make(raw, out)) == tree(made)
    assert len(list(out.rglob("packed/*.parquet"))) >= 3
    left = list(out.glob(".ledger/cut/*/*.json"))
    assert len(left) <= 3  # of seven sources: two that were in work when it ended, and one


@thorough
def test_killed_on_ray_it_ends_with_the_same_bytes(
    raw: Path, made: Path, tmp_path: Path, ray_local: str, warm: Warm
) -> None:
    """Both runs are on the Ray of the tests, whose workers outlive the killed one for a while."""
    words = ["--set=run.runner=ray", "--set=run.isolate=true"]
    joined = {"RAY_ADDRESS": ray_local}
    for attempt in range(5):  # on a busy machine a run may end before it is seen at work
        out = tmp_path / f"dataset {attempt}"
        run = warm.start("curate", str(raw), "--out", str(out), *SMALL_WORDS, *words, env=joined)
        while not run.has_ended() and not list((out / ".ledger").rglob("*.mp4")):
            time.sleep(0.02)
        if run.kill() and not (out / "manifest.json").exists():
            break
        assert run.returncode == -9 or run.ended()[0] == 0, run.ended()[1]
    make(raw, out, ON_RAY)
    assert published(out) == tree(made)


def test_where_ray_is_too_slow_to_start_one_process_does_the_work(
    raw: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    tries: list[object] = []

    def times_out(**options: object) -> None:
        tries.append(options)
        raise Exception("The current node timed out during startup. The GCS may have become overloaded.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, stub in (("init", times_out), ("is_initialized", lambda: False), ("shutdown", lambda: None)):
        monkeypatch.setattr(ray, name, stub)
    outcome = curate([str(raw)], str(tmp_path / "dataset"), ON_RAY)
    assert tree(tmp_path / "dataset") == tree(made)
    assert len(tries) == 4
    assert [note for note in outcome.notes if "Ray's own processes did not start" in note]


def test_it_curates_from_s3_to_s3(raw: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    from tests.s3server import FaultyProxy, s3_server

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="lake")
        remote = config(storage={"endpoint_url": proxy.url, "region": "us-east-1", "backoff_base_s": 0.001})
        source = open_storage("s3://lake/raw", remote.storage)
        for path in raw.rglob("*"):
            if path.is_file():
                source.write_file(str(path.relative_to(raw)), path)
        proxy.answer(503, "SlowDown", match="^GET /lake/raw/", times=2)
        curate(["s3://lake/raw"], "s3://lake/dataset", remote)
        target = open_storage("s3://lake/dataset", remote.storage)
        assert verify(target).problems == []
        index = open_dataset("s3://lake/dataset", remote.storage).index
        kept = set(index.column("key").to_pylist())
        status = json.loads(target.read(".ledger/status.json"))
        left = [item.path for item in target.list(".ledger/clips/")]
    assert index.column("sha256").to_pylist() == open_dataset(made).index.column("sha256").to_pylist()
    assert not [path for path in left if Path(path).name.split("-")[0] in kept]
    assert (status["retries"], status["finished"]) == (2, True)


@pytest.fixture
def awkward(tmp_path: Path) -> list[Path]:
    if not CORPUS.is_dir():
        pytest.skip(NO_CORPUS)
    names = json.loads((CORPUS / "broken/expect.json").read_text())["awkward_names"]
    return [Path(shutil.copy(CORPUS / "broken/whole.mp4", tmp_path / name)) for name in names]


@thorough
def test_awkward_names_are_names_like_others(awkward: list[Path], tmp_path: Path) -> None:
    for number, path in enumerate(awkward):
        out = tmp_path / f"dataset {number}"
        curate([str(path)], str(out), SMALL)
        index = open_dataset(out).index
        assert index.column("source").to_pylist() == [str(path)]
        assert index.column("frames").to_pylist() == [60]


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_broken_files_are_named_with_their_reason(tmp_path: Path) -> None:
    curate([str(CORPUS / "broken")], str(tmp_path / "dataset"), SMALL)
    rows = open_dataset(tmp_path / "dataset").accounting.to_pylist()
    reasons = {Path(row["source"]).name: row["reason"] for row in rows if row["state"] != "kept"}
    expected = {
        "audio_only.mp4": "no video stream",
        "cut_in_middle.mkv": "cut off",
        "cut_in_middle_index_first.mp4": "cut off",
        "empty.mp4": "empty",
        "garbage_inside.mp4": "damaged packets",
        "index_missing.mp4": "cannot be opened",
        "one_frame.mp4": "shorter than",
        "text_as_video.mp4": "cannot be opened",
        "whole.mp4": "2.0 s of the footage of",
        "zero_duration.mp4": "no frame",
    }
    assert reasons.keys() == expected.keys()
    for name, words in expected.items():
        assert words in reasons[name], name
    kept = {Path(row["source"]).name for row in rows if row["state"] == "kept"}
    assert kept == {"cut_in_middle.mkv"}  # the longest whole piece of the one film that all of them hold


def test_a_place_that_cannot_be_written_to_is_said_at_once(raw: Path) -> None:
    with pytest.raises(RunError, match="/proc/nowhere"):
        make(raw, Path("/proc/nowhere"))


def test_a_duplicate_claims_no_more_seconds_than_it_has(tmp_path: Path) -> None:
    """Two pictures a second are compared, and the last one stands for less than half a second."""
    for name, crf in (("a.mp4", "10"), ("b.mp4", "26")):
        write_video(tmp_path / "raw" / name, (30,), options={"crf": crf})
    curate([str(tmp_path / "raw")], str(tmp_path / "dataset"), SMALL)
    [row] = (
        row
        for row in open_dataset(tmp_path / "dataset").accounting.to_pylist()
        if row["key"] and row["duplicate_of"]
    )
    assert row["end_s"] - row["start_s"] == pytest.approx(1.2)
    assert row["reason"].startswith("shows 1.2 s of the footage of")
