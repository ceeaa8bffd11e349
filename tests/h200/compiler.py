"""Compiles functions for an NVIDIA H200 that need not be there."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, NamedSharding, PartitionSpec

KIND = "NVIDIA H200"
MULTIPROCESSORS = 132

# XLA's own description of the card (a GpuTargetConfigProto), for which it would ask the card.
CARD = f"""
platform_name: "CUDA"
device_description_str: "{KIND}"
dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
gpu_device_info {{
  name: "{KIND}"
  model_str: "sm_9.0a with 151397597184B RAM, 132 cores, 1980000KHz clock, 3750000KHz mem clock, 52428800B L2$"
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0a"
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.12.0"
  core_count: {MULTIPROCESSORS} fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: 233472 shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  l2_cache_size: 52428800 device_memory_size: 151397597184 memory_bandwidth: 4800000000000
  device_address_bits: 64 pcie_bandwidth: 34359738368 ecc_enabled: true
}}
"""


def compile_for_h200(
    function: Callable[..., Any], *operands: Any, options: Mapping[str, bool | int | str] | None = None
) -> jax.stages.Compiled:
    """`function` of operands like these (pytrees of ShapeDtypeStruct), with XLA's `options`.

    Raises what tracing, lowering and compiling do; RuntimeError without the plugin for CUDA 13.
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=CARD, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("card",))
    placement = NamedSharding(mesh, PartitionSpec())

    def placed(operand: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(operand.shape, operand.dtype, sharding=placement)

    # Mosaic and the choice of an implementation ask the mesh for its device: no array says where it is.
    device = AbstractDevice(device_kind=KIND, num_cores=MULTIPROCESSORS, platform="cuda")
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(abstract_device=device)):
        traced = jax.jit(function).trace(*jax.tree.map(placed, operands))
        lowered = traced.lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options=dict(options or {}))
