"""Hook of Git (commit-msg): a subject is `[area] Imperative`, at most 72 characters, and a blank line follows."""

import re
import sys
from pathlib import Path

LENGTH = 72


def faults(message: str) -> list[str]:
    """Return what is wrong with a commit message, in words; lines that Git leaves out do not count."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(("fixup! ", "squash! ", "Merge ", "Revert ")):
        return []
    wrong = []
    if not re.fullmatch(r"\[[a-z-]+\] [A-Z].*[^.]", subject):
        wrong.append(
            "the subject is not `[area] Imperative` without a full stop: `[loader] Count frames by their stamps`"
        )
    if len(subject) > LENGTH:
        wrong.append(f"the subject has {len(subject)} characters; {LENGTH} are the most")
    if len(lines) > 1 and lines[1].strip():
        wrong.append("no blank line follows the subject")
    return wrong


def main() -> int:
    """Print what is wrong with the message in the file that Git names, and return 1 if something is."""
    wrong = faults(Path(sys.argv[1]).read_text())
    for fault in wrong:
        print(fault)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
