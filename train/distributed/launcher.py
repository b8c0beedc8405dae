"""End of a rank whose torchrun was killed: nobody would free its GPU, nor end the others when one is lost."""

import os
import signal
import sys
import threading

_EVERY_S = 1.0
_MOST_S = 45.0


class Launcher:
    """The torchrun of this rank, watched while the rank runs.

    A rank without its torchrun ends as torchrun would have ended it: by SIGTERM, at which training saves a checkpoint,
    and at once if that takes too long.

    Ranks that something else started are not watched. A shell, nohup or setsid may end while what it started goes on.

    Args:
        grace_s: seconds from SIGTERM to the hard end, at most 45.

    Attributes:
        watched: True for a rank of torchrun.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = min(grace_s, _MOST_S)
        self.watched = "TORCHELASTIC_RUN_ID" in os.environ
        self._over, self._gone = threading.Event(), threading.Event()
        if self.watched:
            parent = os.getppid()
            threading.Thread(target=self._watch, args=(parent,), name="launcher", daemon=True).start()

    def store_is_gone(self) -> None:
        """End this rank if the rendezvous store, which cannot be reached any more, was in the process of torchrun."""
        if self.watched and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            self._gone.set()

    def end(self) -> None:
        """Stop watching: the rank ends by itself."""
        self._over.set()

    def _watch(self, parent: int) -> None:
        while os.getppid() == parent and not self._gone.wait(_EVERY_S):
            if self._over.is_set():
                return
        if self._over.is_set():
            return
        self._say("torchrun is gone, so that this rank ends, too. The same command goes on where it stopped")
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._over.wait(self._grace_s):
            self._say(f"torchrun is gone, and this rank did not end within {self._grace_s:g} s")
            os._exit(1)

    def _say(self, words: str) -> None:
        sys.stderr.write(f"reelweave: {words}\n")
        sys.stderr.flush()
