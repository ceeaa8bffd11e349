"""`flide-jax inspect --memory`: what a model needs on the device, before any of it is there."""

import json
from argparse import Namespace

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.console import open_console
from flide_jax.cli.model import engine_config, load_program
from flide_jax.cli.terminal import note, write_lines
from flide_jax.drawing.memory import draw_memory
from flide_jax.engine.memory import memory_use
from flide_jax.layout import Capacity
from pallas_kernels.dispatch import device_kind


def inspect_memory(arguments: Namespace) -> int:
    """Compiles every capacity from shapes alone and prints the bytes of the weights and of a round of each."""
    config = engine_config(arguments)
    program = load_program(arguments, config)
    try:
        use = memory_use(program, program.capacities(config.ladder()), _note)
    except NotImplementedError as error:
        raise CommandError(str(error)) from None
    rounds = [(one.tokens, one.growing, one.metadata, one.temporaries, one.outputs) for one in use.rounds]
    if arguments.json:
        names = ("tokens", "growing", "metadata", "temporaries", "outputs")
        found = {
            "dtype": program.dtype.name,
            "device": device_kind(),
            "batch_invariant": program.batch_invariant,
            "weights": use.weights,
            "checkpoints": use.checkpoints,
            "capacities": [dict(zip(names, one, strict=True)) for one in rounds],
            "peak": use.peak,
        }
        write_lines([json.dumps(found)])
        return 0
    console = open_console()
    mode = ", batch-invariant" if program.batch_invariant else ""
    console.print(f"weights {program.dtype.name}, executables for {device_kind()}{mode}")
    console.print(draw_memory(use.weights, use.checkpoints, rounds, use.peak))
    return 0


def _note(capacity: Capacity) -> None:
    note(f"compiled {capacity.tokens} tokens{' of growing rounds' if capacity.is_growing else ''}")
