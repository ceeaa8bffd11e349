"""Compiles functions for an NVIDIA H200, or an A100, that need not be there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, NamedSharding, PartitionSpec


class Card(NamedTuple):
    """A card by name, and XLA's description of it (a GpuTargetConfigProto), for which it would ask the card."""

    kind: str
    multiprocessors: int
    description: str


def described(
    kind: str, *, capability: str, architecture: str, multiprocessors: int, lanes: int, shared: int, memory: int
) -> Card:
    """A card of a compute capability such as "8.0": 32-bit lanes and bytes of shared memory of a multiprocessor.

    What no compiler asks for is that of an H200.
    """
    description = f"""
platform_name: "CUDA"
device_description_str: "{kind}"
dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
gpu_device_info {{
  name: "{kind}"
  model_str: "sm_{capability} with {memory}B RAM, {multiprocessors} cores, 1980000KHz clock, 3750000KHz mem clock"
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {capability}"
  cuda_compute_capability {{ {architecture} }}
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.12.0"
  core_count: {multiprocessors} fpus_per_core: {lanes} clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: {shared} shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared - 1024}
  l2_cache_size: 52428800 device_memory_size: {memory} memory_bandwidth: 4800000000000
  device_address_bits: 64 pcie_bandwidth: 34359738368 ecc_enabled: true
}}
"""
    return Card(kind, multiprocessors, description)


H200 = described(
    "NVIDIA H200",
    capability="9.0a",
    architecture="major: 9 feature_extension: ACCELERATED_FEATURES",
    multiprocessors=132,
    lanes=128,
    shared=233472,
    memory=151397597184,
)
A100 = described(
    "NVIDIA A100-SXM4-80GB",
    capability="8.0",
    architecture="major: 8",
    multiprocessors=108,
    lanes=64,
    shared=167936,
    memory=85899345920,
)


def compile_without_card(
    function: Callable[..., Any],
    *operands: Any,
    card: Card = H200,
    donated: Sequence[int] = (),
    options: Mapping[str, bool | int | str] | None = None,
) -> jax.stages.Compiled:
    """`function` of operands like these (pytrees of ShapeDtypeStruct), with XLA's `options`.

    The operands of the numbers `donated` are given away, for results to be written into.

    Raises what tracing, lowering and compiling do; RuntimeError without the plugin for CUDA 13.
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=card.description, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("card",))
    placement = NamedSharding(mesh, PartitionSpec())

    def placed(operand: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(operand.shape, operand.dtype, sharding=placement)

    # Mosaic and the choice of an implementation ask the mesh for its device: no array says where it is.
    device = AbstractDevice(device_kind=card.kind, num_cores=card.multiprocessors, platform="cuda")
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(abstract_device=device)):
        traced = jax.jit(function, donate_argnums=tuple(donated)).trace(*jax.tree.map(placed, operands))
        lowered = traced.lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options=dict(options or {}))
