"""Text of a model's answer without what models and servers put around a caption, all on closed lists.

What is not on a list stays, and is left to `reelweave.curate.caption.checks`.
"""

import json
import re

_MARK = r"(?:think|thinking|thought|thoughts|reasoning|seed:think)"
_THOUGHTS = re.compile(rf"^.*?(?:</{_MARK}>|\u25c1/think\u25b7|\[/THINK\])", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>)?", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```(?:json|text|txt|markdown|md|plaintext)?[ \t]*\n?([^`]*?)\s*```", re.IGNORECASE)
_KEYS = ("caption", "description")

_ABOUT = r"(?: (?:of|for) (?:the|this|your) (?:provided )?(?:video|clip|image|images|frames|scene|footage))?"
_HERE = re.compile(
    r"(?:(?:sure|certainly|of course|absolutely|okay|ok)(?: thing)?[,.!:]* *)?"
    r"(?:here(?:'s|\u2019s| is) (?:a|an|the|your|my) (?:(?:one-sentence|short|brief|concise|detailed|possible) )?"
    rf"(?:video )?(?:caption|description){_ABOUT}) ?:\s*",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:#{1,6} *)?(?P<bold>\*\*|__)?(?:video )?(?:caption|description)(?::(?(bold)(?P=bold))|(?(bold)(?P=bold)):)\s*",
    re.IGNORECASE,
)
_HEADING = re.compile(r"#{1,6} *(?:video )?(?:caption|description) *\n+", re.IGNORECASE)
_QUOTED = re.compile('["\u201c]([^"\u201c\u201d]*)["\u201d]')


def clean(text: str) -> str:
    """Return the caption in an answer, with single blanks.

    Left out are thoughts up to their closing mark, answer tags, a code fence, and an introduction such as
    "Caption:". JSON with nothing but a caption is replaced by it.
    """
    text = _THOUGHTS.sub("", text).strip()
    for whole in (_ANSWER, _FENCE):
        if match := whole.fullmatch(text):
            text = match[1].strip()
    text = _of_json(text)
    bare = text
    for introduction in (_HERE, _HEADING, _LABEL):
        if match := introduction.match(bare):
            bare = bare[match.end() :].strip()
    if bare != text and (match := _QUOTED.fullmatch(bare)):
        bare = match[1]
    return " ".join(bare.split())


def without_echo(text: str, prompt: str) -> str:
    """Return an answer without the question that a server repeated in front of it."""
    question = " ".join(prompt.split())
    return clean(text[len(question) :]) if question and text.startswith(question) else text


def _of_json(text: str) -> str:
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and len(value) == 1:
        ((key, caption),) = value.items()
        if key.lower() in _KEYS and isinstance(caption, str):
            return caption.strip()
    return text
