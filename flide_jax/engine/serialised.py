"""Executables as bytes, compiled in as many processes as pay.

Much of a capacity's time goes into tracing and lowering, which hold Python's lock: threads cannot share it.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from flide_jax.engine.parts import CompiledRound
from flide_jax.engine.program import Program, precision
from flide_jax.layout import Capacity
from flide_jax.models.checkpoint_files import in_one_line


class SerialisationError(ValueError):
    """An executable that its plugin cannot write; the message says why, in one line."""


def default_processes() -> int:
    """One for each processor beside a GPU. On a CPU, one: a capacity takes seconds, and XLA uses all processors."""
    return (os.cpu_count() or 1) if device().platform == "gpu" else 1


def compile_all(
    program: Program, capacities: Sequence[Capacity], *, processes: int
) -> Iterator[tuple[Capacity, list[bytes]]]:
    """The executables of many capacities in the order in which they are ready; in this process if there is to be one.

    Each process holds a context of its own on the device.

    Raises SerialisationError: the executables cannot be serialised here.
    """
    if processes == 1:
        with _without_jax_cache():
            for capacity, compiled in program.compile_all(capacities):
                yield capacity, _payloads(compiled)
        return
    pool = ProcessPoolExecutor(
        min(processes, len(capacities)),
        multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(jax.config.jax_platforms,),
    )
    try:
        fields = dataclasses.replace(program)  # without what it has cached, which cannot be sent
        # The largest first, for they may take longest.
        running = {
            pool.submit(_compile, fields, capacity): capacity
            for capacity in sorted(capacities, key=lambda capacity: -capacity.tokens)
        }
        for done in as_completed(list(running)):
            yield running.pop(done), done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def executables(program: Program, capacities: Sequence[Capacity], *, processes: int) -> dict[Capacity, CompiledRound]:
    """The executables of many capacities for the default device, compiled in so many processes."""
    if processes == 1:
        return dict(program.compile_all(capacities))
    payloads = dict(compile_all(program, capacities, processes=processes))
    with ThreadPoolExecutor(processes) as pool:
        loaded = pool.map(lambda capacity: deserialise(program, capacity, payloads[capacity]), capacities)
        return dict(zip(capacities, loaded, strict=True))


def deserialise(program: Program, capacity: Capacity, payloads: Sequence[bytes]) -> CompiledRound:
    """The executables of a capacity for the default device. Raises whatever jax and its plugins raise."""
    _start_lapack()
    with precision(program.dtype):
        loaded = [
            serialize_executable.deserialize_and_load(
                payload, jax.tree.structure((part.arguments, {})), part.results, execution_devices=[device()]
            )
            for part, payload in zip(program.parts(capacity), payloads, strict=True)
        ]
    return program.chained(loaded)


def device() -> jax.Device:
    """Where a program without a device of its own runs."""
    chosen = jax.config.jax_default_device
    return chosen if isinstance(chosen, jax.Device) else jax.devices(chosen)[0]


def _start(platforms: str | None) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # before the device is asked for anything
    jax.config.update("jax_platforms", platforms)


def _compile(program: Program, capacity: Capacity) -> list[bytes]:
    with _without_jax_cache():
        return _payloads(program.compile(capacity))


def _payloads(compiled: CompiledRound) -> list[bytes]:
    try:
        return [serialize_executable.serialize(part)[0] for part in compiled.parts]
    except Exception as error:  # what the plugins raise is not documented
        raise SerialisationError(in_one_line(error)) from None


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    """What jax loads from its own cache on disk lacks functions once it is serialised again, at least on a CPU.

    The cache has no switch but that of the whole process.
    """
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it looks at the switch when it is first used, and then no more
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@functools.cache
def _start_lapack() -> None:
    """On a CPU a triangular solve calls LAPACK, which jax binds when it lowers one: unbound it would be a crash."""
    if device().platform == "cpu":
        system = jax.ShapeDtypeStruct((2, 2), "float32")
        jax.jit(jax.scipy.linalg.solve_triangular).lower(system, system)
