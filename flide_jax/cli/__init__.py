"""The command `flide-jax`: `arguments` (what may be said), `run` (one command, and how it may fail), then one module
for each command: `ask`, `verify`, `inspect`. `rows` reads their requests, `terminal` and `console` are where they write
and draw.
"""

from flide_jax.cli.run import main

__all__ = ["main"]
