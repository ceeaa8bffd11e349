"""Why is forking exact? Appendix A's induction over layers, walked op by op in float64.

Base: the rows of a forked stream hold the tokens and positions of every question's own text. Step: an op that is given
equal inputs, in the stream and in the text alone, gives equal outputs. Conclusion: so do all layers after each other,
and the answers. Prediction: every difference is rounding, at most 1e-12 of the largest value, in every op of every
layer of every family. How to read the result: `step` gives the text alone the very inputs that the op had in the
stream, row by row, and is the largest difference of its outputs; `chain` lets the text alone run by itself from its
tokens, so that what earlier ops differ in has added up. Both are over the largest value of the output. A wrong fork
shows in `step` at the op whose structure is wrong, and in `chain` from there on.

Random trees around the edges of chunks and convolution, several requests a stream, random weights. Run as `python -m
experiments.exactness`; it needs no accelerator. Records go to `results/exactness.jsonl`.
"""

import argparse
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from experiments import records
from experiments.arguments import positive
from experiments.random_requests import random_plan
from flide_jax.layout import Capacity, MetadataLayout, RoundMetadata, lay_out
from flide_jax.models import families
from flide_jax.models.attention import AttentionConfig
from flide_jax.models.families import Family
from flide_jax.models.gated_delta_net import GatedDeltaNetConfig
from flide_jax.models.layers import RotaryConfig
from flide_jax.models.params import initialise, named_leaves
from flide_jax.models.qwen3_5 import Qwen35Config
from flide_jax.models.qwen3_5.config import LayerKind
from flide_jax.prompts.plan import Plan
from flide_jax.reference.layers import softmax
from pallas_kernels import dispatch
from pallas_kernels.trees import Request

LARGEST = 1e-12  # difference over largest value that float64's rounding explains
LABELS = 5
# Lengths around the edges of a chunk (64 rows) and of the convolution (4 taps).
EDGES = (1, 2, 3, 4, 5, 63, 64, 65, 67, 127, 128, 129)
# Two sizes, so that every op is compiled twice: any text alone, and any stream.
TEXT = Capacity(tokens=320, requests=1, branches=0, reads=1)
STREAM = Capacity(tokens=832, requests=3, branches=24, reads=27)

# An architecture of each family that is small, and in which each kind of layer stands before and behind each other.
SMALL: dict[str, Any] = {
    "qwen3_5": Qwen35Config(
        vocabulary=97,
        width=48,
        feed_forward_width=80,
        layers=tuple(LayerKind.ATTENTION if attends else LayerKind.GATED_DELTA_NET for attends in (0, 0, 1, 1, 0)),
        attention=AttentionConfig(
            query_heads=4, key_heads=2, head_dim=32, rotary=RotaryConfig(dims=8, theta=1e4, axes=(0, 1, 2, 0))
        ),
        gated_delta_net=GatedDeltaNetConfig(key_heads=2, value_heads=6, key_dim=16, value_dim=24, conv_taps=4),
        norm_epsilon=1e-6,
        tied_head=False,
        max_tokens=8_192,
    ),
}
# What the positional operands of an op are: "r" rows of the stream, "c" chunk rows, "." weights, or which rows an
# output row depends on. The latter are what a fork consists of, and are never taken over from the stream.
OPERANDS = {
    "matmul": "r.",
    "fork_attention": "rrr.",
    "segmented_conv": "rrr...",
    "segmented_gdn": "ccccc..",
    "gated_norm": "cr..",
    "rms_norm": "r.",
    "rotary_norm": "r.rr",
}
OUTPUTS = {
    "matmul": "r",
    "fork_attention": "r",
    "segmented_conv": "c",
    "segmented_gdn": "c",
    "gated_norm": "r",
    "rms_norm": "r",
    "rotary_norm": "r",
}


@dataclasses.dataclass(frozen=True)
class Call:
    """One op of a forward: which layer, its name there, and what it was given and gave."""

    layer: int
    name: str
    op: str
    operands: tuple[Any, ...]
    options: dict[str, Any]
    output: Any


@dataclasses.dataclass(frozen=True)
class Walked:
    """One pass over a stream: its metadata, every op, and the label logits of the read rows."""

    metadata: RoundMetadata
    calls: list[Call]
    logits: np.ndarray

    def chunk_rows(self, rows: np.ndarray) -> np.ndarray:
        """Where stream rows stand among the chunk rows."""
        return np.asarray(self.metadata.segments.chunk_row)[rows]


class Model:
    """A small random model of a family, in float64."""

    def __init__(self, family: Family, config: Any, seed: int) -> None:
        self.family, self.config = family, config
        abstract = family.abstract(config, labels=LABELS, dtype=np.dtype(np.float64))
        rng = np.random.default_rng(seed)

        def perturbed(drawn: jax.Array) -> jax.Array:
            # Norm weights start as constants, with which one given to another norm would not show.
            return drawn + 0.3 * rng.standard_normal(drawn.shape) if np.ptp(np.asarray(drawn)) == 0 else drawn

        self.params = jax.tree.map(perturbed, initialise(abstract, jax.random.key(seed)))
        self._names = {id(leaf): name for name, leaf in named_leaves(self.params).items()}

    def walk(self, plans: Sequence[Plan], capacity: Capacity) -> Walked:
        """The forward over the stream of some plans, not compiled as a whole, with every op of it."""
        layout = MetadataLayout(capacity, self.family.conv_taps(self.config))
        stream = lay_out(plans)
        metadata = layout.unpack(layout.pack(stream))
        calls: list[Call] = []

        def note(op: str, table: Any, implementation: Any, *operands: Any, **options: Any) -> Any:
            output = run(op, implementation, operands, options)
            layer, name = (calls[-1].layer if calls else 0), op
            if op == "matmul":
                _, number, name = self._names[id(operands[1])].split(".", 2)
                layer = int(number)
            calls.append(Call(layer, name, op, operands, options, output))
            return output

        with mock.patch.object(dispatch, "run", note):
            # The readout at the read rows alone is compared with its answers, below.
            self.family.forward(self.params, metadata, self.config, selective_readout=False)
        logits = self._forward(layout)(self.params, metadata)
        return Walked(metadata, calls, np.asarray(logits)[: stream.read_rows.size])

    @functools.cache  # noqa: B019  one model lives as long as its walk
    def _forward(self, layout: MetadataLayout) -> Callable[..., Any]:
        return jax.jit(lambda params, metadata: self.family.forward(params, metadata, self.config))


def run(op: str, implementation: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """One op, compiled by itself."""
    arrays = {name: value for name, value in options.items() if isinstance(value, jax.Array)}
    static = tuple(sorted((name, value) for name, value in options.items() if name not in arrays))
    return _compiled(op, implementation, static)(operands, arrays)


@functools.cache
def _compiled(op: str, implementation: Any, static: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    table = importlib.import_module(f"pallas_kernels.{op}.api").IMPLEMENTATIONS
    return jax.jit(lambda operands, arrays: _dispatch(op, table, implementation, *operands, **arrays, **dict(static)))


_dispatch = dispatch.run  # as it is outside a walk


def texts(plans: Sequence[Plan]) -> Iterator[tuple[Plan, np.ndarray]]:
    """Every question as a text of its own, with the stream's rows of its tokens."""
    stream = lay_out(plans)
    rows = [np.arange(b, b + n) for b, n in zip(stream.piece_begin, stream.piece_length, strict=True)]
    branch = len(plans)
    for number, plan in enumerate(plans):
        for index in range(plan.branch_lengths.size):
            yield plan.alone(index), np.concatenate([rows[number], rows[branch]])
            branch += 1


def step(forked: Call, alone: Call, of_stream: np.ndarray, of_text: np.ndarray, chunks: Sequence[np.ndarray]) -> float:
    """The largest difference of an op's outputs when the text alone is given the stream's inputs.

    `chunks`: the chunk rows of the same rows, in the stream and in the text.
    """
    places = {"r": (of_stream, of_text), "c": tuple(chunks)}

    def given(kind: str, in_stream: Any, in_text: Any) -> Any:
        if kind == ".":
            return in_text
        there, here = places[kind]
        value = np.array(in_text)
        value[here] = np.asarray(in_stream)[there]
        return jnp.asarray(value)

    kinds = zip(OPERANDS[alone.op], forked.operands, alone.operands, strict=True)
    operands = tuple(given(*one) for one in kinds)
    options = {
        name: given("r", forked.options[name], value) if isinstance(value, jax.Array) else value
        for name, value in alone.options.items()
    }
    output = run(alone.op, None, operands, options)
    return difference(dataclasses.replace(alone, output=output), forked, *places[OUTPUTS[alone.op]])


def difference(alone: Call, forked: Call, in_stream: np.ndarray, in_text: np.ndarray) -> float:
    """The largest difference of the rows of two outputs over their largest value; infinite where one is not finite."""
    found = 0.0
    # Only what has rows: the recurrence also gives the states it leaves, which are its next rows' business.
    outputs = [call.output[0] if call.op == "segmented_gdn" else call.output for call in (alone, forked)]
    for one, other in zip(*map(jax.tree.leaves, outputs), strict=True):
        one, other = np.asarray(one)[in_text], np.asarray(other)[in_stream]
        if not (np.isfinite(one).all() and np.isfinite(other).all()):
            return float("inf")
        found = max(found, float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30)))
    return found


def random_tree(rng: np.random.Generator, *, vocabulary: int) -> list[Plan]:
    """One to three requests of one to eight questions each, whose lengths are near the edges or anything."""

    def length(most: int) -> int:
        return int(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(1, most))

    plans: list[Plan] = []
    left = STREAM.tokens
    for _ in range(rng.integers(1, 4)):
        request = Request(length(180), [length(130) for _ in range(rng.integers(1, 9))])
        if (left := left - request.state - sum(request.branches)) < 0:
            break
        plans.append(random_plan(request, rng, vocabulary=vocabulary))
    return plans or [random_plan(Request(1, [1]), rng, vocabulary=vocabulary)]


def walk(family: Family, config: Any, *, trees: int, seed: int) -> dict[str, Any]:
    """The proof for one family: the largest differences over some random trees."""
    rng = np.random.default_rng(seed)
    model = Model(family, config, seed)
    ops: dict[tuple[int, str], dict[str, Any]] = {}
    base, questions, conclusion = 0, 0, 0.0
    for _ in range(trees):
        plans = random_tree(rng, vocabulary=config.vocabulary)
        forked = model.walk(plans, STREAM)
        for number, (text, rows) in enumerate(texts(plans)):
            alone, own = model.walk([text], TEXT), np.arange(rows.size)
            for of_stream, of_text in zip(_tokens_and_positions(forked), _tokens_and_positions(alone), strict=True):
                base += int((of_stream[..., rows] != of_text[..., own]).sum())
            chunks = forked.chunk_rows(rows), alone.chunk_rows(own)
            for there, here in zip(forked.calls, alone.calls, strict=True):
                row = ops.setdefault((here.layer, here.name), {"op": here.op, "step": 0.0, "chain": 0.0})
                row["step"] = max(row["step"], step(there, here, rows, own, chunks))
                places = chunks if OUTPUTS[here.op] == "c" else (rows, own)
                row["chain"] = max(row["chain"], difference(here, there, *places))
            here, there = softmax(alone.logits[0]), softmax(forked.logits[number])
            conclusion = max(conclusion, float(np.abs(here - there).max()))
            questions += 1
    return {
        "trees": trees,
        "questions": questions,
        "base": base,
        "ops": [{"layer": layer, "name": name} | row for (layer, name), row in ops.items()],
        "conclusion": conclusion,
    }


def holds(record: dict[str, Any]) -> bool:
    """Whether every difference is rounding."""
    found = [record["conclusion"], *(row[kind] for row in record["ops"] for kind in ("step", "chain"))]
    return record["base"] == 0 and max(found) <= LARGEST


def _tokens_and_positions(walked: Walked) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(walked.metadata.tokens), np.asarray(walked.metadata.rotary_positions)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table for each family; appends one record for each. Exits with 1 where a difference is no rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trees", type=positive, default=4, help="random streams for each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=records.RESULTS / "exactness.jsonl")
    options = parser.parse_args(arguments)
    found = []
    for family in dict.fromkeys(families.FAMILIES.values()):
        name = next(name for name, one in families.FAMILIES.items() if one is family)
        with jax.enable_x64(True):
            record = walk(family, SMALL[name], trees=options.trees, seed=options.seed)
        print(f"{name}: {record['questions']} questions in {record['trees']} streams")
        print(f"{'base':32}{record['base']} rows of other tokens or positions")
        for row in record["ops"]:
            print(f"layer {row['layer']} {row['name']:24} step {row['step']:.1e}   chain {row['chain']:.1e}")
        print(f"{'answers':32}{record['conclusion']:.1e}")
        record |= {"family": name, "dtype": "float64"}
        found.append(records.append(options, record, seed=options.seed))
    if not all(map(holds, found)):
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    main()
