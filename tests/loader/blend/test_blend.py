"""Blend files: what they name, as Megatron-Energon reads them too, and what is wrong with them."""

import pickle
import shutil
from pathlib import Path

import pytest
import yaml

from reelweave.loader.blend import open_blend, open_source
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.httpserver import web_server
from tests.loader.blend.blend_datasets import blend_of, content, leaf_keys, write_dataset
from tests.s3server import make_bucket, s3_server

ENERGON = """
__module__: megatron.energon
__class__: MetadatasetV2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blend")
    write_dataset(folder / "clips", 100, 9)
    write_dataset(folder / "images", 51)
    return folder


@pytest.fixture
def file(folder: Path, request: pytest.FixtureRequest) -> Path:
    """A name beside the datasets, of which each test has its own."""
    return folder / f"{abs(hash(request.node.nodeid))}.yaml"


def test_energon_sees_the_same_samples_weights_and_subflavors(folder: Path) -> None:
    (folder / "inner.yaml").write_text(
        ENERGON
        + """
splits:
  train:
    blend:
    - {path: clips, weight: 3, subset: {range: [10, end]}, subflavors: {x: 1, y: 2}}
    - {path: images, subset: {range: [0%, 29%]}}
  val: {path: clips, subset: {range: [25%, 100%]}}
"""
    )
    outer = folder / "outer.yaml"
    outer.write_text(
        ENERGON
        + """
splits:
  train:
    subset: {range: [20%, 90%]}
    blend:
    - {path: ./inner.yaml, weight: 0.3, subset: {range: [0%, 50%]}, subflavors: {x: 5}}
    - {path: clips, split_part: val, weight: 0.7}
    - {path: ./inner.yaml, split_part: val}
  val:
    path: inner.yaml
    subset: {range: [0%, 50%]}
  cut:
    path: clips
    split_part: train
    subset: {range: [0%, 29%]}
  counted:
    blend_epochized:
    - {path: clips, split_part: train, repetitions: 1.5, subset: {range: [30, 41]}}
    - {path: images, split_part: train}
"""
    )
    from megatron.energon import WorkerConfig, load_dataset

    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    found: dict[str, list] = {}
    for split in ("train", "val", "cut", "counted"):
        found[split] = []
        parts = load_dataset(outer).get_datasets(training=False, split_part=split, worker_config=worker)
        for leaf in parts.datasets:
            dataset = leaf.dataset.build()
            worker.worker_activate(0)
            keys = sorted(one.__key__ if hasattr(one, "__key__") else one["__key__"] for one in dataset)
            worker.worker_deactivate()
            found[split].append([leaf.weight, leaf.repetitions, leaf.dataset.subflavors, keys])
    for split, energons in found.items():
        blend = open_blend(str(outer), split)
        assert leaf_keys(blend) == [keys for *_, keys in energons], split
        assert [leaf.subflavors for leaf in blend.leaves] == [subflavors for *_, subflavors, _ in energons], (
            split
        )
        share = blend.shares()
        total = sum(share)
        for own, (weight, repetitions, _, keys) in zip(share, energons, strict=True):
            if repetitions is not None:
                assert own == repetitions * len(keys)
            elif weight is not None:
                assert own / total == pytest.approx(weight, rel=1e-12)
            else:
                assert own == len(keys)
    assert len(leaf_keys(open_blend(str(outer), "cut"))[0]) == 28  # 0.29 * 100 in floats


def test_a_dataset_that_two_leaves_use_is_there_once(file: Path) -> None:
    halves = [
        {"path": "clips", "subset": {"range": ["0%", "50%"]}},
        {"path": f"../{file.parent.name}/clips"},
        {"path": "images"},
    ]
    blend = blend_of(file, train={"blend": halves})
    assert [leaf.dataset for leaf in blend.leaves] == [0, 0, 1]
    assert len(blend.plan_index) == 109 + 51


def test_members_and_datasets_are_those_of_the_row(file: Path) -> None:
    blend = blend_of(file, train={"blend": [{"path": "images"}, {"path": "clips"}]})
    keys = [blend.key(row) for row in range(len(blend.plan_index))]
    assert [content(blend, row) for row in range(len(keys))] == [key.encode() for key in keys]
    names = ["images", "clips"]
    assert [names[number] for number in blend.dataset_of_N] == [key.split("-")[0] for key in keys]


def test_names_are_the_paths_or_given_and_tell_siblings_apart(file: Path, folder: Path) -> None:
    web = folder / "web.yaml"
    web.write_text(yaml.safe_dump({"splits": {"train": {"blend": [{"path": "clips"}, {"path": "images"}]}}}))
    blend = blend_of(
        file,
        train={
            "blend": [
                {"path": "web.yaml"},
                {"path": "images"},
                {"path": "images", "name": "pictures"},
                {"path": "images"},
                {"blend": [{"path": "clips"}]},
            ]
        },
    )
    assert [leaf.name for leaf in blend.leaves] == [
        "web/clips",
        "web/images",
        "images[1]",
        "pictures",
        "images[3]",
        "4/clips",
    ]


def test_a_pickled_blend_draws_and_reads_the_same(file: Path) -> None:
    blend = blend_of(file, train={"blend": [{"path": "images"}, {"path": "clips", "weight": 2}]})
    draws = blend.draws(3, 1)
    small = pickle.dumps(blend)
    copy: object = pickle.loads(small)
    assert copy.draws(3, 1).rows.tolist() == draws.rows.tolist()
    assert content(copy, 60) == content(blend, 60)
    assert copy.fingerprint == blend.fingerprint


def test_the_fingerprint_follows_what_is_drawn_and_not_where_it_lies(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere"
    shutil.copytree(folder / "clips", there / "data" / "clips")
    shutil.copytree(folder / "images", there / "pictures")
    (tmp_path / "here").mkdir()
    parts = [{"path": str(folder / "clips"), "weight": 2}, {"path": str(folder / "images")}]
    moved = [{"path": "data/clips", "weight": 2.0}, {"path": "pictures"}]
    first = blend_of(tmp_path / "here" / "a.yaml", train={"blend": parts}).fingerprint
    assert blend_of(there / "b.yaml", train={"blend": moved}).fingerprint == first
    for change in (
        {"weight": 3},
        {"split_part": "val"},
        {"subset": {"range": [0, 99]}},
        {"path": "pictures"},
    ):
        other = blend_of(there / "c.yaml", train={"blend": [{**moved[0], **change}, moved[1]]})
        assert other.fingerprint != first, change
    for change in ({"weight_by": "tokens"}, {"epoch_samples": 7}):
        assert blend_of(there / "d.yaml", train={"blend": moved, **change}).fingerprint != first, change
    counted = [{"path": "data/clips", "repetitions": 2}, {"path": "pictures"}]
    assert blend_of(there / "e.yaml", train={"blend_epochized": counted}).fingerprint != first


def test_a_blend_file_on_s3_names_what_lies_beside_it(folder: Path) -> None:
    with s3_server() as url:
        make_bucket(url, "bucket")
        config = StorageConfig(endpoint_url=url)
        place = open_storage("s3://bucket/data", config)
        for path in (folder / "images").rglob("*"):
            if path.is_file():
                place.write(f"images/{path.relative_to(folder / 'images')}", path.read_bytes())
        place.write("blends/inner.yaml", b"splits: {train: {path: ../images}}")
        place.write(
            "blends/a.yaml",
            b"splits: {train: {blend: [{path: inner.yaml}, {path: 's3://bucket/data/images'}]}}",
        )
        blend = open_blend("s3://bucket/data/blends/a.yaml", config=config)
        assert len(blend.datasets) == 1
        assert [leaf.name for leaf in blend.leaves] == ["inner", "images"]
        assert sorted(content(blend, row) for row in range(51)) == sorted(
            key.encode() for key in leaf_keys(blend)[0]
        )
        elsewhere = [
            f"file://{folder}/images",
            "s3://other/images",
            "http://127.0.0.1/images",
            "s3://other/c.yaml",
        ]
        for path in elsewhere:
            place.write("blends/c.yaml", f"splits: {{train: {{path: '{path}'}}}}".encode())
            place.write("blends/d.yaml", b"splits: {train: {path: c.yaml}}")
            for blend_file in ("c.yaml", "d.yaml"):
                with pytest.raises(UsageError, match=r"c\.yaml.*storage\.allowed_prefixes"):
                    open_blend(f"s3://bucket/data/blends/{blend_file}", config=config)
        place.write("blends/c.yaml", f"splits: {{train: {{path: '{elsewhere[0]}'}}}}".encode())
        allowed = config.model_copy(update={"allowed_prefixes": (f"{folder}/",)})
        assert len(open_blend("s3://bucket/data/blends/c.yaml", config=allowed).datasets) == 1
        for path in ("/etc", "../../../images"):
            place.write("blends/b.yaml", f"splits: {{train: {{path: {path}}}}}".encode())
            with pytest.raises(UsageError, match=r"b\.yaml: splits\.train\.path:.*beside"):
                open_blend("s3://bucket/data/blends/b.yaml", config=config)


def test_a_source_is_a_dataset_or_a_blend(file: Path, folder: Path) -> None:
    blend_of(file, train={"path": "images"})
    assert isinstance(open_source(str(folder / "images")), Dataset)
    assert open_source(str(file)).fingerprint != open_dataset(folder / "images").fingerprint


CLIPS = {"path": "clips"}


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"blend": [{**CLIPS, "wieght": 1}]}, r"splits\.train\.blend\.0\.wieght.*did you mean weight\?"),
        ({"blend": [{**CLIPS, "repetitions": 2}]}, r"blend\.0\.repetitions.*no known key"),
        ({"path": "clips", "subset": {"rang": [0, 1]}}, r"subset\.rang.*did you mean range\?"),
        ({"path": "clips", "blend": [CLIPS]}, r"splits\.train.*path and blend"),
        ({"split_part": "val"}, r"splits\.train.*none of them"),
        ({"blend": [CLIPS], "split_part": "val"}, r"splits\.train.*split_part belongs to a node with path"),
        ({"path": "clips", "weight_by": "tokens"}, r"splits\.train.*weight_by belongs to a node with blend"),
        ({"blend": []}, r"splits\.train: blend is empty"),
        ({"blend": [{**CLIPS, "weight": -1}]}, r"blend\.0\.weight.*-1"),
        ({"blend": [{**CLIPS, "weight": float("nan")}]}, r"blend\.0\.weight.*nan"),
        ({"blend": [{**CLIPS, "weight": True}]}, r"blend\.0\.weight.*True"),
        ({"blend": [{**CLIPS, "weight": 0}]}, r"splits\.train\.blend: weight is 0 for all of clips"),
        ({**CLIPS, "subset": {"range": ["20%", 30]}}, r"subset.*\[20%, 30\] is no range"),
        ({**CLIPS, "subset": {"range": [30, 20]}}, r"subset.*\[30, 20\]"),
        ({**CLIPS, "subset": {"range": ["0%", "120%"]}}, r"subset.*between 0% and 100%"),
        ({**CLIPS, "subset": {"range": [0.1, 0.5]}}, r"subset: \[0\.1, 0\.5\] is no range"),
        ({**CLIPS, "subset": {"range": [50, 101]}}, r"splits\.train\.path:.*\[50, 101\].* 100 samples"),
        ({**CLIPS, "subset": {"range": [50, 50]}}, r"splits\.train\.path takes no sample"),
        ({**CLIPS, "split_part": "vall"}, r"splits\.train\.path takes no sample; split vall"),
        ({"blend": [CLIPS], "subset": {"range": [0, 5]}}, r"splits\.train\.subset: only a dataset"),
        ({"path": "self.yaml", "subset": {"range": [0, 5]}}, r"splits\.train\.subset: only a dataset"),
        ({"join": {"a": CLIPS}, "joiner": "f"}, r"splits\.train\.join.*not joined"),
        ({**CLIPS, "aux": {"media": "x"}}, r"splits\.train\.aux.*auxiliary"),
        ({**CLIPS, "shuffle_over_epochs_multiplier": -1}, r"shuffle_over_epochs_multiplier.*-1"),
        ({"datasets": [CLIPS]}, r"splits\.train\.datasets.*version 1"),
        ({"path": "self.yaml"}, r"leads back to.*self\.yaml"),
        ({"blend": [CLIPS, {"path": "missing.yaml"}]}, r"blend\.1\.path: there is no file.*missing\.yaml"),
        ({"path": "msc://profile/data"}, r"splits\.train\.path: cannot open msc://"),
        ({"blend": [{**CLIPS, "name": "a/b"}]}, r"blend\.0\.name"),
        ("clips", r"splits\.train"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_key(folder: Path, train: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        blend_of(folder / "self.yaml", train=train)
    assert str(folder / "self.yaml") in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("splits: [", "line 1 is no YAML"),
        ("splits: {train: &a {blend: [*a]}}", "the alias a stands within what it names"),
        ("a: " + "[" * 100_000, "nested more than 64 deep"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 2001-99-99", "splits: Field required"),
        ("- a", "no mapping"),
        ("splits: {train: {path: clips}}\nsplit: 1", "did you mean splits?"),
        ("__module__: megatron.energon\n__class__: Metadataset\nsplits: {}", "version 1"),
        ("__module__: os\n__class__: MetadatasetV2\nsplits: {}", "only MetadatasetV2"),
        ("splits: {val: {path: clips}}", "has no split train; it has val"),
        ("# " + "x" * (1 << 20), "a blend file may have"),
    ],
)
def test_what_is_no_blend_file_is_refused_in_words(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        open_blend(str(file))
    assert said in str(raised.value)
    assert str(file) in str(raised.value)


def test_a_missing_dataset_is_a_failure_that_names_the_key(file: Path) -> None:
    with pytest.raises(RunError, match=r"splits\.train\.blend\.0\.path:.*no finished dataset"):
        blend_of(file, train={"blend": [{"path": "nothing"}]})


def test_files_that_multiply_are_stopped(folder: Path) -> None:
    (folder / "many0.yaml").write_text("splits: {train: {path: images}}")
    for number in range(1, 4):
        inner = f"{{path: many{number - 1}.yaml}}"
        text = f"splits: {{train: {{blend: [{', '.join([inner] * 11)}]}}}}"
        (folder / f"many{number}.yaml").write_text(text)
    assert len(open_blend(str(folder / "many2.yaml")).leaves) == 121
    with pytest.raises(UsageError, match="a blend may have 1000 datasets"):
        open_blend(str(folder / "many3.yaml"))


def test_nesting_ends_somewhere(file: Path) -> None:
    node: dict[str, object] = {"path": "images"}
    for _ in range(16):
        node = {"blend": [node]}
    with pytest.raises(UsageError, match="nested in more than 16"):
        blend_of(file, train=node)


def test_datasets_on_the_web_that_differ_in_the_query_alone_are_not_taken_for_one(
    folder: Path, file: Path
) -> None:
    def answer(handler) -> bool:
        """Serve the dataset that the query names, whoever signed the link."""
        path, _, query = handler.path.partition("?")
        name = "images" if "images" in query else "clips"
        served = folder / name / path.removeprefix("/get/")
        handler.answer(200, served.read_bytes()) if served.is_file() else handler.answer(404, b"")
        return True

    config = StorageConfig(allow_private=True)
    with web_server() as web:
        web.script = answer
        entries = [f"    - {{path: '{web.url}/get?{query}'}}\n" for query in ("sig=1", "sig=2", "ds=images")]
        file.write_text(f"{ENERGON}splits:\n  train:\n    blend:\n{''.join(entries[:2])}")
        assert len(open_blend(file, config=config).datasets) == 1
        file.write_text(f"{ENERGON}splits:\n  train:\n    blend:\n{''.join(entries)}")
        with pytest.raises(UsageError, match="names two datasets, whose addresses differ in the query alone"):
            open_blend(file, config=config)
