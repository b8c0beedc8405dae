"""Fragmented MP4 that ends within the header of a fragment, or of which one is overwritten."""

from pathlib import Path

import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from tests.curate.frames.test_segments import muxed
from tests.cutting import curated
from tests.media import read_numbers, write_video
from tests.thorough import but

FRAGMENTS = "frag_keyframe+empty_moov+default_base_moof"


def fragmented(folder: Path, suffix: str = ".mp4") -> tuple[Path, list[int]]:
    """A film of 100 frames, and where each of its four fragments begins."""
    source = write_video(folder / "whole.mp4", (100,), options={"g": "25"})
    path = muxed(source, folder / f"a{suffix}", {"movflags": FRAGMENTS})
    media, places = path.read_bytes(), list[int]()
    while (at := media.find(b"moof", places[-1] + 8 if places else 0)) > 0:
        places.append(at - 4)
    assert len(places) == 4
    return path, places


@pytest.mark.parametrize(
    ("suffix", "more"), but(((".mp4", 40),), ((".mp4", 20), (".mp4", 40), (".mp4", 300), (".mov", 40)))
)
def test_a_film_cut_off_within_the_header_of_a_fragment_is_read_up_to_it(
    suffix: str, more: int, tmp_path: Path
) -> None:
    path, places = fragmented(tmp_path, suffix)
    path.write_bytes(path.read_bytes()[: places[3] + more])
    (record, clip), (last, _) = curated(path, tmp_path / "out")
    assert (record.state, record.frames, record.reason) == ("kept", 75, "")
    assert read_numbers(clip) == list(range(75))
    assert (last.state, last.start_s, last.end_s) == ("failed", 3.0, 3.0)
    assert last.reason == (
        "reading ends before the end of the file: a fragment is cut off within its header"
        f" (moof, from byte {places[3]} on)"
    )


@pytest.mark.parametrize("number", but((2,), (0, 2)))
def test_what_lies_behind_an_overwritten_header_of_a_fragment_is_said(number: int, tmp_path: Path) -> None:
    path, places = fragmented(tmp_path)
    media = path.read_bytes()
    mdat = media.index(b"mdat", places[number]) - 4
    path.write_bytes(media[: places[number]] + bytes(mdat - places[number]) + media[mdat:])
    *_, (last, _) = found = curated(path, tmp_path / "out")
    if number:
        ((record, clip), _) = found
        assert (record.state, read_numbers(clip)) == ("kept", list(range(25 * number)))
        assert last.reason.startswith("reading ends before the end of the file: ")
    assert last.state == "failed"
    assert f"no box of MP4 begins at byte {places[number]}" in last.reason
    with pytest.raises(SourceError, match=f"no box of MP4 begins at byte {places[number]}"):
        probe(path.read_bytes())


def test_a_whole_film_in_fragments_says_nothing(tmp_path: Path) -> None:
    path, _ = fragmented(tmp_path)
    ((record, _),) = curated(path, tmp_path / "out")
    assert (record.state, record.reason) == ("kept", "")


@pytest.mark.parametrize("is_hidden", [True, False])
def test_an_index_at_the_end_of_the_fragments_of_a_film_is_no_other_film(
    is_hidden: bool, tmp_path: Path
) -> None:
    """The writer hides the fragments in a box at last, as its step that a crash may take."""
    source = write_video(tmp_path / "whole.mp4", (100,), options={"g": "25"})
    path = muxed(source, tmp_path / "a.mp4", {"movflags": "hybrid_fragmented+frag_keyframe"})
    media = bytearray(path.read_bytes())
    if not is_hidden:
        at = media.index(b"mdat")
        assert media[at + 8 : at + 12] == b"ftyp"
        media[at - 4 : at + 4] = (8).to_bytes(4, "big") + b"free"
        path.write_bytes(media)
    ((record, clip),) = curated(path, tmp_path / "out")
    assert (record.state, record.reason, read_numbers(clip)) == ("kept", "", list(range(100)))
    assert not probe(path.read_bytes()).rest
