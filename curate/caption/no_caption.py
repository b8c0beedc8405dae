"""Answers in words that are no caption: refusals, errors of servers, conversations, thoughts.

Quotations do not count, since pictures show signs and people speak.
"""

import re

from reelweave.curate.caption.prompts import CAMERA_EVIDENCE, PROMPTS, REWRITES, WORDS_EVIDENCE

SENTENCE_ENDS = ".!?…。！？．｡।॥؟۔։។៕။"  # noqa: RUF001
"""Characters that end a sentence, in any script."""

_START = rf"(?:^|(?<=[{SENTENCE_ENDS}])\s*)"
_NOT_ABLE = r"(?:can(?:not|'t| not)|could(?:n't| not)|(?:am|'m) (?:not able|unable) to|do(?:n't| not) have)"
_MEDIA = r"(?:video|image|picture|frame|clip|file|content|footage)s?"
_SORRY = r"(?:very |so |really |truly )?sorry"
_DESCRIBE = (
    r"(?:view|describe|caption|analy[sz]e|assist|help|fulfil?l|comply|provide|interpret|access|process)"
)
_FAILS = (
    r"(?:cannot|can't|can not|could not|couldn't|failed to|did not|didn't|does not|do not|doesn't|don't)"
    r" (?:be )?(?:load|display|open|process|access|render|read|come through|described|viewed)"
)
_REFUSALS = re.compile(
    "|".join(
        (
            rf"{_START}(?:i'm|i am|we're|we are) {_SORRY}\b.{{0,40}}\b(?:i|we) ?{_NOT_ABLE}\b",
            rf"^(?:i'm|i am) {_SORRY}, but\b",
            rf"^sorry, (?:but )?(?:i\b|(?:the|this|your|no) {_MEDIA}\b)",
            rf"{_START}i ?{_NOT_ABLE} (?:directly |actually )?(?:see|view|watch|access|open|process|analy[sz]e"
            r"|assist|help|describe|fulfil?l|comply|create|generate|identify|play|the ability|the capability)\b",
            rf"\b(?:i|we) ?{_NOT_ABLE} (?:directly |actually |accurately )?{_DESCRIBE}\b",
            r"^(?:i |we )(?:sincerely )?apologi[sz]e\b|^(?:my |our )?apologies[,.! ]",
            r"^(?:unfortunately|regrettably),? (?:i|we|i'm|i am|i do)\b",
            rf"^(?:unfortunately|regrettably),? .{{0,30}}\b{_MEDIA}\b.{{0,40}}\b(?:blank|missing|corrupt(?:ed)?"
            rf"|unavailable|not (?:visible|available|provided|attached|included)|{_FAILS})",
            rf"^(?:the|your|this|these) (?:provided |attached |uploaded )?{_MEDIA}(?: (?:that )?you(?:'ve| have)?"
            rf" (?:provided|attached|uploaded|shared|sent))?(?: provided| attached| uploaded)? {_FAILS}",
            r"^(?:it (?:seems|appears|looks like)) (?:that )?(?:you (?:have not|haven't|did not|didn't)"
            rf"|(?:there (?:is|are|was|were) )?no {_MEDIA} )",
            rf"^(?:this|the|your) (?:content|request|{_MEDIA}|prompt) (?:may |might |appears to |seems to )?"
            r"violates? (?:our|the|my|openai)\b",
            r"^i (?:must|have to|will have to) (?:respectfully )?(?:decline|refuse)\b|^i (?:will not|won't) (?:be able"
            r" to|describe|provide)\b|^(?:i'm|i am) not comfortable\b",
            rf"{_START}as an? (?:ai|artificial intelligence|language model|text-based)\b",
            rf"{_START}(?:there is |there's )?no {_MEDIA} (?:was|were|has been|have been|is|are)? ?(?:provided|attached"
            rf"|uploaded|given|shared)\b",
            rf"{_START}there (?:is|are) no {_MEDIA} to (?:describe|view|analy[sz]e|caption)\b",
            rf"{_START}(?:please|could you|can you) (?:provide|upload|share|attach|send)\b.{{0,30}}\b{_MEDIA}\b",
            r"^(?:你好|您好)?\W{0,3}(?:很|非常)?(?:抱歉|对不起|對不起|不好意思).{0,24}(?:无法|無法|不能)",
            r"^(?:作为|作為)(?:一个|一個)?.{0,8}(?:语言模型|語言模型|人工智能|ai)",
            r"^我(?:无法|無法|不能)(?:看到|观看|觀看|查看|描述|处理|處理|提供|协助)",
            r"^(?:申し訳|すみません).{0,40}(?:できません|いたしかねます|できかねます)",
            r"^(?:죄송).{0,40}(?:없습니다|수 없|못합니다)",
            r"^(?:lo siento|lamentablemente|desafortunadamente),? .{0,30}\bno puedo\b",
            r"^(?:je suis |désolé|malheureusement)(?:désolée?)?,? .{0,40}\bje ne (?:peux|suis)\b",
            r"^(?:es tut mir leid|tut mir leid),? .{0,40}\bkann\b.{0,60}\bnicht\b",
            r"^leider kann ich\b.{0,60}\b(?:nicht|kein)",
            r"^(?:desculpe|sinto muito|lamento|infelizmente),? .{0,40}\bnão (?:posso|consigo)\b",
            r"^(?:извините|простите|к сожалению),? .{0,30}\bя не могу\b",
        )
    )
)
_ERRORS = re.compile(
    r"^(?:\w{0,30}error|\w{0,30}exception|error code) ?:"
    r"|^(?:internal server error|service unavailable|bad gateway|gateway time-?out|too many requests"
    r"|rate limit exceeded|request timed out|traceback \(most recent)\b"
    r"|^(?:your|this|the) (?:request|prompt|input|response|message|content) (?:was|has been|is) (?:flagged|blocked"
    r"|rejected|denied|filtered|refused)\b"
    r"|^an (?:\w+ )?error (?:has )?occurred(?:[.,:]| while| during)|^something went wrong[.,!:]"
)
# Roles of a chat template, at the start of a line before blanks were joined.
_ROLES = re.compile(
    r"^system:? You are\b|^(?:system|user|human) .*[.?!:] (?:assistant|model) [A-Z]|^assistant [A-Z]"
    r"|^(?:USER|ASSISTANT|SYSTEM):"
    rf"|(?:^|[{SENTENCE_ENDS}] )(?:Human|User|Assistant|System|USER|ASSISTANT|### (?:Human|Assistant|Instruction"
    r"|Response)): ?\S"
)
_THOUGHTS = re.compile(
    r"</?(?:think|thinking|thought|thoughts|reasoning|seed:think|answer)>|\u25c1/?think\u25b7|\[/?THINK\]",
    re.IGNORECASE,
)
_QUOTED = re.compile('(?<=.)(?:"[^"]{0,200}"|\u201c[^\u201d]{0,200}\u201d|\u00ab[^\u00bb]{0,200}\u00bb)')
_OUR_SENTENCES = tuple(
    sentence.strip(". ")
    for text in (*PROMPTS.values(), *REWRITES.values(), CAMERA_EVIDENCE, WORDS_EVIDENCE)
    for sentence in text.split(". ")
    if len(sentence) > 40
)
_MIN_ECHO = 20  # characters of a question that no caption has by chance


def refuses(text: str) -> bool:
    """Return True when a model declines, or says that it got nothing to describe."""
    return _REFUSALS.search(_strip_quotes(text).lower().replace("\u2019", "'")) is not None


def is_error(text: str) -> bool:
    """Return True for an error of a server or its filter in place of a caption."""
    return _ERRORS.search(text.lower().replace("\u2019", "'")) is not None


def is_conversation(text: str) -> bool:
    """Return True for turns of a chat."""
    return _ROLES.search(_strip_quotes(text)) is not None


def has_thoughts(text: str) -> bool:
    """Return True for marks of thoughts, which a whole answer has no longer."""
    return _THOUGHTS.search(text) is not None


def repeats_question(text: str, question: str) -> bool:
    """Return True when an answer holds the question, or a sentence of our own prompts."""
    question = " ".join(question.split())
    return (len(question) >= _MIN_ECHO and question in text) or any(part in text for part in _OUR_SENTENCES)


def _strip_quotes(text: str) -> str:
    return _QUOTED.sub("", text)
