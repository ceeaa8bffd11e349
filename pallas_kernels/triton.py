"""What the Triton kernels share: whether they can run here, and how they are called."""

import importlib.metadata
from typing import Any

# The version of the assembly language (PTX) that triton writes. That of CUDA 12.8, the first that knows all cards from
# A100 to Blackwell; left to itself triton writes the newest it knows, which an older assembler does not read.
PTX_VERSION = 87
OLDEST_TRITON = (3, 7)  # jax-triton 0.4 imports with an older one and fails when it compiles


def check() -> None:
    """Raises NotImplementedError: a package is missing, or too old."""
    for package in ("jax-triton", "triton"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as missing:
            raise NotImplementedError(
                f"the triton kernels need the package {package}: install flide-jax[triton]"
            ) from missing
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        raise NotImplementedError(f"the triton kernels need triton {oldest} or newer, this is {version}")


def call(
    kernel: Any, *operands: Any, grid: tuple[int, ...], warps: int, stages: int, out_type: Any = (), **others: Any
) -> Any:
    """Launches `kernel` on operands (arrays, and refs that it writes); `others` are its scalars and constants by name.

    Returns the outputs, arrays like `out_type`, which the kernel takes as the parameters that are not given.
    """
    import jax_triton

    return jax_triton.triton_call(
        *operands,
        kernel=kernel,
        out_type=out_type,
        grid=grid,
        num_warps=warps,
        num_stages=stages,
        backend_options={"ptx_version": PTX_VERSION},
        **others,
    )
