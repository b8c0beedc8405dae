"""Long sources in parts: the bytes of one pass over the whole, on both runners, restartable by parts."""

import io
import random
import re
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.colour.light import light_of
from tests.curate.cut.test_crop import two_shots, widening
from tests.curate.frames.container.test_immersive import views
from tests.curate.frames.container.test_side_data import with_entry_box
from tests.curate.frames.decode.test_lasting_turn import film as turned_film
from tests.curate.run.test_run import SMALL_WORDS, config, published, tree
from tests.filter_footage import encode, over, pan
from tests.media import write_video
from tests.player import ffmpeg
from tests.telecine import NTSC, fields_of, woven
from tests.thorough import but, nightly, thorough
from tests.warm import Warm

PARTS = {"part_s": 2.5}
SCENES = (40, 45, 30, 40, 33, 32)  # 8.8 s
REALTIME = {"cpu-used": "8", "deadline": "realtime", "g": "30"}


def usual(folder: Path) -> None:
    write_video(folder / "avc.mp4", SCENES, audio=True, options={"g": "30"})
    options = {"g": "30"}
    write_video(folder / "late sound.mkv", SCENES, rate=NTSC, audio=True, options=options, first_scene=10)
    joined = np.cumsum([0.0, *np.repeat([1 / 30, 1 / 24, 1 / 25], [85, 70, 65])])[:-1].tolist()
    write_video(folder / "joined.mp4", SCENES, times_s=joined, options=options, first_scene=60)


def other(folder: Path) -> None:
    """Reordered across key frames, of variable rate, too fast, with a last picture that is held, or joined."""
    write_video(folder / "vp9.webm", SCENES, codec="libvpx-vp9", options=REALTIME, first_scene=20)
    open_groups = "keyint=30:min-keyint=30:scenecut=0:open-gop=1:bframes=3:pools=1:log-level=none"
    write_video(
        folder / "hevc.mp4", SCENES, codec="libx265", options={"x265-params": open_groups}, first_scene=30
    )
    dropped = [n / 25 for n in range(sum(SCENES)) if n % 7 != 3]
    scenes = (len(dropped) - 100, 100)
    write_video(folder / "vfr.mkv", scenes, times_s=dropped, options={"g": "40"}, first_scene=40)
    fast = write_video(folder / "fast.mp4", (180, 260, 250), rate=50, options={"g": "60"}, first_scene=50)
    fast.write_bytes(with_entry_box(fast.read_bytes(), views(2)))  # of 3D, which is a reason
    even = write_video(folder.parent / "even.mp4", SCENES, options={"g": "30"}, first_scene=70)
    longer = f"setts=pts=PTS:dts=DTS:duration='if(eq(N,{sum(SCENES) - 1}),DURATION*50,DURATION)'"
    ffmpeg(["-i", str(even), "-c", "copy", "-bsf:v", longer, "-y", str(folder / "held.mp4")])
    twice = write_video(folder.parent / "twice.mp4", SCENES, options={"g": "30"}, first_scene=80)
    (folder / "twice.mp4").write_bytes(2 * twice.read_bytes())


def deep(folder: Path) -> None:
    """HEVC of 10 and of 8 bits in open and in closed groups, and in a scene that reaches over many parts."""
    kinds = (
        ("open.mp4", 1, 10),
        ("closed.mkv", 0, 10),
        ("eight.mp4", 1, 8),
        ("still.mp4", 1, 10),
        ("even.mkv", 1, 8),
    )
    for number, (name, groups, bits) in enumerate(kinds):
        words = f"keyint=30:min-keyint=30:scenecut=0:open-gop={groups}:bframes=3:pools=none:log-level=none"
        write_video(
            folder / name,
            (330,) if number > 2 else SCENES,
            codec="libx265",
            pix_fmt="yuv420p10le" if bits > 8 else "yuv420p",
            options={"preset": "ultrafast", "x265-params": words},
            first_scene=90 + 10 * number,
        )


def uncut(folder: Path) -> None:
    """Scenes that reach over many parts, so that their clips are cut from a decoder of their own."""
    write_video(folder / "still.mp4", (330,), audio=True, options={"g": "30"})
    write_video(folder / "still.mkv", (330,), options={"g": "45", "bf": "0"}, first_scene=50)


def in_band(folder: Path) -> None:
    """Parameter sets that change in the packets of the second half."""
    halves = [
        write_video(
            folder.parent / f"{number}.ts", (110,), options={"g": "30", "refs": refs}, first_scene=number
        )
        for number, refs in ((1, "1"), (9, "4"))
    ]
    words = "concat:" + "|".join(map(str, halves))
    ffmpeg(["-i", words, "-c", "copy", "-tag:v", "avc3", "-y", str(folder / "changes.mp4")])


def damaged(folder: Path) -> None:
    path = write_video(folder / "damaged.mp4", SCENES, options={"g": "30"})
    data, chance = bytearray(path.read_bytes()), random.Random(5)
    for _ in range(40):
        data[len(data) // 2 + chance.randrange(6000)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def odd(folder: Path) -> None:
    write_video(folder / "old.avi", SCENES, codec="mpeg4")
    options = {"x264-params": "keyint=30:open-gop=1:bframes=2:scenecut=0:mbtree=0"}
    write_video(folder / "open.mp4", SCENES, options=options, first_scene=20)
    write_video(folder / "interlaced.mp4", SCENES, options={"flags": "+ildct+ilme"}, first_scene=30)
    woven(folder / "telecined.mp4", fields_of(280), scenes=(100,), codec="libx264", flagged=False)
    jumping = [n / 25 + 100 * (n > 110) for n in range(sum(SCENES))]
    write_video(folder / "jumps.mkv", SCENES, times_s=jumping, first_scene=40)


class Films(NamedTuple):
    folder: Path
    whole: dict[str, bytes]
    """Dataset of one pass over each."""

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


Writing = Callable[[Path], None]
Making = Callable[..., Films]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Making:
    @cache
    def made(write: Writing, mode: str = "encode", max_bits: int = 8) -> Films:
        folder, out = tmp_path_factory.mktemp("films"), tmp_path_factory.mktemp("whole") / "dataset"
        write(folder)
        curate([str(folder)], str(out), config(cut={"mode": mode, "max_bits": max_bits}))
        return Films(folder, tree(out))

    return made


def steps(
    films: Path, out: Path, mode: str = "encode", max_bits: int = 8, **run: object
) -> list[tuple[str, str]]:
    """Curate, and return film and end of every step of a part: scanned, cut, or why the film stays whole."""
    seen: list[str] = []
    changes = config(run={**PARTS, **run}, cut={"mode": mode, "max_bits": max_bits})
    curate([str(films)], str(out), changes, lambda one: seen.append(one.current))
    found = (
        re.fullmatch(r"(.+), \d of \d parts (scanned|cut)(?:, but it stays whole: (.+))?", one)
        for one in seen
    )
    return [(Path(one[1]).name, one[3] or one[2]) for one in found if one]


@pytest.mark.parametrize("write", but([usual], [usual, other], ()))
def test_in_parts_it_has_the_same_bytes(films: Making, write: Writing, tmp_path: Path) -> None:
    some, out = films(write), tmp_path / "dataset"
    done = steps(some.folder, out)
    assert tree(out) == some.whole
    for name in some.names():
        assert done.count((name, "scanned")) >= 2
        assert done.count((name, "cut")) >= 2
    assert {end for _, end in done} == {"scanned", "cut"}
    assert not list((out / ".ledger").rglob("parts/*"))


@pytest.mark.parametrize("write", but([], [usual, uncut, other, deep], [uncut]))
def test_smart_cuts_in_parts_have_the_same_bytes(films: Making, write: Writing, tmp_path: Path) -> None:
    how = ("smart", 10) if write is deep else ("smart",)
    some, out = films(write, *how), tmp_path / "dataset"
    done = steps(some.folder, out, *how)
    assert tree(out) == some.whole
    assert {name for name, end in done if end == "cut"} == some.names()
    reasons = [record["reason"] or "" for record in open_dataset(out).accounting.to_pylist()]
    assert any(reason.startswith("smart: ") for reason in reasons), reasons


@thorough
def test_films_whose_parameter_sets_change_stay_whole_for_smart_cuts(films: Making, tmp_path: Path) -> None:
    some, out = films(in_band, "smart"), tmp_path / "dataset"
    done = steps(some.folder, out, "smart")
    assert tree(out) == some.whole
    assert ("changes.mp4", "its parameter sets change, or lie in its packets alone") in done


@thorough
def test_smart_cuts_that_do_not_verify_are_encoded_whole_in_parts(
    films: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reelweave.curate.cut.smart.check._LEVELS", -50.0)
    folder = films(uncut, "smart").folder
    curate([str(folder)], str(tmp_path / "whole"), config(cut={"mode": "smart"}))
    done = steps(folder, tmp_path / "parts", "smart")
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    assert "cut" in {end for _, end in done}
    reasons = [row["reason"] or "" for row in open_dataset(tmp_path / "parts").accounting.to_pylist()]
    assert any(reason.startswith("encoded: its smart cut did not verify: frame ") for reason in reasons)


@nightly
@pytest.mark.parametrize("mode", ["encode", "smart"])
def test_on_ray_in_parts_it_has_the_same_bytes(
    films: Making, mode: str, tmp_path: Path, ray_local: str
) -> None:
    some, out = films(usual, mode), tmp_path / "dataset"
    done = steps(some.folder, out, mode, runner="ray", isolate=True)
    assert tree(out) == some.whole
    assert {film for film, end in done if end == "cut"} == some.names()


@nightly
def test_hdr_of_10_bits_in_parts_has_the_same_bytes(tmp_path: Path) -> None:
    """The join hands on depth and light, which only the first frame of the source tells."""
    light = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,50):max-cll=1000,400"
    colour = "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"
    options = {"x265-params": f"keyint=30:pools=1:log-level=none:{colour}:{light}"}
    film = write_video(
        tmp_path / "hdr.mp4",
        (150, 150),
        codec="libx265",
        pix_fmt="yuv420p10le",
        options=options,
    )
    for name, run in (("whole", {}), ("parts", PARTS)):
        curate([str(film)], str(tmp_path / name), config(cut={"max_bits": 10}, run=run))
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    (shard,) = (tmp_path / "parts/shards").glob("*.tar")
    with tarfile.open(shard) as tar:
        clip = next(tar.extractfile(member).read() for member in tar if member.name.endswith(".mp4"))
    with av.open(io.BytesIO(clip)) as container:
        frame = next(container.decode(video=0))
    assert frame.format.name == "yuv420p10le"
    assert light_of(frame).levels == (1000, 400)


@pytest.mark.parametrize("mode", but([], ["encode", "smart"], ["encode"]))
def test_bars_in_parts_are_those_of_one_pass(mode: str, tmp_path: Path) -> None:
    """Frames are measured in the same moments, wherever a part begins; wrong guesses are cut anew."""
    path = encode(tmp_path / "bars.mp4", [*two_shots(), *widening()], options={"g": "30"})
    values = {"crop_bars": True, "mode": mode}
    seen: list[str] = []
    for name, run in (("whole", {}), ("parts", PARTS)):
        settings = config(cut=values, run=run)
        curate([str(path)], str(tmp_path / name), settings, lambda one: seen.append(one.current))
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    scores = pq.read_table(tmp_path / "whole/scores.parquet")["scores"].to_pylist()
    assert sum("crop_top_px" in dict(one) for one in scores) >= 3
    assert any("parts cut" in one for one in seen)


@nightly
def test_lowered_rates_in_parts_are_those_of_one_pass(tmp_path: Path) -> None:
    usual(tmp_path / "films")
    for name, run in (("whole", {}), ("parts", PARTS)):
        curate([str(tmp_path / "films")], str(tmp_path / name), config(cut={"fps": 16}, run=run))
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    assert set(pq.read_table(tmp_path / "whole/index.parquet")["fps"].to_pylist()) == {16.0}


@thorough
def test_text_in_parts_is_what_one_pass_reads(tmp_path: Path) -> None:
    """What OCR reads, and the edges that stay, ride beside the clips that parts encode ahead."""
    film = encode(
        tmp_path / "titled.mp4", over(pan(150), "and then they went home", (0.5, 0.88)), options={"g": "30"}
    )
    scored = {"ocr": "rapidocr", "graphics": True}
    for name, run in (("whole", {}), ("parts", PARTS)):
        curate([str(film)], str(tmp_path / name), config(scores=scored, run=run, spans={"max_clip_s": 2.0}))
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    scores = pq.read_table(tmp_path / "whole/scores.parquet")["scores"].to_pylist()
    assert len(scores) > 1
    assert all(dict(one)["ocr_chars"] > 15 for one in scores)
    assert all("static_edges" in dict(one) for one in scores)


@pytest.mark.parametrize("write", but([damaged], [damaged, odd], ()))
def test_what_is_unusual_stays_whole(films: Making, write: Writing, tmp_path: Path) -> None:
    some, out = films(write), tmp_path / "dataset"
    done = steps(some.folder, out)
    assert tree(out) == some.whole
    assert "cut" not in {end for _, end in done}
    whys = dict(one for one in done if one[1] != "scanned")
    if write is damaged:
        assert whys == {"damaged.mp4": "some of it is damaged"}
    else:
        assert whys["open.mp4"] == "decoding cannot begin exactly at one of its key frames"


def turned(folder: Path) -> None:
    turned_film(folder / "turned.mp4", "libx264", every=25)
    (folder / "whole.mp4").unlink()


def test_films_that_their_codec_turns_stay_whole(films: Making, tmp_path: Path) -> None:
    """Clips of such a film of half an hour had no reason."""
    some, out = films(turned), tmp_path / "dataset"
    done = steps(some.folder, out, part_s=1.0)
    assert tree(out) == some.whole
    assert set(done) == {("turned.mp4", "its codec turns some of it")}


@pytest.mark.parametrize("mode", but(["encode"], ["encode", "smart"]))
def test_a_killed_run_repeats_only_the_parts_in_work(
    films: Making, mode: str, tmp_path: Path, warm: Warm
) -> None:
    film, out = films(usual).folder / "avc.mp4", tmp_path / "dataset"
    for step in ("scan", "cut"):
        settings = ("--set=run.part_s=2.5", f"--set=cut.mode={mode}")
        words = ("curate", str(film), "--out", str(out), *SMALL_WORDS, *settings)
        assert warm.start(*words, killed_behind=f"{step}-0000.json").ended()[0] == -9
    ended = [len(list(out.rglob(f"{step}-*.json"))) for step in ("scan", "cut")]
    assert ended[0] == 3
    assert len(list(out.rglob("ahead-*/*.parquet"))) >= 3  # clips of the scan, which need no second decode
    assert steps(film, out, mode) == [("avc.mp4", "cut")] * (3 - ended[1])
    curate([str(film)], str(tmp_path / "whole"), config(cut={"mode": mode}))
    assert published(out) == tree(tmp_path / "whole")
