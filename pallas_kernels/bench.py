"""Times the ops on their named cases: `python -m pallas_kernels.bench [op ...] [--case NAME] [--out FILE]`.

One figure is the device time of one layer, added up from the launches in a trace: neither the host nor the gaps between
launches are in it. An executable holds several calls on different operands, like the layers of a model: no cache is
warm, and what follows from a round's structure alone is computed once for all of them. The floor of a case is the
larger of its operations over the rate of the matrix unit and its bytes over the bandwidth of the memory.

An op is called as a model calls it. So attention is told that values are finite, which `rotary_norm` sees to in a
model; in the case "multirc any values" it is not, and looks through them in a launch more. Records are appended to
`experiments/results/kernels.jsonl` of a checkout; where there is none, to what `--out` names or nowhere. What others'
kernels take on the same operands, in one process with these, `python -m experiments.kernel_peers` measures.
"""

import argparse
import collections
import importlib
import json
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.dispatch import NAMES, OPS, device_kind
from pallas_kernels.provenance import provenance

# Measured on an H200: a large bfloat16 product, and a large copy (bytes read and written).
OPERATIONS_PER_SECOND = 790e12
BYTES_PER_SECOND = 4.3e12
LAYERS = 8  # calls of an executable
SEED = 0  # of the operands
RECORDS = Path(__file__).parents[1] / "experiments/results/kernels.jsonl"


class Launches(collections.Counter[str]):
    """Microseconds on the device by the name of a kernel.

    Attributes:
        counts: how many launches of each there were.
        in_order: the name and microseconds of each launch, in the order in which they began.
    """

    def __init__(self, in_order: Iterable[tuple[str, float]]) -> None:
        super().__init__()
        self.in_order = list(in_order)
        self.counts = collections.Counter(name for name, _ in self.in_order)
        for name, us in self.in_order:
            self[name] += us  # type: ignore[assignment]  # counters count fractions as well


def trace_launches(work: Callable[[], Any]) -> Launches:
    """What a GPU runs while `work` is done. Raises RuntimeError: the trace holds no launches of a GPU."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            jax.block_until_ready(work())
        for file in Path(directory).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if plane.name.startswith("/device:GPU"):
                    for line in plane.lines:
                        if line.name.startswith("Stream"):
                            found += [(event.start_ns, event.name, event.duration_ns / 1e3) for event in line.events]
    if not found:
        raise RuntimeError("the trace holds no launches: benchmarks need a GPU")
    return Launches((name, us) for _, name, us in sorted(found))


def measure(case: Any, call: Callable[..., Any], *, repeats: int = 5) -> dict[str, Any]:
    """Median, least and largest microseconds of one `call(*operands)` over some traces, with the rates of the case."""
    draw = jax.jit(case.operands)
    operands = [draw(jax.random.key(SEED + number)) for number in range(LAYERS)]
    layers = jax.jit(lambda operands: [call(*one) for one in operands])
    for _ in range(3):
        jax.block_until_ready(layers(operands))
    traces = [trace_launches(lambda: layers(operands)) for _ in range(repeats)]
    samples = [found.total() / LAYERS for found in traces]
    median = statistics.median(samples)
    floor = max(case.operations() / OPERATIONS_PER_SECOND, case.bytes() / BYTES_PER_SECOND)
    return {
        "us": median,
        "us_least": min(samples),
        "us_largest": max(samples),
        "samples_us": samples,
        "us_floor": 1e6 * floor,
        "launches": traces[-1].counts.total() / LAYERS,
        "largest": {name[:60]: round(us / LAYERS, 2) for name, us in traces[-1].most_common(6)},
        "tflops": case.operations() / median / 1e6,
        "gbs": case.bytes() / median / 1e3,
    }


def rows(ops: list[str], names: list[str], implementations: list[str]) -> Iterator[dict[str, Any]]:
    """One record for each op, case and implementation; `error` instead of figures where it cannot run."""
    for op in ops:
        for name, case in cases_of(op).CASES.items():
            for implementation in implementations if not names or name in names else ():
                row: dict[str, Any] = {"op": op, "case": name, "implementation": implementation}
                if implementation not in implementations_of(op):
                    yield row | {"error": f"{op} has no {implementation}"}
                    continue
                try:
                    yield row | measure(case, cases_of(op).caller(case, implementation))
                except NotImplementedError as refusal:
                    yield row | {"error": str(refusal)}


def cases_of(op: str) -> Any:
    """The module of an op's named cases."""
    return importlib.import_module(f"pallas_kernels.{op}.cases")


def implementations_of(op: str) -> Collection[str]:
    """The names of an op's implementations."""
    return importlib.import_module(f"pallas_kernels.{op}.api").IMPLEMENTATIONS


def main(arguments: list[str] | None = None) -> None:
    """Prints a table; appends a record for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", default=list(OPS), metavar="op", help=f"of {', '.join(OPS)}; all by default")
    parser.add_argument("--case", action="append", default=[], help="a case by name; all by default")
    parser.add_argument("--implementation", action="append", default=[], help="pallas by default")
    default = RECORDS if RECORDS.parent.is_dir() else None
    parser.add_argument("--out", type=Path, default=default, help="append JSON lines here; by default to %(default)s")
    options = parser.parse_args(arguments)
    if unknown := set(options.ops) - set(OPS):
        parser.error(f"no op {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    known = {name for op in options.ops for name in cases_of(op).CASES}
    if unknown := set(options.case) - known:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if unknown := set(options.implementation) - set(NAMES):
        parser.error(f"no implementation {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    titles = f"{'us':>9} {'floor':>8} {'TFLOP/s':>8} {'GB/s':>7} launches   largest, us"
    print(f"{'op':16} {'case':20} {'by':8} {titles} on {device_kind()}")
    for row in rows(options.ops, options.case, options.implementation or ["pallas"]):
        label = f"{row['op']:16} {row['case']:20} {row['implementation']:8}"
        print(label, row["error"] if "error" in row else _figures(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row | {"seed": SEED} | provenance(options)) + "\n")


def _figures(row: dict[str, Any]) -> str:
    largest = " ".join(f"{microseconds:.1f}" for microseconds in row["largest"].values())
    return "{us:9.1f} {us_floor:8.1f} {tflops:8.0f} {gbs:7.0f} {launches:8.1f}   ".format_map(row) + largest


if __name__ == "__main__":
    main()
