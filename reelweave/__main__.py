"""The program ``reelweave``, also as ``python -m reelweave``."""

import sys


def main() -> int:
    """Run the command of the terminal; returns its exit status (`reelweave.pipelines.cli.main`)."""
    try:
        from reelweave.pipelines.cli import main as run

        return run()
    except KeyboardInterrupt:  # before a command has begun
        sys.stderr.write("reelweave: interrupted; run the same command again\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
