"""One layer of each kind out of a trace: its launches in order, and the op that each belongs to.

A layer's launches follow one another, and every Gated DeltaNet layer has one convolution. So what lies between the
convolutions of two such neighbours is one layer, from there round to there, and what lies between two with a layer of
attention in between is one of each. What an executable does once for all of its layers (the structure of the round)
stands in the first of them; so the layer with the fewest launches is taken.
"""

import collections
import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence

from flide_jax.models.qwen3_5.config import LayerKind

CONVOLUTION = "segmented_conv"
_PRODUCT = re.compile(r"matmul|nvjet|gemm|cutlass|cublas")
# The products of a layer, in their order; a row is normed before the first and the third.
_PRODUCTS = ("in_proj", "out_proj", "gate_up", "down")
_NORM_BEFORE = ("in_proj", "gate_up")
# What is named in a trace as it is here.
_KERNELS = {
    CONVOLUTION: "convolution",
    "segmented_gdn": "recurrence",
    "gated_norm": "gated norm",
    "rotary_norm": "rotary norm",
    "fork_attention": "attention",
}
_REST = "between"


@dataclasses.dataclass(frozen=True)
class Launch:
    """What a GPU ran, and for how many microseconds."""

    name: str
    us: float


def by_name(launches: Iterable[Launch], passes: int) -> dict[str, tuple[float, float]]:
    """How many launches of each name one pass has, and their microseconds; those first that take most."""
    counts, sums = collections.Counter[str](), collections.defaultdict[str, float](float)
    for launch in launches:
        short = re.sub(r"_\d+$", "", launch.name)
        counts[short] += 1
        sums[short] += launch.us
    names = sorted(sums, key=lambda name: -sums[name])
    return {name: (counts[name] / passes, round(sums[name] / passes, 2)) for name in names}


def one_layer_of_each(launches: Sequence[Launch], layers: Sequence[LayerKind]) -> dict[LayerKind, list[Launch]]:
    """The launches of one layer of each kind, out of those of one pass in the order in which they ran.

    Raises ValueError: there is not one convolution for each Gated DeltaNet layer, or no two of these are neighbours and
    whole.
    """
    at = [number for number, launch in enumerate(launches) if launch.name.startswith(CONVOLUTION)]
    recurrent = [number for number, kind in enumerate(layers) if kind is LayerKind.GATED_DELTA_NET]
    if len(at) != len(recurrent):
        raise ValueError(f"the trace has {len(at)} convolutions, the model {len(recurrent)} layers with one")
    between: dict[int, list[Sequence[Launch]]] = {}  # by how many layers the second is further on
    for (begin, end), (layer, other) in zip(itertools.pairwise(at), itertools.pairwise(recurrent), strict=True):
        between.setdefault(other - layer, []).append(launches[begin:end])
    whole = {apart: _whole(parts, apart * len(_PRODUCTS)) for apart, parts in between.items()}
    if not whole.get(1):
        raise ValueError("no two Gated DeltaNet layers are neighbours with all of their products")
    # Behind its convolution a layer has all of its products but the first.
    turned = min(whole[1], key=len)
    end = _behind_products(turned)[-2]
    found = {LayerKind.GATED_DELTA_NET: [*turned[end:], *turned[:end]]}
    if whole.get(2):
        both = min(whole[2], key=len)
        ends = _behind_products(both)
        found[LayerKind.ATTENTION] = list(both[ends[-2 - len(_PRODUCTS)] : ends[-2]])
    return found


def _whole(parts: Sequence[Sequence[Launch]], products: int) -> list[Sequence[Launch]]:
    """Those of equal layers that lost no launch of a kernel, as the profiler does at times: they have so many products,
    and of every kernel as many as any."""
    counts = [collections.Counter(op for op in map(_kernel_of, part) if op != _REST) for part in parts]
    most = functools.reduce(operator.or_, counts, collections.Counter())
    return [
        part
        for part, kernels in zip(parts, counts, strict=True)
        if kernels == most and len(_behind_products(part)) == products
    ]


def _behind_products(launches: Sequence[Launch]) -> list[int]:
    """Where the launches go on behind each product."""
    return [number for number, launch in enumerate(launches, 1) if _PRODUCT.search(launch.name)]


def _kernel_of(launch: Launch) -> str:
    return next((op for name, op in _KERNELS.items() if launch.name.startswith(name)), _REST)


def ops_of(layer: Sequence[Launch]) -> list[str]:
    """The op that each launch of a layer belongs to: "between" for what XLA does between the others."""
    found = list(map(_kernel_of, layer))
    products = _behind_products(layer)
    if len(products) == len(_PRODUCTS):
        for end, name in zip(products, _PRODUCTS, strict=True):
            found[end - 1] = name
            if name in _NORM_BEFORE and end > 1:
                found[end - 2] = "norm"
    return found


def table(layer: Sequence[Launch], floors: Mapping[str, float]) -> list[str]:
    """Lines: each launch with its op, and each op's time and floor where its last launch stands."""
    ops = ops_of(layer)
    last = {op: number for number, op in enumerate(ops)}
    lines = [f"{'op':12} {'us':>8} {'of the op':>10} {'floor':>8}  launch"]
    for number, (launch, op) in enumerate(zip(layer, ops, strict=True)):
        whole = sum(other.us for other, its in zip(layer, ops, strict=True) if its == op)
        least = f"{floors[op]:8.2f}" if op in floors else f"{'-':>8}"
        shown = f"{whole:10.2f} {least}" if last[op] == number else " " * 19
        lines.append(f"{op:12} {launch.us:8.2f} {shown}  {launch.name[:60]}")
    total, least_of_all = sum(launch.us for launch in layer), sum(floors.values())
    return [*lines, f"{'all':12} {'':8} {total:10.2f} {least_of_all:8.2f}  {len(layer)} launches"]
