"""How long is it from a start to the first answer, with a bundle of executables and without?

`flide-jax ask` is started in a process of its own, and timed until it has printed the answers of one request (the
paper's Table 17): once compiling what the request needs; once with that taken from a bundle of every capacity that
`flide-jax warm` made; and `flide-jax warm` itself, which is what a server without a bundle does before it is ready.
`flide-jax serve` with the bundle is timed until `/health` says that it has loaded every capacity and run each once.
Nothing is kept between the starts, for each has an empty cache of compiled code. The demo model (the default on a CPU),
or random weights of a true size, whose checkpoint is written first and read from the machine's page cache.

Predictions, 0.8B on one H200 with six capacities: with the bundle the first answer comes in at most 12 s; compiling the
one capacity adds 10 s, and warming takes 40 s. Since a bundle's capacities are loaded when they are needed: 7 s. A
server has loaded 72 capacities, the ladder of a GPU, within 30 s.
How to read the result: seconds of wall time, the process's start and end included, each the median of the starts.

Run as `python -m experiments.start_up`. Records go to `results/start_up.jsonl`.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import records
from experiments.arguments import existing_directory, positive
from experiments.measured_model import DEMO
from experiments.random_checkpoint import add_model, size_by_backend, write_checkpoint
from experiments.serve_load import exchange, served
from flide_jax.engine import EngineConfig
from flide_jax.engine.model_directory import demo_directory

EXAMPLE = demo_directory() / "examples" / "support.json"


@contextlib.contextmanager
def nothing_kept() -> Iterator[dict[str, str]]:
    """An environment for a process that finds nothing of what an earlier one compiled."""
    with tempfile.TemporaryDirectory() as empty:
        yield os.environ | {"JAX_COMPILATION_CACHE_DIR": empty}


def seconds(arguments: Sequence[str]) -> float:
    """Of one run of the command. Raises RuntimeError where it fails."""
    with nothing_kept() as environment:
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "flide_jax", *arguments], env=environment, capture_output=True, text=True
        )
        taken = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"flide-jax {' '.join(arguments)}: {done.stderr.strip()}")
    return taken


def seconds_until_served(arguments: Sequence[str]) -> float:
    """From the start of a server until it can answer with every capacity. Raises RuntimeError where it ends before."""
    with nothing_kept() as environment:
        begin = time.perf_counter()
        with served(arguments, environment) as port:
            while True:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    head, _ = exchange(connection, "GET /health")
                if b" 200 " in head.split(b"\r\n", 1)[0]:
                    return time.perf_counter() - begin
                time.sleep(0.02)


def measure(model: Sequence[str], capacities: Sequence[str], *, repeats: int, made: Path | None) -> dict[str, Any]:
    """Seconds with a bundle; where none was made before, also of warming and of answers without it."""
    ask = ["ask", str(EXAMPLE), "--json", *model, *capacities]
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        bundle = made or Path(directory) / "bundle"
        if made is None:
            samples["warm"] = [seconds(["warm", *model, *capacities, "--bundle", str(bundle)])]
            samples["compiled"] = [seconds(ask) for _ in range(repeats)]
        from_bundle = ["--bundle", str(bundle)]
        samples["bundle"] = [seconds([*ask, *from_bundle]) for _ in range(repeats)]
        samples["served"] = [seconds_until_served([*model, *capacities, *from_bundle]) for _ in range(repeats)]
        bundle_bytes = sum(path.stat().st_size for path in bundle.iterdir())
    return {
        "seconds": {name: statistics.median(found) for name, found in samples.items()},
        "samples_s": samples,
        "bundle_mb": bundle_bytes / 1e6,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints a table and appends one record."""
    # The device is not asked for anything here: it is for the processes that are started.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--capacities", type=positive, nargs="+", help="256, or of a true size six")
    parser.add_argument("--bundle", type=existing_directory, help="made of these before; nothing is compiled")
    parser.add_argument("--repeats", type=positive, help="1, or of a true size 3")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "start_up.jsonl")
    options = parser.parse_args(arguments)
    size = options.size = options.size or size_by_backend()
    capacities = options.capacities or ([256] if size == DEMO else [128, 256, 384, 640, 1_280, 2_688])
    repeats = options.repeats or (1 if size == DEMO else 3)
    with tempfile.TemporaryDirectory() as directory:
        model = ["--demo"]
        if size != DEMO:
            checkpoint = Path(directory) / size
            write_checkpoint(checkpoint, size, options.tokenizer)
            model = ["--model", str(checkpoint)]
        found = measure(model, ["--capacities", *map(str, capacities)], repeats=repeats, made=options.bundle)
    for name, taken in found["seconds"].items():
        print(f"{name:10}{taken:8.2f} s")
    print(f"{'bundle':10}{found['bundle_mb']:8.1f} MB of {len(capacities)} executables")
    config = EngineConfig(capacities=tuple(capacities))
    record = {
        "size": size,
        "capacities": capacities,
        "bundle_made_before": options.bundle is not None,
    }
    return records.append(options, record | found, config=config)


if __name__ == "__main__":
    main()
