"""Workers share the card, and what the kernels are compared with need not be fast."""

import os

import pytest

from pallas_kernels.dispatch import device_kind, is_hopper

if "cuda" in os.environ.get("JAX_PLATFORMS", ""):  # pytest reads this file for the other tests, too
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0")


@pytest.fixture
def hopper():
    if not is_hopper():
        pytest.fail(f"these tests were asked for, and this is {device_kind()}")
