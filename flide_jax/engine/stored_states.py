"""Checkpoints of growing states on disk: saved by an engine, and restored by one of the same weights and dtype.

A directory with `checkpoints.json` (what there is, and of which model) and `arrays/`, written by orbax. **It holds the
tokens of states, which are their texts**: the directory is made for its owner alone.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flide_jax.checkpoints import Checkpoint
from flide_jax.engine.growing import GrowingStates, States
from flide_jax.engine.program import Program
from flide_jax.models.checkpoint_files import in_one_line
from flide_jax.models.pool import KeyPages, Pool

FORMAT = 1
MANIFEST = "checkpoints.json"
ARRAYS = "arrays"
# Numbers of each parameter that go into the hash which tells models apart.
_SAMPLED = 256


class StoredStatesError(ValueError):
    """Checkpoints that cannot be saved or restored; the message says where and why, in one line."""


def save(directory: Path, growing: GrowingStates, program: Program, params: Sequence[jax.Array]) -> int:
    """Save all checkpoints of the device in a new or empty directory; how many. Rounds wait meanwhile.

    Raises StoredStatesError: the directory is not empty or cannot be written to.
    """
    import orbax.checkpoint as ocp

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise StoredStatesError(f"{directory}: is not empty; checkpoints are saved in a new or an empty directory")
        directory.chmod(0o700)
        states = growing.states()
        tokens = np.concatenate([np.empty(0, np.int32), *(one.tokens for one in states.checkpoints)])
        manifest = {
            "format": FORMAT,
            "model": identity(program, params),
            "shapes": [[*leaf.shape] for leaf in jax.tree.leaves(states.pool)],
            "checkpoints": [
                {
                    "namespace": one.namespace,
                    "tokens": one.tokens.size,
                    "pages": one.pages.tolist(),
                    "slot": one.slot,
                    "changing": one.changing,
                }
                for one in states.checkpoints
            ],
        }
        if states.checkpoints:
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save((directory / ARRAYS).absolute(), _named(states.pool) | {"tokens": tokens})
        # Last: without it the directory holds nothing.
        unfinished = directory / f"{MANIFEST}.unfinished"
        unfinished.write_text(json.dumps(manifest), encoding="utf-8")
        unfinished.replace(directory / MANIFEST)
    except OSError as error:
        raise StoredStatesError(f"{error.filename or directory}: {error.strerror}") from None
    return len(states.checkpoints)


def restore(directory: Path, growing: GrowingStates, program: Program, params: Sequence[jax.Array]) -> int:
    """Add what was saved to a store, those first that were used last, as far as there is room; how many.

    Raises StoredStatesError: nothing was saved there, it is damaged, or it is of another model.
    """
    manifest = _manifest(directory)
    if manifest.get("model") != identity(program, params):
        raise StoredStatesError(f"{directory}: holds checkpoints of another model or dtype")
    try:
        if not manifest["checkpoints"]:
            return 0
        states = _states(directory, manifest, growing)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, StoredStatesError):
            raise
        raise StoredStatesError(f"{directory / MANIFEST}: is damaged: {in_one_line(error)}") from None
    return growing.add(states)


def identity(program: Program, params: Sequence[jax.Array]) -> dict[str, Any]:
    """What states depend on: the architecture, the dtype, and the weights by a hash of some numbers of each."""
    total = hashlib.sha256()
    for leaf in params:
        flat = leaf.reshape(-1)
        total.update(np.asarray(flat[:: max(1, flat.size // _SAMPLED)][:_SAMPLED]).tobytes())
    found = {
        "architecture": dataclasses.asdict(program.architecture),
        "dtype": program.dtype.name,
        "weights": total.hexdigest(),
    }
    as_json: dict[str, Any] = json.loads(json.dumps(found))
    return as_json


def _named(pool: Any) -> dict[str, np.ndarray]:
    return {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(pool))}


def _manifest(directory: Path) -> dict[str, Any]:
    file = directory / MANIFEST
    try:
        manifest = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise StoredStatesError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StoredStatesError(f"{file}: is damaged: {in_one_line(error)}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoredStatesError(f"{file}: is of another format")
    return manifest


def _states(directory: Path, manifest: dict[str, Any], growing: GrowingStates) -> States:
    arrays = _arrays(directory, manifest, growing)
    tokens, begin, checkpoints = arrays.pop("tokens"), 0, []
    for entry in manifest["checkpoints"]:
        own = tokens[begin : begin + entry["tokens"]]
        begin += own.size
        pages = np.array(entry["pages"], np.int32)
        checkpoints.append(Checkpoint(str(entry["namespace"]), own, pages, int(entry["slot"]), int(entry["changing"])))
    leaves = [arrays[str(number)] for number in range(len(arrays))]
    pool: Pool = jax.tree.unflatten(jax.tree.structure(growing.shapes), leaves)
    for layer in pool:
        used = [one.pages for one in checkpoints] if isinstance(layer, KeyPages) else [one.slot for one in checkpoints]
        finite = [layer.value] if isinstance(layer, KeyPages) else [layer.states, layer.windows]
        if not all(0 <= np.min(places) and np.max(places) < len(finite[0]) for places in used):
            raise StoredStatesError(f"{directory}: names pages or slots that are not there")
        if not all(np.isfinite(leaf).all() for leaf in finite):
            raise StoredStatesError(f"{directory}: holds values that are not finite")
    return States(checkpoints, pool)


def _arrays(directory: Path, manifest: dict[str, Any], growing: GrowingStates) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    shapes = jax.tree.leaves(growing.shapes)
    target = {
        str(number): np.empty(shape, leaf.dtype)
        for number, (shape, leaf) in enumerate(zip(manifest["shapes"], shapes, strict=True))
    }
    target["tokens"] = np.empty(sum(entry["tokens"] for entry in manifest["checkpoints"]), np.int32)
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            found = checkpointer.restore(
                (directory / ARRAYS).absolute(),
                args=ocp.args.PyTreeRestore(
                    item=target, restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
                ),
            )
    except Exception as error:  # orbax and what it stands on raise errors of many kinds
        raise StoredStatesError(f"{directory}: cannot be read: {in_one_line(error)}") from None
    for name, array in found.items():
        if array.shape != target[name].shape or array.dtype != target[name].dtype:
            raise StoredStatesError(f"{directory}: array {name} is {array.dtype} {array.shape}")
    return dict(found)
