"""Kernels and forwards as an H200 would get them, compiled without one."""

import sys

import pytest

from flide_jax.engine.program import BATCH_INVARIANT_OPTIONS, GPU_COMPILER_OPTIONS
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.gated_norm import pallas as gated_norm
from pallas_kernels.mosaic import MULTIPROCESSORS
from pallas_kernels.segmented_conv import pallas as convolution
from tests.h200.building import Build, Kernel, build, kernels_of, launched_of, reductions_of
from tests.h200.programs import POOL_PAGES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CUDA's compiler is installed on Linux only")

MIB = 2**20


# Bytes that each kernel of some ops may store or load by spills, largest first. No loop that multiplies, over the key
# blocks of a unit or the chunks of a run, has any (as nvdisasm shows the code of ptxas 13.0, and of 13.5). Fork attention
# of head size 256 fills the registers with its sums: the warpgroups that compute leave a few values in memory, which
# they load once a unit, before and behind these loops. With cached keys so does the one that copies, with its 40
# registers: 8 bytes beside each strip of keys or values of a masked block. The scan of branches, where a slot may stand
# in a pool, loads one value behind its loop.
OPS = {
    "fork_attention": (64, 64, 0, 0),
    "fork_attention resumed": (64, 0),
    "segmented_conv, norms": (0,) * 7,
    "segmented_gdn": (0, 0, 0),  # solve, and a scan for each of two levels
    "segmented_gdn, pool": (4, 4, 4),  # the scan of both parts of a state is one
    "matmul": (0,) * 6,
}


# Registers of a thread with which all programs of a kernel are on the card at once; a few more, and the last of them
# would take as long again. A multiprocessor has 65,536.
MOST_REGISTERS = {
    f"{op.__name__}_mosaic_gpu_kernel": 65_536 * MULTIPROCESSORS // (128 * programs)
    for op, programs in (
        (convolution.segmented_conv, convolution.PROGRAMS),
        (gated_norm.gated_norm, gated_norm.PROGRAMS),
    )
}


POOL = "segmented_gdn, pool"


def check_registers(name: str, built: Build) -> None:
    kernels = sorted(built.kernels, key=lambda kernel: -kernel.spilled)
    for kernel, bound in zip(kernels, OPS[name], strict=True):
        assert kernel.spilled <= bound, kernel
        assert kernel.registers <= MOST_REGISTERS.get(kernel.name, 255), kernel


@pytest.mark.parametrize("name", [name for name in OPS if name != POOL])
def test_values_stay_in_registers(name):
    check_registers(name, build(name))


def test_a_pool_that_is_donated_is_not_copied_and_values_stay_in_registers():
    """Not once in three layers; one that the caller keeps is copied in each."""
    pool, built = "f32[2,32,128,128]", build(POOL)
    check_registers(POOL, built)
    assert pool not in built.copied
    assert build("segmented_gdn, pool not donated").copied.count(pool) == 3


# Bytes of all temporaries together; one more copy of what a layer's recurrence reads as values would exceed them.
TEMPORARIES = 136 * MIB


def test_a_forward_is_one_command_buffer():
    """As the engine compiles it: the host starts one thing a round, and every op is its Pallas kernel."""
    built = build("0.8B", GPU_COMPILER_OPTIONS)
    assert built.launched == ["kCommandBuffer"]
    assert not built.copied  # no weight, and nothing else as a whole
    assert built.temporary_bytes <= TEMPORARIES
    # Convolution, solve and two scans, norm; queries, keys and attention at every row, and in the last layer, whose two
    # products begin elsewhere; the products of both mixers' inputs, of the last layer's two, of output, gate_up and
    # down, and these three at the read rows.
    assert len(built.kernels) == 1 + 3 + 1 + 2 * (2 + 1) + (2 + 2 + 3 + 3)
    assert max(kernel.spilled for kernel in built.kernels) <= max(map(max, OPS.values()))


def test_what_sums_over_a_row_is_the_same_in_a_batch_invariant_forward_of_any_size():
    """XLA chooses by the shapes what it fuses with a sum and how threads share a row."""
    options = GPU_COMPILER_OPTIONS | BATCH_INVARIANT_OPTIONS["gpu"]
    short, long = (build(f"0.8B batch-invariant {tokens}", options) for tokens in (64, 2_688))
    assert short.reductions == long.reductions
    assert len(short.reductions) == 2  # of the readout: its norm and its sum; all others are in kernels
    for built in (short, long):
        assert built.launched == ["kCommandBuffer"]
        assert not [one for one in built.reductions if "triton" in one]


def test_a_growing_round_writes_its_pool_in_place():
    """One command buffer like a plain one, whose only pages and slots are those that the caller gave away."""
    built = build("0.8B growing", GPU_COMPILER_OPTIONS)
    assert built.launched == ["kCommandBuffer"]
    assert not built.copied
    assert built.temporary_bytes <= TEMPORARIES < POOL_PAGES * PAGE_ROWS * 2 * 256 * 2


def test_without_command_buffers_the_host_starts_every_kernel():
    """The option of the ablation is one that XLA knows, and does what it is for."""
    built = build("segmented_gdn", GPU_COMPILER_OPTIONS | {"xla_gpu_enable_command_buffer": ""})
    assert "kCommandBuffer" not in built.launched and len(built.launched) > len(built.kernels)


def test_what_ptxas_prints_is_read():
    """The tests above can fail: text of ptxas 13.5, with and without spills."""
    printed = """\
ptxas warning : Registers are spilled to local memory in function 'a', 28 bytes spill stores, 56 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    32 bytes stack frame, 28 bytes spill stores, 56 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 32 bytes cumulative stack size, 1 bytes smem
ptxas info    : Compile time = 462.063 ms

ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 203 registers, used 2 barriers, 1 bytes smem
ptxas info    : Compile time = 71.194 ms
"""
    assert kernels_of(printed) == [
        Kernel("a", registers=168, spill_stores=28, spill_loads=56),
        Kernel("b", registers=203, spill_stores=0, spill_loads=0),
    ]


def test_what_is_launched_outside_a_command_buffer_is_seen():
    thunks = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel       [source        | next=002 (1)] fusion_1 grid: [21, 1, 1]
    002: kCublasLtMatmul     [prev=001 (1)  | sink        ] kCublasLtMatmul
003: kCopy               [prev=002 (8)  | sink        ] kCopy
"""
    assert launched_of(thunks) == ["kCommandBuffer", "kCopy"]


def test_fusions_that_sum_are_seen():
    module = """\
%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%fused_norm (rows: bf16[64,8]) -> f32[64] {
  %rows = bf16[64,8]{1,0} parameter(0)
  %wide = f32[64,8]{1,0} convert(%rows)
  ROOT %sums = f32[64]{0} reduce(%wide, %zero), dimensions={1}, to_apply=%add
}

%fused_count (rows: s32[64,8]) -> s32[64] {
  ROOT %sums = s32[64]{0} reduce(%rows, %zero), dimensions={1}, to_apply=%add_s32
}

ENTRY %main (rows: bf16[64,8]) -> f32[64] {
  %f = f32[64]{0} fusion(%rows), kind=kCustom, calls=%fused_norm, backend_config={"kind":"__triton"}
  %g = s32[64]{0} fusion(%n), kind=kInput, calls=%fused_count
}
"""
    assert reductions_of(module) == ["kCustom __triton parameter:bf16 convert:f32 reduce:f32"]
