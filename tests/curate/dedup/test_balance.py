"""Concept balance: no concept has more clips than its cap, the best are kept, and none of the others is lost."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.curate.dedup import balance
from reelweave.curate.dedup.types import BalanceConfig, Surplus
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import RunError
from tests.curate.dedup.items import DedupItem, columns
from tests.curate.run.test_run import config
from tests.filter_footage import encode, pan

CONCEPTS = {"dog": 40, "car": 12, "kite": 3}


def clips_of(seed: int = 0) -> list[DedupItem]:
    """Clips of three concepts of very different numbers, none like another."""
    chance = np.random.default_rng(seed)
    items = []
    for axis, (name, count) in enumerate(CONCEPTS.items()):
        for number in range(count):
            vector = 0.1 * chance.standard_normal(16).astype(np.float32)
            vector[axis] += 1
            items.append(
                DedupItem(
                    f"{name}-{number:02}",
                    f"{name}{number}",
                    f"{name}.mp4",
                    (float(number),),
                    embedding=vector / np.linalg.norm(vector),
                )
            )
    return items


def surplus_of(
    items: Sequence[DedupItem], older: Sequence[DedupItem] = (), **values: Any
) -> dict[str, Surplus]:
    return balance(columns(items, older), (), BalanceConfig(**values)).surplus


def test_the_best_of_each_concept_are_kept() -> None:
    items = clips_of()
    surplus = surplus_of(items, max_clips=10, concepts=3)
    kept = [item.key for item in items if item.key not in surplus]
    assert Counter(key.split("-")[0] for key in kept) == {"dog": 10, "car": 10, "kite": 3}
    assert {f"dog-{number}" for number in range(30, 40)} <= set(kept)
    assert surplus["dog-00"].clips == 40


def test_duplicates_fill_no_concept() -> None:
    items = clips_of()
    duplicates = [item.key for item in items if item.key.startswith("dog")][10:]
    found = balance(columns(items), duplicates, BalanceConfig(max_clips=10, concepts=3))
    assert set(found.surplus) == {"car-00", "car-01"}


def test_the_order_of_the_clips_does_not_matter() -> None:
    items = clips_of()
    surplus = surplus_of(items, max_clips=5, concepts=6)
    random.Random(3).shuffle(items)
    assert surplus_of(items, max_clips=5, concepts=6) == surplus


def test_old_clips_stay_and_count_first() -> None:
    items = clips_of()
    older = [item for item in items if item.key.startswith("dog")][:12]
    new = [item for item in items if item not in older]
    surplus = surplus_of(new, older, max_clips=10, concepts=3)
    assert not {item.key for item in older} & set(surplus)
    assert {item.key for item in new if item.key.startswith("dog")} <= set(surplus)
    assert "the 12 of the dataset stay, then the best" in surplus[new[0].key].reason
    assert balance(columns(new, older), (), BalanceConfig(max_clips=10, concepts=3)).old_beyond == 2


@pytest.mark.parametrize("values", [{}, {"max_clips": 1000}, {"max_clips": 40, "concepts": 3}])
def test_nothing_is_dropped_without_need(values: dict[str, Any]) -> None:
    assert not surplus_of(clips_of(), **values)


def test_clips_without_an_embedding_have_no_concept() -> None:
    bare = [DedupItem(f"bare-{number}", str(number), "a.mp4", (1.0,)) for number in range(5)]
    surplus = surplus_of([*clips_of(), *bare], max_clips=1, concepts=3)
    assert not any(key.startswith("bare") for key in surplus)


STAGES = """
from reelweave import CustomStage, Embedded


class Looks(CustomStage):
    embeds = True

    def __call__(self, clips):
        return [Embedded(clip.pictures(1, size=(8, 8)).ravel().astype(float) + 1) for clip in clips]


class Liked(CustomStage):
    scores = {"liked": "1 for what somebody likes"}

    def __call__(self, clips):
        return [{"liked": float(RULE)} for clip in clips]
"""


def four_films(folder: Path, cap: int) -> dict[str, Any]:
    """Films of one clip each, and a configuration that caps their only concept."""
    (folder / "films").mkdir()
    for number in range(4):
        encode(folder / f"films/{number}.mp4", pan(40, 2, number))
    (folder / "looks.py").write_text(STAGES)
    return {
        "stages": {"looks": {"use": f"{folder / 'looks.py'}:Looks"}},
        "embed": {"backend": "stages.looks"},
        "dedup": {"balance": {"max_clips": cap, "concepts": 1}},
    }


def states_of(folder: Path, values: dict[str, Any], out: str, **options: bool) -> dict[str, tuple[str, str]]:
    """State and stage of each clip of a run, by key."""
    curate([str(folder / "films")], str(folder / out), config(**values), **options)
    return {
        row["key"]: (row["state"], row["stage"]) for row in open_dataset(folder / out).accounting.to_pylist()
    }


def test_a_run_names_what_a_full_concept_leaves_out(tmp_path: Path) -> None:
    values = four_films(tmp_path, 1)
    states = states_of(tmp_path, values, "out")
    assert Counter(states.values()) == {("kept", "cut"): 1, ("filtered", "dedup.balance"): 3}
    reasons = {row["reason"] for row in open_dataset(tmp_path / "out").accounting.to_pylist()} - {""}
    assert reasons == {
        "its concept, number 1 of 1, has 4 clips, more than dedup.balance.max_clips = 1: the best are kept"
    }
    values["dedup"]["balance"]["max_clips"] = 3
    wider = states_of(tmp_path, values, "out", update=True)
    assert Counter(wider.values())["kept", "cut"] == 3
    assert {key for key, state in states.items() if state[0] == "kept"} <= {
        key for key, state in wider.items() if state[0] == "kept"
    }


def test_vectors_of_several_sizes_name_their_stage(tmp_path: Path) -> None:
    values = four_films(tmp_path, 1)
    code = (tmp_path / "looks.py").read_text()
    (tmp_path / "looks.py").write_text(code.replace("size=(8, 8)", "size=(8 + int(clip.key, 16) % 4, 8)"))
    with pytest.raises(RunError, match=r"^stages.looks: the vectors of clips have different sizes"):
        states_of(tmp_path, values, "out")


def test_a_lower_cap_leaves_the_clips_of_the_dataset_and_says_so(tmp_path: Path) -> None:
    values = four_films(tmp_path, 4)
    states_of(tmp_path, values, "out")
    values["dedup"]["balance"]["max_clips"] = 1
    outcome = curate([str(tmp_path / "films")], str(tmp_path / "out"), config(**values), update=True)
    assert len(open_dataset(tmp_path / "out")) == 4
    [note] = [note for note in outcome.notes if "dedup.balance" in note]
    assert note.startswith("3 clips of the dataset stay beyond dedup.balance.max_clips = 1")


def test_a_clip_that_a_later_stage_rejects_leaves_room(tmp_path: Path) -> None:
    values = four_films(tmp_path, 2)
    best = [key for key, state in states_of(tmp_path, values, "all").items() if state[0] == "kept"]
    (tmp_path / "liked.py").write_text(STAGES.replace("RULE", f"clip.key != {best[0]!r}"))
    values["stages"]["liked"] = {"use": f"{tmp_path / 'liked.py'}:Liked", "after_dedup": True}
    values["filters"] = {"min_liked": 0.5}
    states = states_of(tmp_path, values, "out")
    assert states[best[0]] == ("filtered", "filter.liked")
    assert states[best[1]] == ("kept", "cut")
    assert Counter(states.values())["kept", "cut"] == 2
