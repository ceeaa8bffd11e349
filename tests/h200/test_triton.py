"""The Triton kernels as an A100 and an H200 would get them, compiled and assembled without either."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.h200.building import ROOT, Kernel, kernels_of, launched_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CUDA's compiler is installed on Linux only")

ARCHITECTURES = {"A100": "sm_80", "H200": "sm_90a"}
# Of a block, on the cards with the least: RTX 30 to 50.
SHARED_BYTES = 99 * 1024


class Built(NamedTuple):
    """What a program became: `shared` bytes of its kernels by name, and what the host launches."""

    kernels: list[Kernel]
    shared: dict[str, int]
    launched: list[str]


def build(name: str, card: str, directory: Path) -> Built:
    """Compile a program of `triton_programs` in a process of its own, where Triton compiles; here it interprets."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_TRITON_DUMP_DIR": str(directory / "triton"),
        "TRITON_INTERPRET": "0",
    }
    command = [sys.executable, "-W", "error", "-m", "tests.h200.triton_programs", name, card, str(directory)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = "".join(assembled(file, ARCHITECTURES[card]) for file in directory.rglob("*.ptx"))
    shared = {}
    for file in directory.rglob("*.compile_info"):
        name, found = re.findall(r"(\w+): shared_mem_bytes: (\d+)", file.read_text())[0]
        shared[name] = max(int(found), shared.get(name, 0))
    (thunks,) = directory.glob("*.thunk_sequence_after_thunk_passes.txt")
    return Built(kernels_of(printed), shared, launched_of(thunks.read_text()))


def assembled(ptx: Path, architecture: str) -> str:
    """What the assembler, which compiles for this card alone, prints of a file."""
    import nvidia  # a package of many parts, which says where they are

    (assembler,) = (file for path in nvidia.__path__ for file in Path(path).glob("cu13/bin/ptxas"))
    command = [assembler, "-v", f"-arch={architecture}", ptx, "-o", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# Bytes that go to memory for want of registers. The solve holds more blocks of its inverse than 255 registers take.
SPILLED = {"attend": 64, "scan": 0, "solve": 256}


KERNELS = {
    "fork_attention": {"attend": 5},  # three head sizes, cached keys, and split keys
    "segmented_gdn": {"solve": 1, "scan": 2},  # with a pool and without
    "0.8B": {"attend": 2, "solve": 1, "scan": 1},  # two layers of each; the last attention has the read rows alone
}


@pytest.mark.parametrize(
    ("name", "card"), [*((name, "A100") for name in KERNELS), ("fork_attention", "H200"), ("segmented_gdn", "H200")]
)
def test_a_program_fits_the_card_and_its_graph(name, card, tmp_path):
    built = build(name, card, tmp_path)
    names = [kernel.name for kernel in built.kernels]
    assert {name: names.count(name) for name in names} == KERNELS[name]
    assert max(built.shared.values()) <= SHARED_BYTES, built.shared
    for kernel in built.kernels:
        assert kernel.spilled <= SPILLED[kernel.name], kernel
    assert built.launched == ["kCommandBuffer"]
