"""Checkpoints of growing states on disk: saved by an engine, and restored by one of the same weights and dtype.

A directory with `checkpoints.json` (what there is, and of which model) and `arrays/`, written by orbax. **It holds the
tokens of states, which are their texts**: the directory is made for its owner alone.

What a checkpoint holds becomes answers, so a store that is not as it was saved is refused. `checkpoints.json` has a
SHA-256 of itself and one of each array as it is restored, however orbax keeps it. These find damage; forgery is kept
out by reading it only where nobody else than its owner or root can write.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flide_jax.checkpoints import Checkpoint
from flide_jax.checkpoints.pages import pages_for
from flide_jax.engine import owned_files
from flide_jax.engine.growing import GrowingStates, States
from flide_jax.engine.program import Program
from flide_jax.models.checkpoint_files import in_one_line
from flide_jax.models.pool import KeyPages, Pool

FORMAT = 2
MANIFEST = "checkpoints.json"
ARRAYS = "arrays"
# Numbers of each parameter that go into the hash which tells models apart.
_SAMPLED = 256
# Of the tokens among the arrays; the others are the leaves of the pool by their number.
_TEXTS = "texts"


class StoredStatesError(ValueError):
    """Checkpoints that cannot be saved or restored; the message says where and why, in one line."""


def save(directory: Path, growing: GrowingStates, program: Program, params: Sequence[jax.Array]) -> int:
    """Save all checkpoints of the device in a new or empty directory; how many. Rounds wait meanwhile.

    Raises StoredStatesError: the directory is not empty or cannot be written to.
    """
    import orbax.checkpoint as ocp

    try:
        if directory.exists() and not directory.is_dir():
            raise StoredStatesError(f"{directory}: is a file; checkpoints are saved in a new or an empty directory")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise StoredStatesError(f"{directory}: is not empty; checkpoints are saved in a new or an empty directory")
        directory.chmod(0o700)
        states = growing.states()
        texts = np.concatenate([np.empty(0, np.int32), *(one.text for one in states.checkpoints)])
        arrays = {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(states.pool))} | {_TEXTS: texts}
        manifest = {
            "format": FORMAT,
            "model": identity(program, params),
            "arrays": {name: {"shape": [*array.shape], "sha256": _sum(array)} for name, array in arrays.items()},
            "checkpoints": [
                {
                    "namespace": one.namespace,
                    "tokens": one.tokens.size,
                    "text": one.text.size,
                    "pages": one.pages.tolist(),
                    "slot": one.slot,
                }
                for one in states.checkpoints
            ],
        }
        if states.checkpoints:
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save((directory / ARRAYS).absolute(), arrays)
        # Last: without it the directory holds nothing.
        unfinished = directory / f"{MANIFEST}.unfinished"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            json.dump(manifest | {"sha256": sum_of(manifest)}, opened)
        unfinished.replace(directory / MANIFEST)
    except OSError as error:
        raise StoredStatesError(f"{error.filename or directory}: {error.strerror}") from None
    return len(states.checkpoints)


def restore(directory: Path, growing: GrowingStates, program: Program, params: Sequence[jax.Array]) -> int:
    """Add what was saved to a store, those first that were used last, as far as there is room; how many.

    Raises StoredStatesError: nothing was saved there, others could have written to it, it is damaged, or it is of
    another model.
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


def sum_of(manifest: dict[str, Any]) -> str:
    """The SHA-256 of all other fields of a manifest."""
    others = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


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


def _sum(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8)).hexdigest()


def _manifest(directory: Path) -> dict[str, Any]:
    file = directory / MANIFEST
    ours: Any = {"error": StoredStatesError, "because": "answers come from checkpoints"}
    try:
        owned_files.check_owner(directory, directory.stat(), **ours)
        manifest = json.loads(owned_files.read(file, **ours))
    except OSError as error:
        raise StoredStatesError(f"{directory}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, StoredStatesError):
            raise
        raise StoredStatesError(f"{file}: is damaged: {in_one_line(error)}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise StoredStatesError(f"{file}: is of another format")
    if manifest.get("sha256") != sum_of(manifest):
        raise StoredStatesError(f"{file}: is damaged: its SHA-256 is another one")
    return manifest


def _states(directory: Path, manifest: dict[str, Any], growing: GrowingStates) -> States:
    arrays = _arrays(directory, manifest, growing)
    texts, entries = arrays.pop(_TEXTS), manifest["checkpoints"]
    begins = np.cumsum([entry["text"] for entry in entries])[:-1]
    checkpoints = []
    for entry, text in zip(entries, np.split(texts, begins), strict=True):
        own, pages = text[: entry["tokens"]], np.array(entry["pages"], np.int32)
        if not 1 <= entry["tokens"] <= entry["text"] == text.size or pages.shape != (pages_for(own.size),):
            raise StoredStatesError(f"{directory / MANIFEST}: is damaged: tokens, texts and pages do not go together")
        checkpoints.append(Checkpoint(str(entry["namespace"]), own, pages, int(entry["slot"]), text))
    if len({one.slot for one in checkpoints}) < len(checkpoints):
        raise StoredStatesError(f"{directory / MANIFEST}: is damaged: two checkpoints have the same slot")
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
    """All arrays, each as it was saved."""
    import orbax.checkpoint as ocp

    dtypes = {str(number): leaf.dtype for number, leaf in enumerate(jax.tree.leaves(growing.shapes))}
    dtypes[_TEXTS] = np.dtype(np.int32)
    told = manifest["arrays"]
    if told.keys() != dtypes.keys():
        raise StoredStatesError(f"{directory / MANIFEST}: is damaged: it names other arrays than this model has")
    found = {}
    with ocp.PyTreeCheckpointer() as checkpointer:
        # One at a time: where one of several cannot be read, those still on their way complain on standard error.
        for name, dtype in dtypes.items():
            one = ocp.args.PyTreeRestore(
                item={name: np.empty(told[name]["shape"], dtype)},
                restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
                partial_restore=True,
            )
            try:
                array: np.ndarray = checkpointer.restore((directory / ARRAYS).absolute(), args=one)[name]
            except Exception as error:  # orbax and what it stands on raise errors of many kinds
                raise StoredStatesError(f"{directory}: cannot be read: {in_one_line(error)}") from None
            if array.dtype != dtype or [*array.shape] != told[name]["shape"] or _sum(array) != told[name]["sha256"]:
                raise StoredStatesError(f"{directory}: is damaged: array {name} is not what was saved")
            found[name] = array
    return found
