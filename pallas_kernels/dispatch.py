"""Choice of an implementation by name, or of the best one that can run.

Every op keeps a table of functions with one signature. A name picks that function, and it fails loudly where it
cannot run; `None` tries the names of `PREFERENCE` in order. A function says "not me" only by NotImplementedError.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

# Best first. Never the reference: it is written to be read, and would hide a missing kernel behind a slow answer.
PREFERENCE = ("pallas", "triton", "xla")
NAMES = (*PREFERENCE, "reference")
KERNELS = ("pallas", "triton")
OPS = ("fork_attention", "segmented_conv", "segmented_gdn", "gated_norm", "rms_norm", "rotary_norm", "matmul")

# One name for every op, or a name for some of them by op; None, or an op that is not named: the best that can run.
type Implementation = str | Mapping[str, str] | None

# The Pallas kernels are written for the matrix unit of Hopper (wgmma).
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
# The Triton kernels run on NVIDIA cards from this compute capability on: older ones have no bfloat16.
TRITON_CAPABILITY = (8, 0)


def check(implementation: Implementation) -> None:
    """Raises ValueError: a name or an op that there is not."""
    chosen = implementation if isinstance(implementation, Mapping) else {OPS[0]: implementation}
    for op, name in chosen.items():
        if op not in OPS:
            raise ValueError(f"implementation names the op {op!r}; there are {', '.join(OPS)}")
        if name is not None and name not in NAMES:
            raise ValueError(f"implementation must be one of {', '.join(NAMES)}, got {name!r}")


def run(
    op: str, table: Mapping[str, Callable[..., Any]], implementation: Implementation, *args: Any, **options: Any
) -> Any:
    """Call the implementation of `op` that is named, or the first of `PREFERENCE` that accepts the arguments.

    Raises ValueError for a name that the op does not have, whatever the named implementation raises, and
    NotImplementedError with the reason of each when none can run.
    """
    name = implementation.get(op) if isinstance(implementation, Mapping) else implementation
    if name is not None:
        if name not in table:
            raise ValueError(f"{op}: implementation must be one of {', '.join(table)}, got {name!r}")
        return _call(name, table, *args, **options)
    refusals = []
    for name in filter(table.__contains__, PREFERENCE):
        try:
            return _call(name, table, *args, **options)
        except NotImplementedError as refusal:
            refusals.append(refusal)
    raise NotImplementedError(f"{op}: no implementation can run: " + "; ".join(map(str, refusals)))


def check_batch_invariant(op: str, name: str, *, on_cpu: bool = False) -> None:
    """For an implementation that cannot promise bits that depend on a row's own text alone.

    Raises NotImplementedError; with `on_cpu` only elsewhere than on a CPU, where the implementation promises them.
    """
    if not on_cpu:
        raise NotImplementedError(f"{op} by {name} has no batch-invariant form")
    if _device().platform != "cpu":
        raise NotImplementedError(f"{op} by {name} has a batch-invariant form for a CPU only, not for {device_kind()}")


def _call(name: str, table: Mapping[str, Callable[..., Any]], *args: Any, **options: Any) -> Any:
    kind = device_kind()
    if name == "pallas" and not is_hopper():
        raise NotImplementedError(f"the pallas kernels are for {', '.join(HOPPER)}, not for {kind}")
    if name == "triton" and not _runs_triton(_device()):
        lowest = ".".join(map(str, TRITON_CAPABILITY))
        raise NotImplementedError(f"the triton kernels are for NVIDIA cards of capability {lowest} on, not for {kind}")
    # A kernel is one op where ops run one by one, too: JAX would run its loops as Python's.
    with jax.disable_jit(jax.config.jax_disable_jit and name not in KERNELS):
        return table[name](*args, **options)


def device_kind() -> str:
    """What is compiled for: the device of an abstract mesh where one is set, else the first device."""
    return _device().device_kind


def is_hopper() -> bool:
    """Whether the Pallas kernels run on what is compiled for."""
    return any(model in device_kind() for model in HOPPER)


def _device() -> Any:
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def _runs_triton(device: Any) -> bool:
    if device.platform not in ("cuda", "gpu"):
        return False
    # The device of an abstract mesh has a name alone, which jax-triton knows or refuses; AMD's capability is no number.
    capability = getattr(device, "compute_capability", ".".join(map(str, TRITON_CAPABILITY)))
    found = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return found is not None and tuple(map(int, found.groups())) >= TRITON_CAPABILITY
