"""What an op is given against what it takes: one line about the first operand that does not belong.

The table of an op is its signature: annotations name the dtype and the axes of every array, also of those in the
dataclasses of an op's structure, and an axis of one name has one size throughout.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import AbstractArray

from pallas_kernels.precision import accumulation_dtype

type Values = jax.Array | np.ndarray
type Range = tuple[Values, int | Values, int | Values]
"""Values, and the lowest and the highest that each may be."""


def checked[**P, R](
    *, alike: Sequence[str] = (), accumulated: Sequence[str] = (), **sizes: int
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For an op: it raises ValueError for an operand of another dtype or shape than its signature says.

    This looks at dtypes and shapes alone, when the op is called or traced, and leaves nothing in what is compiled.

    Args:
        alike: the operands that share a dtype, in the order of the signature; `name.field` is one in a dataclass.
        accumulated: those in the dtype in which these are accumulated.
        sizes: of axes that are constants.
    """

    def with_checks(op: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(op)

        @functools.wraps(op)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            known, dtypes = dict(sizes), dict[str, str]()
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                for operand, array, kind in _arrays(name, value, signature.parameters[name].annotation):
                    _check(f"{op.__name__}: {operand}", array, kind, dtypes.get(operand), known)
                    if operand in alike[:1]:
                        dtypes |= dict.fromkeys(alike, str(array.dtype))
                        dtypes |= dict.fromkeys(accumulated, str(accumulation_dtype(array.dtype)))
            return op(*args, **kwargs)

        return call

    return with_checks


def on_host(structure: Any) -> bool:
    """Whether nothing in it is on a device or traced: then it costs little to look at the values."""
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(structure))


def check_values(op: str, ranges: Mapping[str, Range]) -> None:
    """Raises ValueError for a value outside of its range, by operand; of ranges on the host alone."""
    for operand, (values, lowest, highest) in filter(on_host, ranges.items()):
        outside = np.argwhere((values < lowest) | (values > highest))
        if outside.size:
            place = tuple(outside[0].tolist())
            low, high = (np.broadcast_to(end, values.shape)[place] for end in (lowest, highest))
            at = ", ".join(map(str, place))
            raise ValueError(f"{op}: {operand}[{at}] must be in {low}..{high}, got {values[place]}")


def _arrays(name: str, value: Any, annotation: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and annotation of an argument that is an array, or of each array in it; of others, none."""
    kinds = typing.get_args(annotation) or (annotation,)
    if value is None and type(None) in kinds:
        return
    for kind in filter(inspect.isclass, kinds):
        if issubclass(kind, AbstractArray):  # of numpy and of jax the same is said
            yield name, value, kind
            return
        if dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                yield from _arrays(f"{name}.{field.name}", getattr(value, field.name, None), field.type)


def _check(operand: str, array: Any, kind: Any, dtype: str | None, known: dict[str, int]) -> None:
    """Raises ValueError, or adds to the known sizes of axes."""
    axes = [axis for axis in kind.dim_str.split() if not axis.startswith("*")]  # stacked only within an implementation
    wanted = {axis: known[axis] for axis in axes if axis in known}
    found, shape = str(getattr(array, "dtype", type(array).__name__)), getattr(array, "shape", ())
    sizes = dict(zip(axes, shape, strict=False))
    if found not in ((dtype,) if dtype else kind.dtypes) or len(shape) != len(axes) or sizes != sizes | wanted:
        of_sizes = " with " + ", ".join(f"{axis} = {size}" for axis, size in wanted.items()) if wanted else ""
        expected = f"{dtype or kind.dtype.__name__.lower()}[{' '.join(axes)}]{of_sizes}"
        raise ValueError(f"{operand} must be {expected}, got {found}{list(shape)}")
    known.update(sizes)
