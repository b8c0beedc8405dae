"""Conditions on samples: what passes, what a missing value does, and what is refused with its position."""

import math
from pathlib import Path

import pyarrow as pa
import pytest

from reelweave.loader.blend.selection.choose import choose
from reelweave.loader.blend.selection.condition import MAX_CHARS, condition_of
from reelweave.loader.blend.selection.config import Selection
from reelweave.loader.blend.selection.fields import index_fields
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.errors import UsageError
from tests.loader.stream_clips import make_sample, write

SAMPLES = [
    # key, source, height, scores, attributes
    ("a", "film 1", 64, {"aesthetic": 5.0, "motion": 0.5}, {"licence": "cc0", "watermarked": "false"}),
    ("b", "film 1", 96, {"aesthetic": 4.0}, {"licence": "cc-by", "watermarked": "true"}),
    ("c", "film 2", 64, {"motion": 0.1}, {"licence": "cc0"}),
    ("d", "film 3", 480, {"aesthetic": 4.6}, {"meta.camera": "x'100", "odd name": "yes"}),
]


def table() -> pa.Table:
    columns = {
        "key": [key for key, *_ in SAMPLES],
        "source": [source for _, source, *_ in SAMPLES],
        "height": [height for _, _, height, *_ in SAMPLES],
        "width": [128] * len(SAMPLES),
        "caption": [f"a boat of {key}" for key, *_ in SAMPLES],
        "scores": [list(scores.items()) for *_, scores, _ in SAMPLES],
        "attributes": [list(attributes.items()) for *_, attributes in SAMPLES],
    }
    return pa.table(columns, schema=pa.schema([INDEX.field(name) for name in columns]))


def verdict(text: str) -> str:
    """A letter for each sample: y, n, or ? where a missing value decides."""
    passed = condition_of(text, "where").passes(table())
    return "".join({True: "y", False: "n", None: "?"}[value] for value in passed.to_pylist())


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("aesthetic > 4.5", "yn?y"),
        ("aesthetic > 4.5 and licence == 'cc0'", "yn??"),
        ("aesthetic > 4.5 or licence == 'cc0'", "ynyy"),
        ("not aesthetic > 4.5", "ny?n"),
        ("licence != 'cc0'", "nyn?"),
        ("licence in ('cc0', 'cc-by')", "yyy?"),
        ("licence not in ['cc0']", "nyn?"),
        ("licence is null", "nnny"),
        ("licence is not None", "yyyn"),
        ("motion is null and aesthetic < 4.5", "nynn"),
        ("watermarked", "ny??"),
        ("not watermarked", "yn??"),
        ("watermarked == false", "yn??"),
        ("4 < aesthetic <= 5", "yn?y"),
        ("height in (64, 480)", "ynyy"),
        ("width / height > 1.5", "ynyn"),
        ("width * height - 1 >= 128 * 96 - 1", "nyny"),
        ("motion > -0.2 + 0.4", "y?n?"),
        ("-motion < 0", "y?y?"),
        ("source == 'film 1'", "yynn"),
        ("'boat of c' in caption", "nnyn"),
        ("'boat of c' not in caption", "yyny"),
        ('meta.camera == "x\'100"', "???y"),
        ("attributes['odd name'] == 'yes'", "???y"),
        ("attributes.licence == 'cc0' and scores.motion < 1", "yny?"),
        ("scores['motion'] is null", "nyny"),
        ("aesthetic > motion", "y???"),
        ("true or aesthetic > 4", "yyyy"),
        ("licence >= 'cc-c'", "yny?"),
        ("(aesthetic is null) == true", "nnyn"),
        ("aesthetic\n> 4.5", "yn?y"),
        ("height == 64.0", "ynyn"),
        ("watermarked is null", "nnyy"),
        ("true", "yyyy"),
        ("not 4 < 5 or 1 / 0 < 2", "nnnn"),
        ("4 < 5 and (aesthetic > 4.5 or 'a' == 'b')", "yn?y"),
        ("4 in (4, 5) and true == (motion is null)", "nyny"),
        ("'a' in 'cat' and aesthetic > 4.5", "yn?y"),
    ],
)
def test_what_passes(text: str, passes: str) -> None:
    assert verdict(text) == passes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("aesthetic >", "at character 12: invalid syntax"),
        ("", "invalid syntax"),
        ("aesthetic > 4 and open('x')", "at character 19: open('x') is not of this grammar"),
        ("licence.upper() == 'CC0'", "at character 1: licence.upper() is not of this grammar"),
        ("[x for x in y]", "is not of this grammar"),
        ("(lambda: 1)()", "is not of this grammar"),
        ("aesthetic > '4'", None),
        ("height > '4'", "at character 10: '4' is text, and what it is compared with a number"),
        ("licence == null", "at character 12: null is compared with null: write `is null`"),
        ("aesthetic is 4", "at character 14: 4 stands behind `is`"),
        ("licence in 'cc0'", "is no list such as"),
        ("licence in ()", "is no list of texts, or of numbers"),
        ("licence in ('a', 3)", "is no list of texts, or of numbers"),
        ("height in ('a', 'b')", "at character 1: height is a number, and the list has text"),
        ("aesthetic + 1", "is a number, where true or false is needed"),
        ("'text'", "is text, where true or false is needed"),
        ("height ** 2 > 4", "height ** 2 is not of this grammar"),
        ("__import__('os')", "is not of this grammar"),
        ("scores[0] > 1", "scores[0] is not of this grammar"),
        ("f'{x}' == 'a'", "is not of this grammar"),
        ("x := 3", "invalid syntax"),
        ("x > 1e999", "is no number that a score can be"),
        (f"x > {'9' * 400}", "is no number that a score can be"),
        ("x > 3j", "3j is not of this grammar"),
        ("Zürich == 3 and height > 'a'", "at character 26: 'a' is text"),
        ("a" * (MAX_CHARS + 1), f"has {MAX_CHARS + 1} characters"),
        (" and ".join(["x > 1"] * 60), "more than 200 names, values and operators"),
        ("-" * 900 + "1 > 0", ""),
        ("(" * 400 + "1" + ")" * 400 + " > 0", ""),
        ("not " * 240 + "x", ""),
        ("'\0' == x", ""),
        ("'\\d' == 3", "is a number, and what it is compared with text"),
    ],
)
def test_what_is_refused(text: str, words: str | None) -> None:
    if words is None:  # a name is what it is compared as
        condition_of(text, "where")
        return
    with pytest.raises(UsageError) as refused:
        condition_of(text, "where")
    assert words in str(refused.value)
    assert str(refused.value).startswith("where")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = [make_sample(key, key.encode(), 9, (128, height)) for key, _, height, *_ in SAMPLES]
    for sample, (_, source, _, scores, attributes) in zip(made, SAMPLES, strict=True):
        sample.row.update({"source": source, "scores": scores, "attributes": attributes})
    return open_dataset(write(tmp_path / "set", made))


def test_rows_and_counts_of_a_dataset(dataset: Dataset) -> None:
    selection = Selection.of("aesthetic > 4.5", None, None, "stream")
    chosen = choose(dataset, selection)
    assert dataset.column("key").take(chosen.rows).to_pylist() == ["a", "d"]
    assert (chosen.samples, chosen.unknown) == (4, 1)
    again = choose(open_dataset(dataset.storage.root), selection)  # from the file of the first process
    assert again.rows.tolist() == chosen.rows.tolist()
    assert again[1:] == chosen[1:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "aesthetik > 4",
            "no sample has aesthetik; did you mean aesthetic? there are: scores aesthetic, motion;",
        ),
        ("licence > 4", "licence is text here (attributes.licence): compare it with a text in quotes"),
        ("aesthetic == 'a'", "aesthetic is a number here (scores.aesthetic): compare it with a number"),
        ("zzz is null", "no sample has zzz"),
    ],
)
def test_unknown_names_say_what_there_is(dataset: Dataset, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose(dataset, Selection.of(text, None, None, "stream"))
    assert words in str(refused.value)
    assert str(dataset.storage.root) in str(refused.value)


def test_fields_are_summed_up_and_named_as_a_condition_names_them(tmp_path: Path) -> None:
    made = [make_sample(f"k{number:04}", b"clip", 9, (128, 64)) for number in range(1203)]
    for number, sample in enumerate(made):
        sample.row["scores"] = {"aesthetic": number / 100, "width": 5.0, "nan": math.nan} if number else {}
        sample.row["attributes"] = {
            "licence": "cc0" if number % 3 else "cc-by",
            "odd 'name": "x",
            "true": "y",
            "class": "z",
        }
        sample.row["attributes"] |= {"url": f"https://example.org/{number}", "meta.camera": "x100"}
    dataset = open_dataset(write(tmp_path / "set", made))
    summed = {summary.written: summary for summary in index_fields(dataset)}
    assert list(summed) == [
        "aesthetic",
        "scores.width",
        "attributes['class']",
        "licence",
        "meta.camera",
        """attributes["odd 'name"]""",
        "attributes.true",
        "url",
    ]
    numbers = summed["aesthetic"]
    assert (numbers.samples, numbers.least, numbers.median, numbers.most) == (1202, 0.01, 6.015, 12.02)
    assert summed["licence"].common == (("cc0", 802), ("cc-by", 401))
    assert (summed["url"].samples, summed["url"].distinct, summed["url"].common) == (1203, None, ())
    for written, summary in summed.items():
        condition = condition_of(f"{written} is not null", "where")
        assert choose(dataset, Selection((condition,))).rows.tolist() == list(
            range(1203 - summary.samples, 1203)
        )


def test_scores_that_are_not_finite_pass_as_their_comparison_says() -> None:
    values = [[("x", value)] for value in (math.nan, math.inf, 1.0)]
    small = pa.table({"scores": values}, schema=pa.schema([INDEX.field("scores")]))
    assert condition_of("x > 0", "where").passes(small).to_pylist() == [False, True, True]
