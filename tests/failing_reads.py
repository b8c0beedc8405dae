"""Environment of a process whose reads of a folder fail, as `failing_reads.c` makes them fail."""

import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest


@cache
def library() -> Path:
    """Return the library, to be named in LD_PRELOAD."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).with_suffix(".c")
    library = Path(mkdtemp(prefix="reelweave-failing-")) / "failing_reads.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class FailingReads:
    """Calls on paths below a prefix that fail.

    Attributes:
        below: Prefix of the paths.
        number: errno.
        log: File that counts the failures.
        what: Kinds of calls: r (read), o (open), s (stat), d (list), n (rename to one).
        times: Number of failures of all processes together; None for all.
        from_byte: Offset in a file from which reads fail.
    """

    below: Path
    number: int
    log: Path
    what: str = "r"
    times: int | None = 1
    from_byte: int | None = None

    def env(self) -> dict[str, str]:
        """Return what to add to the environment of a process that has `library` loaded."""
        found = {
            "FAIL_BELOW": str(self.below),
            "FAIL_WITH": str(self.number),
            "FAIL_WHAT": self.what,
            "FAIL_LOG": str(self.log),
        }
        if self.times is not None:
            found["FAIL_TIMES"] = str(self.times)
        if self.from_byte is not None:
            found["FAIL_FROM"] = str(self.from_byte)
        return found

    def struck(self) -> int:
        """Return how many calls failed so far."""
        return self.log.stat().st_size if self.log.exists() else 0
