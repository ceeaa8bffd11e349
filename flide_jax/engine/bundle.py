"""Executables on disk: compiled once by `flide-jax warm`, then loaded by engines, which neither trace nor compile.

A bundle is a directory with one file for each executable of a capacity and `manifest.json`, which holds everything the
executables depend on. An engine that differs from it in anything refuses the bundle and says in what. A capacity that
the bundle lacks is compiled as without a bundle, and that is said.

**A file of a bundle is pickled, so loading it may run what code it holds.** It is read only from the directory that the
user names, and only if directory and files belong to the user or root and nobody else can write to them. The SHA-256
sums in the manifest find damage, not forgery.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.resources
import itertools
import json
import logging
import os
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from flide_jax.engine import owned_files, serialised
from flide_jax.engine.parts import CompiledRound
from flide_jax.engine.program import CONCURRENT_TOKENS, Program, Run, compiler_options
from flide_jax.layout import Capacity
from flide_jax.models.checkpoint_files import in_one_line

FORMAT = 1
MANIFEST = "manifest.json"
# The package's own code that becomes an executable.
SOURCES = ("flide_jax/engine/program.py", "flide_jax/layout", "flide_jax/models", "pallas_kernels")
# What an executable for a GPU is made with, and calls; only one of two versions of CUDA is installed.
_CUDA_PACKAGES = tuple(
    name
    for cuda in (12, 13)
    for name in (
        f"jax-cuda{cuda}-pjrt",
        f"jax-cuda{cuda}-plugin",
        "nvidia-cublas" if cuda == 13 else "nvidia-cublas-cu12",
    )
)


_log = logging.getLogger(__name__)

type _Files = list[tuple[str, str]]  # name and SHA-256 of each executable of a capacity


class BundleError(ValueError):
    """A bundle that cannot be made or used; the message says which file, and why or what differs, in one line."""


def prepare(directory: Path) -> None:
    """Make the directory of a new bundle. Raises BundleError: it is not empty, or would not be trusted later."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o755, exist_ok=True)
        if any(directory.iterdir()):
            raise BundleError(f"{directory}: is not empty; a bundle is made in a new or an empty directory")
        _check_owner(directory, directory.stat())
    except OSError as error:
        raise BundleError(f"{error.filename or directory}: {error.strerror}") from None


def save(
    directory: Path, program: Program, capacities: Sequence[Capacity], *, processes: int = 1
) -> Iterator[tuple[Capacity, int]]:
    """Compile in so many processes, and write a bundle into a directory that `prepare` made.

    Yields (capacity, bytes) as they are written. The manifest comes last: a directory without one is none.

    Raises BundleError: the executables cannot be serialised here, or the directory cannot be written to.
    """
    manifest: dict[str, Any] = {"format": FORMAT, "depends_on": depends_on(program)}
    entries: list[dict[str, Any]] = []
    try:
        for capacity, payloads in serialised.compile_all(program, capacities, processes=processes):
            family = "growing.executable" if capacity.is_growing else "executable"
            files = []
            for part, payload in enumerate(payloads):
                name = f"{capacity.tokens}.{f'part{part}.' if part else ''}{family}"
                _write(directory / name, payload)
                files.append({"name": name, "sha256": hashlib.sha256(payload).hexdigest()})
            entries.append({"files": files, "capacity": dataclasses.asdict(capacity)})
            yield capacity, sum(map(len, payloads))
        manifest["executables"] = sorted(entries, key=lambda entry: entry["capacity"]["tokens"])
        unfinished = directory / f"{MANIFEST}.unfinished"
        _write(unfinished, json.dumps(manifest, indent=1).encode())
        unfinished.replace(directory / MANIFEST)
    except serialised.SerialisationError as error:
        raise BundleError(f"this executable cannot be serialised: {error}") from None
    except OSError as error:
        raise BundleError(f"{error.filename or directory}: {error.strerror}") from None


class Bundle:
    """The executables of a program on disk, found to be its own and whole. None is loaded before it is asked for."""

    def __init__(self, directory: Path, program: Program, capacities: Sequence[Capacity]) -> None:
        """Looks at the files of these capacities.

        Raises BundleError: no bundle, one that others could have written to, a damaged one, or one of another program.
        """
        self._directory = directory = directory.resolve()
        self._program = program
        try:
            _check_owner(directory, directory.stat())
        except OSError as error:
            raise BundleError(f"{directory}: {error.strerror}") from None
        files = _files(directory, _manifest(directory), program)
        self._files = {capacity: files[capacity] for capacity in capacities if capacity in files}
        # Read and let go: it is found out now whether they are whole.
        self._in_threads(lambda capacity: len(_payloads(directory, self._files[capacity])), list(self._files))

    def load(self, but: Collection[Capacity] = ()) -> dict[Capacity, CompiledRound]:
        """All executables but those of some capacities, for the default device.

        Raises BundleError: the bundle changed since the first look, or its executables cannot be loaded.
        """
        wanted = [capacity for capacity in self._files if capacity not in but]
        return dict(zip(wanted, self._in_threads(self._load, wanted), strict=True))

    def run(self, capacity: Capacity) -> Run:
        """What runs a capacity: loaded, or compiled if the bundle lacks it. Raises BundleError, as `load` does."""
        if capacity in self._files:
            return self._load(capacity)
        _log.warning("%s has no executable for %d tokens: it is compiled", self._directory, capacity.tokens)
        return self._program.run(capacity)

    def _load(self, capacity: Capacity) -> CompiledRound:
        files = self._files[capacity]
        payloads = _payloads(self._directory, files)
        try:
            return serialised.deserialise(self._program, capacity, payloads)
        except Exception as error:  # what the plugins raise is not documented
            raise BundleError(f"{self._directory / files[0][0]}: cannot be loaded: {in_one_line(error)}") from None

    @staticmethod
    def _in_threads[T](work: Callable[[Capacity], T], capacities: Sequence[Capacity]) -> list[T]:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(work, capacities))


def depends_on(program: Program) -> dict[str, Any]:
    """Everything that the program's executables depend on, but for their capacity, as JSON has it."""
    device = serialised.device()
    found = {
        "architecture": {"kind": type(program.architecture).__name__, **dataclasses.asdict(program.architecture)},
        "labels": int(program.label_ids.size),
        "arguments": len(program.params),
        "first_layers": program.first_layers,
        "conv_taps": program.conv_taps,
        "dtype": program.dtype.name,
        "implementation": program.implementation
        if program.implementation is None or isinstance(program.implementation, str)
        else dict(program.implementation),
        "selective_readout": program.ablation.selective_readout,
        "batch_invariant": program.batch_invariant,
        "checkpoints": None if program.store is None else dataclasses.asdict(program.store),
        "resumed_pages": program.resumed_pages,
        "xla_options": {
            f"from {tokens} tokens": compiler_options(program.ablation, tokens, batch_invariant=program.batch_invariant)
            for tokens in (1, CONCURRENT_TOKENS + 1)
        },
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "matmul_precision": jax.config.jax_default_matmul_precision,
        "versions": _versions(device.platform),
        "platform": device.client.platform_version,
        "device": device.device_kind if device.platform != "cpu" else _processor(),
        "sources": sources_hash(),
    }
    return json.loads(json.dumps(found))


def sources_hash() -> str:
    """SHA-256 of the Python files that an executable is made of: their names and contents."""
    total = hashlib.sha256()
    for part in SOURCES:
        package, _, below = part.partition("/")
        top = Path(str(importlib.resources.files(package)))
        at = top / below if below else top
        for file in sorted(at.rglob("*.py")) if at.is_dir() else [at]:
            name = file.relative_to(top.parent).as_posix().encode()
            total.update(b"%d:%s" % (len(name), name) + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _versions(on: str) -> dict[str, str]:
    found = {}
    for name in ("jax", "jaxlib", *(_CUDA_PACKAGES if on == "gpu" else ())):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The kind of a CPU: its instructions, which an executable for it makes use of, in a hash."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {hashlib.sha256(instructions.encode()).hexdigest()[:12]}"


def _payloads(directory: Path, files: _Files) -> list[bytes]:
    payloads = []
    for name, sha256 in files:
        payloads.append(_read(directory / name))
        if hashlib.sha256(payloads[-1]).hexdigest() != sha256:
            raise BundleError(f"{directory / name}: damaged, its SHA-256 is not that in {MANIFEST}")
    return payloads


def _manifest(directory: Path) -> dict[str, Any]:
    file = directory / MANIFEST
    try:
        manifest = json.loads(_read(file))
        if not isinstance(manifest, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{file}: not the manifest of a bundle: {in_one_line(error)}") from None
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{file}: format {manifest.get('format')!r} cannot be read, only {FORMAT}")
    return manifest


def _files(directory: Path, manifest: dict[str, Any], program: Program) -> dict[Capacity, _Files]:
    """The files of each capacity. Raises BundleError: the bundle is of another program."""
    here, there = (dict(_flat("", tree)) for tree in (depends_on(program), manifest.get("depends_on")))
    differing = [
        f"{name} is {_shown(here.get(name))} here, {_shown(there.get(name))} in the bundle"
        for name in here | there
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise BundleError(f"{directory}: made for something else: " + "; ".join(differing))
    try:
        files = {
            Capacity(**entry["capacity"]): [(str(file["name"]), str(file["sha256"])) for file in entry["files"]]
            for entry in manifest["executables"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{directory / MANIFEST}: not the manifest of a bundle: {in_one_line(error)}") from None
    for name, _ in itertools.chain.from_iterable(files.values()):
        if Path(name).name != name:
            raise BundleError(f"{directory / MANIFEST}: {name!r} is no file of this directory")
    return files


def _flat(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of nested objects by dotted path."""
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, below in tree.items():
        yield from _flat(f"{path}.{name}" if path else name, below)


def _shown(value: Any) -> str:
    text = "none" if value is None else " ".join(json.dumps(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _write(file: Path, content: bytes) -> None:
    # Others may read, and must not write, whatever the process's mask is.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as opened:
        opened.write(content)


_BECAUSE = "a bundle's files may run code"
_read = functools.partial(owned_files.read, error=BundleError, because=_BECAUSE)
_check_owner = functools.partial(owned_files.check_owner, error=BundleError, because=_BECAUSE)
