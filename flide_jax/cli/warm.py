"""`flide-jax warm`: a model's executables, compiled into a bundle."""

import time
from argparse import Namespace
from pathlib import Path

from flide_jax.cli.console import open_console
from flide_jax.cli.model import engine_config, load_program
from flide_jax.cli.terminal import note
from flide_jax.drawing.memory import draw_files, in_bytes
from flide_jax.engine import bundle, serialised


def warm(arguments: Namespace) -> int:
    """Compiles every capacity and writes the bundle. What is wrong is found before anything is compiled."""
    config = engine_config(arguments)
    program = load_program(arguments, config)
    directory = Path(arguments.bundle)
    bundle.prepare(directory)
    begin = time.perf_counter()
    files = []
    processes = arguments.processes or serialised.default_processes()
    for capacity, size in bundle.save(directory, program, program.capacities(config.ladder()), processes=processes):
        note(f"compiled {capacity.tokens} tokens")
        files.append((capacity.tokens, size))
    total = in_bytes(sum(size for _, size in files))
    console = open_console()
    console.print(draw_files(sorted(files)))
    console.print(f"{directory}: {len(files)} executables, {total}, in {time.perf_counter() - begin:.0f} s")
    return 0
