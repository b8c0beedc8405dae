"""Long sources in parts: the bytes of one pass over the whole, on both runners, restartable by parts."""

import io
import random
import re
import tarfile
import time
from pathlib import Path

import av
import pytest

from curate.run.curate import curate
from loader.dataset.colour.light import light_of
from tests.curate.run.test_run import SMALL_WORDS, config, tree
from tests.media import write_video
from tests.thorough import thorough
from tests.warm import Warm

PARTS = {"part_s": 4.0}
SCENES = (40, 85, 30, 70, 33, 92)  # 14 s
REALTIME = {"cpu-used": "8", "deadline": "realtime", "g": "30"}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films in parts: their pictures are reordered, of variable rate, or so fast that frames are left out."""
    folder = tmp_path_factory.mktemp("films")
    write_video(folder / "avc.mp4", SCENES, audio=True, options={"g": "30"})
    write_video(folder / "late sound.mkv", SCENES, audio=True, options={"g": "30"}, first_scene=10)
    write_video(folder / "vp9.webm", SCENES, codec="libvpx-vp9", options=REALTIME, first_scene=20)
    open_groups = {
        "x265-params": "keyint=30:min-keyint=30:scenecut=0:open-gop=1:bframes=3:pools=1:log-level=none"
    }
    write_video(folder / "hevc.mp4", SCENES, codec="libx265", options=open_groups, first_scene=30)
    dropped = [n / 25 for n in range(sum(SCENES)) for _ in range(n % 7 != 3)]
    scenes = (len(dropped) - 200, 200)
    write_video(folder / "vfr.mkv", scenes, times_s=dropped, options={"g": "40"}, first_scene=40)
    write_video(folder / "fast.mp4", (180, 260, 250), rate=50, options={"g": "60"}, first_scene=50)
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films that stay whole: without an index of key frames, damaged, with groups that no IDR picture begins."""
    folder = tmp_path_factory.mktemp("odd")
    write_video(folder / "old.avi", SCENES, codec="mpeg4")
    damaged = bytearray(
        write_video(folder / "damaged.mp4", SCENES, options={"g": "30"}, first_scene=10).read_bytes()
    )
    chance = random.Random(5)
    for _ in range(40):
        damaged[len(damaged) // 2 + chance.randrange(6000)] ^= 1 << chance.randrange(8)
    (folder / "damaged.mp4").write_bytes(damaged)
    options = {"x264-params": "keyint=30:open-gop=1:bframes=2:scenecut=0:mbtree=0"}
    write_video(folder / "open.mp4", SCENES, options=options, first_scene=20)
    write_video(folder / "interlaced.mp4", SCENES, options={"flags": "+ildct+ilme"}, first_scene=30)
    write_video(
        folder / "jumps.mkv", SCENES, times_s=[n / 25 + 100 * (n > 150) for n in range(350)], first_scene=40
    )
    return folder


@pytest.fixture(scope="module")
def whole(films: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "dataset"
    curate([str(films)], str(out), config())
    return tree(out)


def steps(films: Path, out: Path, **run: object) -> list[tuple[str, str]]:
    """Curate, and return (film, step) of every part that was worked on."""
    seen: list[str] = []
    curate([str(films)], str(out), config(run={**PARTS, **run}), lambda one: seen.append(one.current))
    found = (re.fullmatch(r"(.+), \d of (\d) parts (scanned|cut)", one) for one in seen)
    return [(Path(one[1]).name, one[3]) for one in found if one]


def test_in_parts_it_has_the_same_bytes(films: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    done = steps(films, tmp_path / "dataset")
    assert tree(tmp_path / "dataset") == whole
    for film in films.iterdir():
        assert done.count((film.name, "scanned")) == 3
        assert done.count((film.name, "cut")) >= 2
    assert not list((tmp_path / "dataset/.ledger").rglob("parts/*"))


def test_on_ray_in_parts_it_has_the_same_bytes(
    films: Path, whole: dict[str, bytes], tmp_path: Path, ray_local: str
) -> None:
    done = steps(films, tmp_path / "dataset", runner="ray", isolate=True)
    assert tree(tmp_path / "dataset") == whole
    assert {film for film, step in done if step == "cut"} == {film.name for film in films.iterdir()}


@thorough
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


def test_what_is_unusual_stays_whole(odd: Path, tmp_path: Path) -> None:
    curate([str(odd)], str(tmp_path / "whole"), config())
    done = steps(odd, tmp_path / "parts")
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    assert [film for film, step in done if step == "cut"] == []


def test_a_killed_run_repeats_only_the_part_in_work(films: Path, tmp_path: Path, warm: Warm) -> None:
    film, out = films / "avc.mp4", tmp_path / "dataset"
    curate([str(film)], str(tmp_path / "whole"), config())
    ended: list[tuple[int, int]] = []
    for step in ("scan", "cut"):
        run = warm.start("curate", str(film), "--out", str(out), *SMALL_WORDS, "--set=run.part_s=4")
        while not run.has_ended() and not list(out.rglob(f"{step}-0000.json")):
            time.sleep(0.005)
        assert run.kill()
        ended.append((len(list(out.rglob("scan-*.json"))), len(list(out.rglob("cut-*.json")))))
    assert ended[0][0] >= 1
    assert ended[1][0] == 3
    done = steps(film, out)
    assert done == [("avc.mp4", "cut")] * (3 - ended[1][1])
    found = {name: data for name, data in tree(out).items() if not name.startswith("report/")}
    assert found == tree(tmp_path / "whole")
