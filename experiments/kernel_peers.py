"""Are the kernels of a fork faster than what else could compute one, and as accurate?

Ours and the peers on the same operands in one process. For attention: FlexAttention of PyTorch, compiled, with the
fork's mask; and cuDNN through JAX, causal over the whole stream, which is other work (a branch sees the branches before
it): a yardstick of speed for our kernel with that same causal mask, and of nothing else. For the recurrence:
flash-linear-attention's chunk_gated_delta_rule in two calls, all states and then all branches from their states, which
are gathered in between.

Prediction: in bfloat16 on an H200 attention takes at most 0.8 of FlexAttention's time (0.45 on quality-all) and at most
1.1 of cuDNN's under its mask; the recurrence takes at most half of its peer's. Errors are within a fifth of each other.

How to read the result: `us` is the time of a layer in a graph of LAYERS of them on operands of their own, launched back
to back: of ours an executable, of PyTorch's a CUDA graph. Gaps between launches are in it; `us_launches` of ours leaves
them out, as `pallas_kernels.bench` does. `us_mask` is what FlexAttention's list of blocks takes, once a round. `error`
is the root mean square of the error over that of the value, against float32 (attention) or float64 (recurrence) on the
same rounded operands; `error_state` that of the final states. A peer's configurations are chosen by its own autotuner.

Run as `XLA_PYTHON_CLIENT_PREALLOCATE=false python -m experiments.kernel_peers [fork_attention | segmented_gdn]` on one
GPU, with torch and flash-linear-attention installed; a peer that is not there, or fails, is named. It measures
launches, of which a CPU has none, so there is no small size; the tests compare what is computed.
Records go to `results/kernel_peers.jsonl`.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import records
from experiments.arguments import need_gpu
from pallas_kernels import trees
from pallas_kernels.bench import trace_launches
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.fork_attention.api import KeySpans, fork_attention
from pallas_kernels.segmented_gdn import cases as recurrence

DEVICE = "cuda"  # PyTorch's name of the accelerator
LAYERS = 16
REPEATS = 10
CASES = ("multirc", "quality-all")
# What the peers are made of.
PACKAGES = ("torch", "triton", "flash-linear-attention", "jax-triton", "nvidia-cudnn-cu13")

type Row = dict[str, Any]
type Measurement = tuple[Row, Callable[[], Row]]  # who and under which mask, and what measures it


def relative_rms(found: Any, exact: Any) -> float:
    found, exact = (np.asarray(x, np.float64) for x in (found, exact))
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def timed(call: Callable[..., Any], sets: Sequence[Sequence[jax.Array]]) -> Row:
    """A jitted executable of one `call` for each set of operands: its time back to back, and that of its launches."""
    layers = jax.jit(lambda sets: [call(*one) for one in sets])
    for _ in range(3):
        jax.block_until_ready(layers(sets))
    samples = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready([layers(sets) for _ in range(REPEATS)])
        samples.append(1e6 * (time.perf_counter() - begin) / REPEATS / len(sets))
    launches = trace_launches(lambda: layers(sets))
    return summed("us", samples) | {
        "us_launches": launches.total() / len(sets),
        "launches_us": [round(us, 3) for _, us in launches.in_order],
    }


def summed(name: str, samples: Sequence[float]) -> Row:
    """The median of some microseconds, and each of them."""
    return {name: statistics.median(samples), f"{name}_samples": [round(one, 3) for one in samples]}


def replayed(call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> list[float]:
    """Microseconds of a PyTorch `call`, again and again; of which a CUDA graph holds one for each set of operands."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            for one in sets:
                call(*one)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(*one) for one in sets]  # their memory is the graph's
    microseconds = elapsed(graph.replay)
    del kept
    return [one / len(sets) for one in microseconds]


def elapsed(work: Callable[[], Any]) -> list[float]:
    """Microseconds on the device from the begin to the end of a PyTorch function's work, again and again."""
    import torch

    samples = []
    for _ in range(2 * REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        samples.append(1e3 * begin.elapsed_time(end))
    return samples


def tensor(x: jax.Array) -> Any:
    """The same memory, as PyTorch's."""
    import torch

    return torch.from_dlpack(x)


def array(x: Any) -> np.ndarray:
    return x.float().cpu().numpy()


def of_attention(case: attention.Case, implementations: Sequence[str]) -> Iterator[Measurement]:
    sets = [case.operands(jax.random.key(records.SEED + number)) for number in range(LAYERS)]
    last = trees.pieces(case.requests)[-1]
    used = last.begin + last.length
    none, after = np.zeros(case.rows, np.int32), np.arange(1, case.rows + 1, dtype=np.int32)
    masks = {"fork": case.spans(), "causal": KeySpans(none, after, none, none)}

    def ours(mask: str, implementation: str) -> Callable[..., jax.Array]:
        options = {"scale": case.scale, "finite": case.finite, "implementation": implementation}
        return lambda *operands: fork_attention(*operands, masks[mask], **options)

    widened = [x.astype(jnp.float32) for x in sets[0]]
    exact = {mask: jax.jit(ours(mask, "xla"))(*widened)[:used] for mask in masks}

    def cudnn(*operands: jax.Array) -> jax.Array:
        batch = (x[None] for x in operands)
        return jax.nn.dot_product_attention(*batch, scale=case.scale, is_causal=True, implementation="cudnn")[0]

    def measured(mask: str, call: Callable[..., jax.Array]) -> Row:
        return {"error": relative_rms(jax.jit(call)(*sets[0])[:used], exact[mask])} | timed(call, sets)

    calls = [(mask, name, ours(mask, name)) for name in implementations for mask in masks]
    for mask, name, call in [*calls, ("causal", "cudnn", cudnn)]:
        yield {"mask": mask, "by": name}, functools.partial(measured, mask, call)
    flex = functools.partial(flex_attention_figures, case, sets, exact["fork"])
    yield {"mask": "fork", "by": "flex_attention"}, flex


def flex_attention_figures(case: attention.Case, sets: Sequence[Sequence[jax.Array]], exact: jax.Array) -> Row:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    visible = fork_mask(case.spans())
    make_mask = torch.compile(create_block_mask)
    mask = make_mask(visible, None, None, case.rows, case.rows, device=DEVICE)
    compiled = torch.compile(flex_attention, dynamic=False)

    def call(query: Any, key: Any, value: Any) -> Any:
        return compiled(query, key, value, block_mask=mask, scale=case.scale, enable_gqa=True)

    heads_first = [[tensor(x).transpose(0, 1)[None].contiguous() for x in one] for one in sets]
    out = array(call(*heads_first[0])[0].transpose(0, 1))[: len(exact)]
    return {
        "error": relative_rms(out, exact),
        **summed("us", replayed(call, heads_first)),
        **summed("us_mask", elapsed(lambda: make_mask(visible, None, None, case.rows, case.rows, device=DEVICE))),
    }


def fork_mask(spans: KeySpans) -> Callable[..., Any]:
    """Eq. 3 as a FlexAttention `mask_mod`: which key row a query row sees."""
    import torch

    state_begin, state_end, own_begin, own_end = (
        torch.from_numpy(np.array(x)).to(DEVICE)
        for x in (spans.state_begin, spans.state_end, spans.own_begin, spans.own_end)
    )

    def visible(_batch: Any, _head: Any, row: Any, y: Any) -> Any:
        of_state = (state_begin[row] <= y) & (y < state_end[row])
        return of_state | ((own_begin[row] <= y) & (y < own_end[row]))

    return visible


def of_recurrence(case: recurrence.Case, implementations: Sequence[str]) -> Iterator[Measurement]:
    sets = [case.operands(jax.random.key(records.SEED + number)) for number in range(LAYERS)]
    stream_rows = np.asarray(case.segments().stream_rows())
    used = stream_rows >= 0
    with jax.enable_x64(True):
        exact, exact_states = jax.jit(recurrence.caller(case, "reference"))(*(x.astype(jnp.float64) for x in sets[0]))
        exact, exact_states = np.asarray(exact)[used], np.asarray(exact_states)

    def measured(call: Callable[..., Any]) -> Row:
        found, states = jax.jit(call)(*sets[0])
        errors = {
            "error": relative_rms(np.asarray(found)[used], exact),
            "error_state": relative_rms(states, exact_states),
        }
        return errors | timed(call, sets)

    for implementation in implementations:
        yield {"by": implementation}, functools.partial(measured, recurrence.caller(case, implementation))
    delta_rule = functools.partial(delta_rule_figures, case, sets, exact, exact_states)
    yield {"by": "flash-linear-attention"}, delta_rule


def delta_rule_figures(
    case: recurrence.Case, sets: Sequence[Sequence[jax.Array]], exact: np.ndarray, exact_states: np.ndarray
) -> Row:
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    pieces = trees.pieces(case.requests)
    states = [piece for piece in pieces if piece.parent is None]
    branches = [piece for piece in pieces if piece.parent is not None]
    slots = torch.tensor([piece.slot for piece in branches], device=DEVICE)
    state_rows = sum(piece.length for piece in states)

    def ends(pieces: Sequence[trees.Piece]) -> Any:
        return torch.tensor([0, *np.cumsum([piece.length for piece in pieces])], device=DEVICE)

    state_ends, branch_ends = ends(states), ends(branches)

    @torch.no_grad()
    def call(*operands: Any) -> tuple[Any, Any, Any]:
        options = {"scale": case.scale, "state_v_first": True}
        of_states = (x[:, :state_rows] for x in operands)
        first, last_states = chunk_gated_delta_rule(
            *of_states, cu_seqlens=state_ends, output_final_state=True, **options
        )
        of_branches = (x[:, state_rows:] for x in operands)
        second, _ = chunk_gated_delta_rule(
            *of_branches, cu_seqlens=branch_ends, initial_state=last_states[slots], **options
        )
        return first, second, last_states

    # Segments stand in the order of the stream, so that rows without padding are the stream's.
    rows = torch.from_numpy(np.flatnonzero(np.asarray(case.segments().stream_rows()) >= 0)).to(DEVICE)
    streams = [[tensor(x)[rows][None].contiguous() for x in one] for one in sets]
    first, second, last_states = call(*streams[0])
    return {
        "error": relative_rms(np.concatenate([array(first[0]), array(second[0])]), exact),
        "error_state": relative_rms(array(last_states), exact_states),
        **summed("us", replayed(call, streams)),
    }


def rows(op: str, case: Any, implementations: Sequence[str]) -> Iterator[Row]:
    """What was measured; `failed` instead of figures where something does not run, and the others are measured."""
    for label, measure in OPS[op][1](case, implementations):
        try:
            figures = measure()
        except Exception as failure:  # whatever another package raises
            figures = {"failed": f"{type(failure).__name__}: {str(failure)[:500]}"}
        yield label | figures


OPS: dict[str, tuple[Any, Callable[..., Iterator[Measurement]]]] = {
    "fork_attention": (attention, of_attention),
    "segmented_gdn": (recurrence, of_recurrence),
}


def computable(op: str) -> dict[str, Any]:
    """The cases that peers can compute, too: a whole round, nothing of former ones."""
    plain = {"cached": (), "read_only": False, "tail": None, "finite": True}

    def is_plain(case: Any) -> bool:
        return all(getattr(case, name, value) == value for name, value in plain.items())

    return {name: case for name, case in OPS[op][0].CASES.items() if is_plain(case)}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table; appends a record for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", default=[*OPS], metavar="op", help=f"of {', '.join(OPS)}; both by default")
    parser.add_argument("--case", action="append", default=[], help=f"of pallas_kernels.bench; {', '.join(CASES)}")
    parser.add_argument("--implementation", action="append", default=[], help="of ours; pallas by default")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "kernel_peers.jsonl")
    options = parser.parse_args(arguments)
    if unknown := set(options.ops) - set(OPS):
        parser.error(f"no op {', '.join(sorted(unknown))}; there are {', '.join(OPS)}")
    for op in options.ops:
        if unknown := set(options.case) - set(computable(op)):
            parser.error(f"{op}: no case {', '.join(sorted(unknown))}; there are {', '.join(computable(op))}")
    need_gpu(parser)
    for op in options.ops:
        for name in options.case or CASES:
            for row in rows(op, computable(op)[name], options.implementation or ["pallas"]):
                figures = (f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in row.items())
                print(op, name, *figures, flush=True)
                records.append(options, {"op": op, "case": name, **row, "packages": records.packages(*PACKAGES)})


if __name__ == "__main__":
    main()
