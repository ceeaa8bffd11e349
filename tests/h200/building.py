"""One program compiled in a process of its own, and what came out."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Kernel(NamedTuple):
    """What ptxas says of one Pallas kernel: registers of a thread, bytes that went to memory for want of more."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int

    @property
    def spilled(self) -> int:
        return max(self.spill_stores, self.spill_loads)


class Build(NamedTuple):
    """A compiled program.

    Attributes:
        kernels: the different Pallas kernels in it.
        launched: what the host starts one after the other, as XLA names it; what is recorded in a command buffer (a
            CUDA graph) is not listed.
        temporary_bytes: memory beside operands and results.
        copied: shape of each array that is copied as a whole, such as "f32[2,32,128,128]".
        reductions: of floating-point numbers, each as what is fused with it (`reductions_of`).
    """

    kernels: list[Kernel]
    launched: list[str]
    temporary_bytes: int
    copied: list[str]
    reductions: list[str]


def build(name: str, options: Mapping[str, bool | int | str] | None = None) -> Build:
    """Compile a program of `programs` with XLA's `options`.

    In a process of its own, for a kernel's registers are printed by native code, and once a process.
    """
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # nothing is printed of what is read from a cache
        "MOSAIC_GPU_DUMP_PTXAS": "1",
    }
    with tempfile.TemporaryDirectory() as directory:
        arguments = [name, directory, json.dumps(dict(options or {}))]
        command = [sys.executable, "-W", "error", "-m", "tests.h200.programs", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, printed
        # The second is written only where there is something to record.
        (thunks,) = Path(directory).glob("*.thunk_sequence.txt")
        (module,) = Path(directory).glob("*after_optimizations.txt")
        reductions = reductions_of(module.read_text())
        recorded = [*Path(directory).glob("*.thunk_sequence_after_thunk_passes.txt"), thunks][0].read_text()
    (temporary_bytes,) = re.findall(r"temporary bytes: (\d+)", printed)
    copied = re.findall(r"^copied: (\S+)$", printed, re.MULTILINE)
    return Build(kernels_of(printed), launched_of(recorded), int(temporary_bytes), copied, reductions)


def kernels_of(printed: str) -> list[Kernel]:
    """The kernels in what ptxas prints."""
    found = re.findall(
        r"Function properties for (\S+)\n"
        r".* bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*Used (\d+) registers",
        printed,
    )
    return [Kernel(name, int(registers), int(stores), int(loads)) for name, stores, loads, registers in found]


def launched_of(thunks: str) -> list[str]:
    """The outermost entries of a dumped sequence of thunks; what they contain is indented."""
    return re.findall(r"^\d+: (\w+)", thunks, re.MULTILINE)


def reductions_of(module: str) -> list[str]:
    """The fusions of an optimised HLO module that sum floating-point numbers, or take their largest; sorted.

    Each as XLA's kind of it and its instructions, with dtypes but without sizes: two that read alike are compiled alike
    for as wide rows.
    """
    bodies = dict(re.findall(r"^%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", module, re.MULTILINE | re.DOTALL))
    found = []
    for line, name in re.findall(r"(fusion\([^\n]*calls=%?([\w.-]+)[^\n]*)", module):
        steps = re.findall(r"= \(?(\w+)\[[^=]*? ([\w-]+)\(", bodies[name])
        if any(step == "reduce" and dtype in ("f32", "bf16") for dtype, step in steps):
            kinds = re.findall(r"kind=(\w+)|\"kind\":\"(\w+)\"", line)
            found.append(" ".join([*map("".join, kinds), *(f"{step}:{dtype}" for dtype, step in steps)]))
    return sorted(found)
