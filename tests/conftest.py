"""What holds for every test: types checked at run time, no silent broadcasting or promotion, tests on the CPU."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Where Python is told to write no bytecode, each process compiles all the sources of jax, torch and transformers again,
# which takes it longer than most tests; and these start many.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(ROOT / ".pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Before the packages are imported: every annotation becomes a check of shapes and dtypes.
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook(["flide_jax", "pallas_kernels"], "beartype.beartype")

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Small LAPACK solves spend their time waiting for threads when the workers share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Triton decides when it is imported whether kernels run on the host; see `tests.pallas_kernels.triton_interpreter`.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Interpreted kernels wait for each other in callbacks: with a thread for each core they could wait for ever.
os.environ.setdefault("PJRT_NPROC", "16")

# Tiny models compile for longer than they run, and every worker, and each process that it starts, compiles the same.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import gc  # noqa: E402  after the environment is set

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Compiling is slow at times; how long an example takes says nothing about whether it is right.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What is imported stays, and a tracing makes many objects: looking for garbage among all of them takes a while.
gc.freeze()
gc.set_threshold(100_000, 20, 100)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

pytest_plugins = ["tests.oracle.fixtures", "tests.tiny_model"]

# Of those 65,530 that Linux gives a process; at the last, loading an executable ends the process.
MOST_MAPPED = 30_000
MAPPED = Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def room_for_executables():
    """Every executable on a CPU takes some mappings of memory, and a worker compiles thousands."""
    yield
    if MAPPED.is_file() and MAPPED.read_bytes().count(b"\n") > MOST_MAPPED:
        jax.clear_caches()
        gc.collect()
