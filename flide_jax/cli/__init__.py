"""The command `flide-jax`: `arguments` (what may be said), `run` (one command, and how it may fail), then one module
for each command: `ask` (and `ask_server`), `verify` (and `invariances`), `inspect` (and `pictures`, `memory`), `warm`,
`convert`, `serve`. `rows` reads requests, `outcomes` prints answers, `terminal` and `console` are where commands write.
"""

import os
import signal
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; see `run.run_command`. An interrupt ends the process."""
    before = signal.signal(signal.SIGINT, _end)
    try:
        from flide_jax.cli.run import run_command  # takes long enough to be interrupted

        return run_command(arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def _end(signum: int, frame: FrameType | None) -> None:
    # Not a KeyboardInterrupt: one that rises in a callback of the garbage collector, of which jax has one, is dropped.
    os.write(2, b"flide-jax: error: interrupted\n")
    os._exit(INTERRUPTED)
