"""Weights from files into a parameter tree, by a table that names every tensor once."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flide_jax.models.checkpoint_files import CheckpointError, TensorFiles
from flide_jax.models.params import named_leaves


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter and the tensors it is made of.

    Attributes:
        target: dotted path in the parameter tree.
        sources: canonical tensor names and the shapes they must have.
        fuse: makes the parameter of the tensors, in the order of `sources`; by default their rows are stacked.
    """

    target: str
    sources: Mapping[str, tuple[int, ...]]
    fuse: Callable[..., np.ndarray] = lambda *tensors: tensors[0] if len(tensors) == 1 else np.concatenate(tensors)


@dataclasses.dataclass(frozen=True)
class WeightTable:
    """Every tensor of a checkpoint: the parameter it goes into, or the reason it is not read.

    Attributes:
        rows: one for each parameter.
        ignored: pattern of canonical names -> what those tensors are for.
        canonical: the name that a tensor has in the table.
    """

    rows: Sequence[Row]
    ignored: Mapping[str, str]
    canonical: Callable[[str], str]


def load[Tree](directory: Path, table: WeightTable, abstract: Tree) -> Tree:
    """Read the parameters of an abstract tree, fuse them and put them on the default device.

    Each tensor is read in its own dtype, fused on the host and converted once to the dtype of its parameter.

    Raises:
        CheckpointError: missing, extra or wrongly shaped tensors (all listed), unreadable files, values that are
            not finite.
    """
    return place(directory, fused(directory, table, abstract), table, abstract)


def fused(directory: Path, table: WeightTable, abstract: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Dotted path and value of every parameter on the host, in the dtype of the file, as they are read.

    Raises CheckpointError: missing, extra or wrongly shaped tensors (all listed), unreadable files.
    """
    specs = named_leaves(abstract)
    if sorted(row.target for row in table.rows) != sorted(specs):
        raise AssertionError("the weight table does not fill every parameter once")
    with contextlib.ExitStack() as stack:
        files = TensorFiles(directory, stack)
        stored = _by_canonical_name(files, table)
        _check(directory, files, stored, table)
        for row in table.rows:
            value = row.fuse(*(files[stored[name]] for name in row.sources))
            if value.shape != specs[row.target].shape:
                raise AssertionError(
                    f"{row.target}: fused to shape {value.shape}, the model has {specs[row.target].shape}"
                )
            yield row.target, value


def place[Tree](directory: Path, values: Iterable[tuple[str, np.ndarray]], table: WeightTable, abstract: Tree) -> Tree:
    """Put fused parameters on the default device, each in its dtype. Raises CheckpointError: one is not finite."""
    specs = named_leaves(abstract)
    loaded = {name: jax.device_put(value.astype(specs[name].dtype, copy=False)) for name, value in values}
    _check_finite(directory, loaded, table)
    return jax.tree.unflatten(jax.tree.structure(abstract), [loaded[name] for name in specs])


def _by_canonical_name(files: TensorFiles, table: WeightTable) -> dict[str, str]:
    stored: dict[str, str] = {}
    for name in files:
        canonical = table.canonical(name)
        if canonical in stored:
            raise CheckpointError(f"{name} and {stored[canonical]} are the same tensor, {canonical}")
        stored[canonical] = name
    return stored


def _check(directory: Path, files: TensorFiles, stored: dict[str, str], table: WeightTable) -> None:
    expected = {name: shape for row in table.rows for name, shape in row.sources.items()}
    findings = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in stored]
    for name, shape in expected.items():
        if name in stored and (found := files.shape(stored[name])) != shape:
            findings.append(f"{stored[name]} has shape {list(found)}, expected {list(shape)}")
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in table.ignored))
    findings += [
        f"unknown tensor {stored[name]}" for name in stored if name not in expected and not ignored.fullmatch(name)
    ]
    if findings:
        raise CheckpointError(f"{directory}: {len(findings)} tensors do not match the model: " + "; ".join(findings))


def _check_finite(directory: Path, loaded: Mapping[str, Any], table: WeightTable) -> None:
    # On the device, all at once: a pass over the weights on the host would take longer than reading them.
    finite = jax.device_get({name: _all_finite(value) for name, value in loaded.items()})
    if broken := [", ".join(row.sources) for row in table.rows if not finite[row.target]]:
        raise CheckpointError(f"{directory}: NaN or infinite values in " + "; ".join(broken))


@jax.jit
def _all_finite(x: jax.Array) -> jax.Array:
    return jnp.all(jnp.isfinite(x))
