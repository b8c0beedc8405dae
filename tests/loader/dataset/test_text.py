import pytest

from reelweave.loader.text import count_tokens, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ...!?", []),
        ("A dog, running fast.", ["a", "dog", "running", "fast"]),
        ("Zwei HUNDE über 3 Wege", ["zwei", "hunde", "über", "3", "wege"]),
        ("cafe\u0301", ["café"]),
        ("一只猫 jumps", ["一", "只", "猫", "jumps"]),
    ],
)
def test_words_are_lower_case_runs_of_letters_and_digits(text, expected):
    assert words(text) == expected
    assert count_tokens(text) == len(expected)


def test_words_stop_at_a_limit():
    assert words("one two three four", limit=2) == ["one", "two"]
