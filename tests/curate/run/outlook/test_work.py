"""Datasets of earlier versions of the code: what an update says of them, keeps of them and makes again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from reelweave.curate.caption import CaptionConfig
from reelweave.curate.config import (
    CurateConfig,
    ShardConfig,
    SourceStageConfig,
    config_digest,
    earlier_digests,
)
from reelweave.curate.dedup import DedupConfig
from reelweave.curate.filters.measure import ADDED
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.models.aesthetic import AestheticConfig
from reelweave.curate.models.embed import EmbedConfig
from reelweave.curate.models.text_embed import TextEmbedConfig
from reelweave.curate.run.assembly import resolve_request
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.work import Work, may_be_older
from reelweave.curate.run.sample_run import forecast_update
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.storage import open_storage
from tests.commands import reelweave
from tests.curate.run.test_run import SMALL_WORDS, config, tree
from tests.curate.run.test_update import Opened, opened, samples
from tests.media import write_video
from tests.thorough import but, thorough
from tests.tiny_models import tiny_open_clip, tiny_text_encoder

__all__ = ["opened"]
NOW = SourceStageConfig.REVISION


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(2):
        write_video(folder / f"{number}.mp4", (40, 30 + 2 * number), first_scene=2 * number)
    write_video(folder / "tiny.mp4", (40,), size=(96, 64), first_scene=8)
    return folder


@pytest.fixture(scope="module")
def original(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that the revision before made."""
    out = tmp_path_factory.mktemp("made") / "dataset"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceStageConfig, "REVISION", NOW - 1)
        curate([str(raw)], str(out), config())
    return out


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "dataset"))


def cut_under(out: Path) -> dict[int, int]:
    """Number of loose entries of the cut by revision."""
    config_ = config().source_stage()
    known = {**earlier_digests(config_), config_digest(config_): NOW}
    ledger = Ledger(open_storage(out))
    return {
        known[name]: len(list(out.glob(f".ledger/cut/{name}/*.json")))
        for name in ledger.entries.fingerprints("cut")
    }


def test_an_update_after_an_upgrade_says_what_is_older_and_keeps_it(
    raw: Path, made: Path, opened: Opened
) -> None:
    before = tree(made)
    found = curate([str(raw)], str(made), config(), update=True)
    assert found.already_there
    assert any(
        f"3 of 3 sources (5 clips, 7 s) were cut by an earlier version (revision {NOW - 1}" in note
        and "--redo-older cuts them anew" in note
        for note in found.notes
    ), found.notes
    assert tree(made) == before
    assert opened.paths == set()


def test_a_threshold_after_an_upgrade_decodes_nothing(raw: Path, made: Path, opened: Opened) -> None:
    before = {(row["key"], row["sha256"]) for row in samples(made)}
    said: list[str] = []
    stricter = config(filters={"min_duration_s": 1.5})
    found = curate([str(raw)], str(made), stricter, update=True, say=said.append)
    now = {(row["key"], row["sha256"]) for row in samples(made)}
    assert opened.paths == set()
    assert now < before
    assert len(now) == 2
    assert any("--redo-older" in one for one in said)
    assert set(said) <= set(found.notes)
    assert verify(open_storage(made)).problems == []
    curate([str(raw)], str(made), config(filters={"min_short_side_px": 32}), update=True)
    assert opened.paths == set()
    assert len(samples(made)) == 5


def test_an_update_that_does_nothing_again_says_so_before(raw: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "current", list[str]()
    for minimum_s, update in ((1.0, False), (1.5, True)):
        chosen = config(filters={"min_duration_s": minimum_s})
        notes = curate([str(raw)], str(out), chosen, update=update, say=said.append).notes
        assert said == [note for note in notes if "cuts no source and asks no model" in note]
    assert len(said) == 1


def test_redo_older_cuts_what_an_earlier_version_cut_and_says_so_before(
    raw: Path, made: Path, opened: Opened
) -> None:
    said: list[tuple[str, set[str]]] = []
    curate(
        [str(raw)],
        str(made),
        config(),
        redo_older=True,
        say=lambda one: said.append((one, set(opened.paths))),
    )
    [(sentence, opened_then)] = said
    assert "3 of 3 sources" in sentence
    assert "are cut anew" in sentence
    assert "s of one processor as measured then" in sentence
    assert opened_then == set()
    assert opened.paths == {"0.mp4", "1.mp4", "tiny.mp4"}
    assert cut_under(made)[NOW] == 3
    assert verify(open_storage(made)).problems == []
    opened.paths.clear()
    again = curate([str(raw)], str(made), config(), redo_older=True)
    assert again.already_there
    assert not [note for note in again.notes if "earlier version" in note]
    assert opened.paths == set()


def test_new_sources_are_cut_by_this_version_beside_older_ones(
    raw: Path, made: Path, tmp_path: Path, opened: Opened
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    write_video(more / "new.mp4", (44,), first_scene=9)
    shutil.copy(raw / "0.mp4", more / "copy.mp4")
    opened.paths.clear()
    said: list[str] = []
    curate([str(more)], str(made), config(), update=True, say=said.append)
    assert opened.paths == set()
    assert cut_under(made) == {NOW - 1: 3, NOW: 2}
    assert any("to be cut, without a result yet: 2 sources" in one for one in said)
    assert len(samples(made)) == 5
    states = [row["state"] for row in open_dataset(made).accounting.to_pylist()]
    assert states.count("duplicate") == 2
    assert verify(open_storage(made)).problems == []


def test_a_forecast_of_an_update_says_what_it_would_do_and_does_nothing(
    raw: Path, made: Path, opened: Opened
) -> None:
    before = tree(made)
    words = ("curate", raw, "--out", made, *SMALL_WORDS, "--json", "--forecast", "--update")
    kept = json.loads(reelweave(*words).stdout)["work"]
    assert [(one["what"], one["now"], one["sources"], one["clips"]) for one in kept] == [
        ("older", False, 3, 5)
    ]
    redone = json.loads(reelweave(*words, "--redo-older", "--rates", "core_hour_price=3600").stdout)["work"]
    assert [(one["what"], one["now"]) for one in redone] == [("older", True)]
    assert redone[0]["core_s"] > 0
    assert redone[0]["price"] == pytest.approx(redone[0]["core_s"])
    other = json.loads(reelweave(*words, "--set=spans.max_clip_s=1.2", "--set=captions.max_chars=9").stdout)
    [cut] = other["work"][:1]
    assert (cut["what"], cut["sources"], cut["clips"]) == ("cut", 3, 5)
    assert "since spans.max_clip_s changed" in cut["said"]
    captions = json.loads(reelweave(*words, "--set=captions.max_chars=9").stdout)["work"]
    assert [(one["what"], one["clips"]) for one in captions] == [("older", 5), ("captions", 4)]
    shown = reelweave(*(word for word in words if word != "--json"))
    assert shown.returncode == 0, shown.stderr
    assert "--redo-older cuts them anew" in shown.stdout
    assert tree(made) == before
    assert opened.paths == set()


@thorough
def test_failed_sources_are_retried_by_this_version_and_others_stay(
    raw: Path, made: Path, opened: Opened
) -> None:
    curate([str(raw)], str(made), config(), retry_failed=True)
    assert opened.paths == set()
    assert cut_under(made) == {NOW - 1: 3}


def test_a_score_of_a_later_version_is_counted_and_measured_when_asked_for(
    raw: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "dataset"
    curate([str(raw)], str(made), config())
    opened.paths.clear()
    before = tree(made)
    earlier = dict(ADDED)
    monkeypatch.setitem(ADDED, "flicker", earlier["flicker"] + 1)
    found = curate([str(raw)], str(made), config(), update=True)
    assert [
        note for note in found.notes if "5 clips" in note and "this version of the scores flicker" in note
    ]
    assert tree(made) == before
    # An earlier value stands, so this threshold alone measures nothing.
    curate([str(raw)], str(made), config(filters={"max_flicker": 99.0}), update=True)
    ledger = Ledger(open_storage(made))
    [name] = ledger.entries.fingerprints("cut")
    assert [one["measured"] for _, one in ledger.entries.latest("cut", name, dict)] == [earlier] * 3
    said: list[str] = []
    curate([str(raw)], str(made), config(filters={"max_flicker": 99.0}), redo_older=True, say=said.append)
    assert [one for one in said if "are measured now, and no source is read" in one]
    assert [one["measured"] for _, one in ledger.entries.latest("cut", name, dict)] == [ADDED] * 3
    assert all("flicker" in dict(row["scores"]) for row in samples(made))
    assert opened.paths == set()
    assert verify(open_storage(made)).problems == []


STAGES = {
    "captions": CaptionConfig,
    "embed": EmbedConfig,
    "aesthetic": AestheticConfig,
    "text_embed": TextEmbedConfig,
    "dedup": DedupConfig,
    "shard": ShardConfig,
}


def asked_of(stage: str, folder: Path) -> CurateConfig:
    """A configuration with the stage, and the model that it needs."""
    if stage in ("embed", "aesthetic"):
        embed = {"backend": "open_clip", "model": str(tiny_open_clip(folder, width=16)), "device": "cpu"}
        head = str(folder / "head.safetensors")
        save_file({"weight": np.ones((1, 16), np.float32), "bias": np.zeros(1, np.float32)}, head)
        return config(embed=embed, **({"aesthetic": {"weights": head}} if stage == "aesthetic" else {}))
    if stage == "text_embed":
        return config(text_embed={"model": str(tiny_text_encoder(folder, "t5")), "device": "cpu"})
    return config()


def work_json(raw: Path, made: Path, changes: CurateConfig, redo: bool) -> list[Work]:
    return forecast_update([str(raw)], str(made), changes, redo_older=redo) or []


def test_a_dataset_of_this_version_is_cheap_to_ask(raw: Path, tmp_path: Path) -> None:
    """No clip is read to say that nothing is left, whatever revisions the code had."""
    made, asked = tmp_path / "dataset", config()
    curate([str(raw)], str(made), asked)
    request = resolve_request([str(raw)], open_storage(made), asked, update=False)
    assert any(part.REVISION for part in (asked.captions, asked.embed, asked.text_embed))
    assert not may_be_older(request.ledger, request.dataset, request.revisions, request.earlier)


@pytest.mark.parametrize("stage", but(["shard"], STAGES, ["embed", "dedup"]))
def test_another_version_of_a_stage_is_said_and_redone_when_asked_for(
    raw: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    (tmp_path / "model").mkdir()
    made, kind, asked = tmp_path / "dataset", STAGES[stage], asked_of(stage, tmp_path / "model")
    stage = "embed" if stage == "aesthetic" else stage  # which measures it
    curate([str(raw)], str(made), asked)
    opened.paths.clear()
    before, same = tree(made), {(row["key"], row["sha256"]) for row in samples(made)}
    monkeypatch.setattr(kind, "REVISION", kind.REVISION + 1)
    found = curate([str(raw)], str(made), asked, update=True)
    assert found.already_there
    assert [note for note in found.notes if stage[:4] in note and "--redo-older" in note], found.notes
    assert curate([str(raw)], str(made), asked).notes == found.notes
    assert tree(made) == before
    over_clips = stage not in ("dedup", "shard")
    name = f"older {stage}" if over_clips else stage
    assert [(one.what, one.now, one.clips) for one in work_json(raw, made, asked, False)] == [
        (name, False, 4)
    ]
    [redone] = work_json(raw, made, asked, True)
    assert (redone.what, redone.now) == (name, True)
    assert (redone.core_s is not None) == over_clips
    shards = {path: path.read_bytes() for path in made.glob("shards/*")}
    again = curate([str(raw)], str(made), asked, redo_older=True)
    assert not again.already_there
    assert opened.paths == set()
    assert {(row["key"], row["sha256"]) for row in samples(made)} == same
    assert verify(open_storage(made)).problems == []
    if stage == "shard":
        assert not set(made.glob("shards/*.tar")) & shards.keys()
    last = curate([str(raw)], str(made), asked, redo_older=True)
    assert last.already_there
    assert not [note for note in last.notes if "--redo-older" in note]
    # A threshold alone asks no model again.
    monkeypatch.setattr(kind, "REVISION", kind.REVISION + 1)
    stricter = asked.model_copy(update={"filters": config(filters={"min_duration_s": 1.5}).filters})
    curate([str(raw)], str(made), stricter, update=True)
    found = curate([str(raw)], str(made), stricter, update=True)
    assert found.already_there
    assert bool([note for note in found.notes if "--redo-older" in note]) == (stage != "dedup"), found.notes
