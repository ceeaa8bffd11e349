"""A checkpoint with its tensors fused beforehand: what `flide-jax convert` writes and an engine loads as it is.

The directory holds `flide_jax.json` (the manifest, by which it is known), the checkpoint's config, tokenizer and
template, and `parameters/`, written by orbax. Parameters keep the dtype of the checkpoint's files, so that a converted
model gives every engine, whatever its dtype, the very parameters that the checkpoint gives it.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from flide_jax.models import loading
from flide_jax.models.checkpoint_files import CheckpointError, in_one_line
from flide_jax.models.loading import WeightTable
from flide_jax.models.params import named_leaves

FORMAT = 1
MANIFEST = "flide_jax.json"
PARAMETERS = "parameters"
# What an engine reads beside weights; a checkpoint may lack the last two.
TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def is_converted(directory: Path) -> bool:
    """Whether a directory holds a converted model."""
    return (directory / MANIFEST).is_file()


def convert(directory: Path, out: Path, table: WeightTable, abstract: Any, label_ids: Int32[np.ndarray, " L"]) -> None:
    """Fuse the tensors of a checkpoint and save them in a new or empty directory. Needs no device.

    The manifest comes last: without it a directory is no converted model.

    Raises CheckpointError: `out` is not empty or cannot be written to, or the checkpoint cannot be used.
    """
    import orbax.checkpoint as ocp

    if is_converted(directory):
        raise CheckpointError(f"{directory}: is a converted model already")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CheckpointError(f"{out}: is not empty; a converted model is written to a new or an empty directory")
        values = {name: np.ascontiguousarray(v) for name, v in loading.fused(directory, table, abstract)}
        for name in TEXT_FILES:
            if (directory / name).is_file():
                shutil.copyfile(directory / name, out / name)
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save((out / PARAMETERS).absolute(), values)
        unfinished = out / f"{MANIFEST}.unfinished"
        unfinished.write_text(json.dumps(_manifest(table, abstract, label_ids), indent=1), encoding="utf-8")
        unfinished.replace(out / MANIFEST)
    except OSError as error:
        raise CheckpointError(f"{error.filename or out}: {error.strerror or in_one_line(error)}") from None


def load[Tree](directory: Path, table: WeightTable, abstract: Tree, label_ids: Int32[np.ndarray, " L"]) -> Tree:
    """Put the parameters of a converted model on the default device, in the dtypes of an abstract tree.

    Raises CheckpointError: converted by other code or for other labels or sizes, unreadable files, or values that are
        not finite.
    """
    _check_manifest(directory, _manifest(table, abstract, label_ids))
    return loading.place(directory, _restore(directory, abstract), table, abstract)


def _restore(directory: Path, abstract: Any) -> Iterator[tuple[str, np.ndarray]]:
    import orbax.checkpoint as ocp

    specs = named_leaves(abstract)
    # As numpy arrays in the dtype they have on disk: converting them is left to the code that places a checkpoint's.
    arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in specs}
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            values = checkpointer.restore((directory / PARAMETERS).absolute(), restore_args=arguments)
        shapes = {name: value.shape for name, value in values.items()}
    except Exception as error:  # orbax and what it stands on raise errors of many kinds
        raise CheckpointError(f"{directory / PARAMETERS}: cannot be read: {in_one_line(error)}") from None
    if shapes != {name: spec.shape for name, spec in specs.items()}:
        raise CheckpointError(f"{directory / PARAMETERS}: not the parameters that {MANIFEST} speaks of")
    for name in specs:
        yield name, values.pop(name)


def _manifest(table: WeightTable, abstract: Any, label_ids: np.ndarray) -> dict[str, Any]:
    """What must be the same when a converted model is loaded."""
    return {
        "format": FORMAT,
        "shapes": {name: list(spec.shape) for name, spec in named_leaves(abstract).items()},
        "label_ids": label_ids.tolist(),
        "fused_by": _sources_of(table.canonical, loading.fused),
    }


def _sources_of(*functions: Callable[..., Any]) -> str:
    """SHA-256 of the modules that say how tensors are fused: the table's own, and what reads by it."""
    files = [sys.modules[function.__module__].__file__ for function in functions]
    return hashlib.sha256(b"".join(Path(str(file)).read_bytes() for file in files)).hexdigest()


def _check_manifest(directory: Path, here: dict[str, Any]) -> None:
    file = directory / MANIFEST
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(there, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not the manifest of a converted model: {in_one_line(error)}") from None
    if there.get("format") != FORMAT:
        raise CheckpointError(f"{file}: format {there.get('format')!r} cannot be read, only {FORMAT}")
    reasons = {
        "shapes": "config.json describes a model of other sizes",
        "label_ids": "the tokenizer or this version of flide-jax gives the options other tokens",
        "fused_by": "this version of flide-jax may fuse tensors in another way",
    }
    if differing := [reason for name, reason in reasons.items() if there.get(name) != here[name]]:
        raise CheckpointError(f"{directory}: must be converted again: " + "; ".join(differing))
