"""Why does attention take longer within a pass of a large model than alone?

The kernel of attention at the rows of a workload, run for some seconds in three ways: in short bursts with rests
between them, as `pallas_kernels.bench` times it; back to back; and as in a pass of 4B, one attention to the products of
four layers. Meanwhile nvidia-smi tells the clock of the multiprocessors and the power that the card draws.

Prediction: products take the card to its limit of power, at which it lowers its clock, and attention takes as many
cycles in each way, within 3 %.

How to read the result: `us` is a launch of attention, the median over a trace at the end of the seconds; `mhz` and
`watts` are medians of the samples, and `kilocycles` is the product of the first two.

Run as `python -m experiments.attention_in_a_pass` on one NVIDIA GPU. It measures launches, of which a CPU has none, so
there is no small size. Records go to `results/attention_in_a_pass.jsonl`.
"""

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from experiments import records
from experiments.arguments import need_gpu, positive_number
from experiments.model_sizes import SIZES
from pallas_kernels.bench import trace_launches
from pallas_kernels.fork_attention import cases
from pallas_kernels.random_numbers import normal

SIZE = SIZES["4B"]
LAYERS_TO_ONE_ATTENTION = 4
ATTENTIONS = 8  # of an executable
CASES = ("multirc", "quality-all")
REST = 0.2  # seconds between bursts
SAMPLE_MS = 20
KERNEL = "fork_attention"


def work_of(case: cases.Case, *, products: bool) -> Callable[[], Any]:
    """ATTENTIONS layers of attention on operands of their own, one after the other; with `products` between them."""
    attend = cases.caller(case, "pallas")
    sets = [case.operands(jax.random.key(records.SEED + number)) for number in range(ATTENTIONS)]
    width, feed_forward = SIZE.width, SIZE.feed_forward_width
    hidden, up, down = (
        normal(jax.random.key(records.SEED + number), shape, jnp.bfloat16)
        for number, shape in enumerate([(case.rows, width), (width, feed_forward), (feed_forward, width)])
    )

    @jax.jit
    def layers(hidden: jax.Array, up: jax.Array, down: jax.Array, sets: Any) -> tuple[jax.Array, list[jax.Array]]:
        mixed = []
        for operands in sets:
            hidden, operands = lax.optimization_barrier((hidden, operands))
            mixed.append(attend(*operands))
            hidden, mixed[-1] = lax.optimization_barrier((hidden, mixed[-1]))
            for _ in range(LAYERS_TO_ONE_ATTENTION if products else 0):
                hidden = hidden @ up @ down @ up @ down / (width * feed_forward)
        return hidden, mixed

    return lambda: layers(hidden, up, down, sets)


class Sampled:
    """Clock and power of the card while the context lasts."""

    def __enter__(self) -> "Sampled":
        query = ["--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", f"-lms={SAMPLE_MS}", "--id=0"]
        self._process = subprocess.Popen(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        printed, _ = self._process.communicate()
        # The last line may be cut off where the process ended.
        samples = [[float(x) for x in line.split(",")] for line in printed.splitlines()[:-1]]
        self.mhz, self.watts = ([*column] for column in zip(*samples, strict=True))


def measured(case: cases.Case, *, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each way."""
    for way, products, rest in (("bursts", False, REST), ("back to back", False, 0.0), ("in a pass", True, 0.0)):
        work = work_of(case, products=products)
        jax.block_until_ready(work())
        with Sampled() as card:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                jax.block_until_ready([work() for _ in range(4)])
                time.sleep(rest)
            found = trace_launches(lambda work=work: [work() for _ in range(4)])
        launches = [us for name, us in found.in_order if KERNEL in name]
        us, mhz, watts = map(statistics.median, (launches, card.mhz, card.watts))
        yield {
            "way": way,
            "us": us,
            "mhz": mhz,
            "watts": watts,
            "kilocycles": us * mhz / 1e3,
            "samples": {"us": launches, "mhz": card.mhz, "watts": card.watts},
        }


def main(arguments: list[str] | None = None) -> None:
    """Prints a table; appends a record for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=[*cases.CASES], action="append", help=f"{', '.join(CASES)} by default")
    parser.add_argument("--seconds", type=positive_number, default=2.0, help="of each way")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "attention_in_a_pass.jsonl")
    options = parser.parse_args(arguments)
    need_gpu(parser)
    for name in options.case or CASES:
        for row in measured(cases.CASES[name], seconds=options.seconds):
            print(name, row["way"], *(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float)))
            records.append(options, {"case": name, "seconds": options.seconds, **row})


if __name__ == "__main__":
    main()
