"""Imports go one way, and importing computes nothing."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STANDARD = set(sys.stdlib_module_names)


def sources(part: str) -> list[Path]:
    """The Python files of a folder, or the one file."""
    files = sorted((ROOT / part).rglob("*.py")) if (ROOT / part).is_dir() else [ROOT / part]
    assert files, f"{part} is empty"
    return files


def imports(part: str) -> Iterator[tuple[Path, str]]:
    """(file, absolute name of the imported module) of every import statement, those inside functions included."""
    for file in sources(part):
        package = file.relative_to(ROOT).parent.parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
                source = ".".join(part for part in (base, node.module or "") if part)
                yield file, source
                yield from ((file, f"{source}.{alias.name}") for alias in node.names)


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


TRITON = {"triton", "jax_triton"}  # may be missing
ONLY = {
    "pallas_kernels": {"jax", "jaxlib", "numpy", "jaxtyping", "pallas_kernels", *TRITON},
    "flide_jax/request.py": {"jaxtyping", "numpy"},
    "flide_jax/reference": {"flide_jax.reference", "numpy", "jaxtyping", "ml_dtypes", "safetensors"},
}
# What a user meets; what computes knows none of it.
OUTER = {
    "flide_jax.cli",
    "flide_jax.drawing",
    "flide_jax.serving",
    "flide_jax.verification",
    "flide_jax.same_bits",
    "flide_jax.first_difference",
    "flide_jax.invariances",
    "flide_jax.inspection",
    "flide_jax.wrong_forks",
}
NEVER = {
    "pallas_kernels": {"flide_jax", "experiments", "notebooks", "tests"},
    "flide_jax": {"experiments", "notebooks", "tests", "torch"},
    "flide_jax/prompts": {"flide_jax.layout", "flide_jax.models", "flide_jax.engine", "flide_jax.reference", "jax"}
    | OUTER,
    "flide_jax/checkpoints": {"flide_jax.prompts", "flide_jax.layout", "flide_jax.models", "flide_jax.engine", "jax"}
    | {"flide_jax.reference"}
    | OUTER,
    "flide_jax/layout": {"flide_jax.checkpoints", "flide_jax.models", "flide_jax.engine"}
    | {"flide_jax.reference"}
    | OUTER,
    "flide_jax/models": {"flide_jax.engine", "flide_jax.prompts", "flide_jax.reference"} | OUTER,
    "flide_jax/engine": {"flide_jax.reference"} | OUTER,
    "flide_jax/verification.py": {"flide_jax.models", "flide_jax.reference"} | OUTER - {"flide_jax.verification"},
    "flide_jax/invariances.py": {"flide_jax.reference"} | OUTER - {"flide_jax.verification", "flide_jax.invariances"},
    # Drawing is given what it draws and computes none of it: of the engine it may know what a comparison looks like.
    "flide_jax/drawing": {
        "flide_jax.engine",
        "flide_jax.models",
        "flide_jax.reference",
        "flide_jax.cli",
        "flide_jax.serving",
        "jax",
    },
    "flide_jax/serving": {"flide_jax.models", "flide_jax.reference", "flide_jax.cli", "flide_jax.drawing"},
    # The command line reads requests before it imports what answers them.
    "flide_jax/serving/protocol.py": {"flide_jax.engine", "flide_jax.layout", "flide_jax.prompts", "jax"},
    "experiments": {"tests"},
}


@pytest.mark.parametrize("part", ONLY)
def test_a_part_imports_only_these(part):
    wrong = [f"{file}: {name}" for file, name in imports(part) if not is_within(name, ONLY[part] | STANDARD)]
    assert not wrong


def test_triton_is_imported_by_its_own_files_alone():
    files = {file.name for file, name in imports("pallas_kernels") if is_within(name, TRITON)}
    assert files == {"triton.py", "triton_kernels.py"}


@pytest.mark.parametrize("part", NEVER)
def test_a_part_never_imports_these(part):
    wrong = [f"{file}: {name}" for file, name in imports(part) if is_within(name, NEVER[part])]
    assert not wrong


def test_nothing_imports_the_command_line():
    own = {ROOT / "flide_jax" / "__main__.py", *sources("flide_jax/cli")}
    found = [str(file) for file, name in imports("flide_jax") if is_within(name, {"flide_jax.cli"}) and file not in own]
    assert not found


def test_every_form_of_import_is_seen(tmp_path, monkeypatch):
    """The tests above can fail, for imports inside functions and relative ones too."""
    monkeypatch.setitem(imports.__globals__, "ROOT", tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    source = "import x.y\nfrom flide_jax import engine\ndef f():\n    from .. import c\n    from .d import e\n"
    (tmp_path / "a" / "b" / "file.py").write_text(source)
    found = {name for _, name in imports("a")}
    assert found == {"x.y", "flide_jax", "flide_jax.engine", "a", "a.c", "a.b.d", "a.b.d.e"}
    assert is_within("a.b.d", {"a.b"}) and not is_within("a.bc", {"a.b"})


ENVIRONMENT = ("os.environ", "environ", "os.environb", "environb")
CONFIG = ("jax.config", "config")
CHANGES = {
    *(f"{name}.{method}" for name in ENVIRONMENT for method in ("setdefault", "update", "pop", "popitem", "clear")),
    *(f"{name}.update" for name in CONFIG),
    *("os.putenv", "os.unsetenv", "putenv", "unsetenv"),
}


def switches(source: str) -> Iterator[str]:
    """The statements and calls that change the environment or JAX's configuration."""
    for node in ast.walk(ast.parse(source)):
        changed = False
        match node:
            case ast.Call(func=function):
                changed = ast.unparse(function) in CHANGES
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                changed = ast.unparse(value) in ENVIRONMENT
            case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
                changed = ast.unparse(value) in CONFIG
            case ast.AugAssign(target=target):
                changed = ast.unparse(target) in ENVIRONMENT
        if changed:
            yield ast.unparse(node)


# The command owns its process, and speaks for itself alone: transformers is not to advise its user to install torch.
SWITCHES = {
    "flide_jax/cli/run.py": [
        "os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')",
        "os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')",
    ],
    # Of the processes that compile, and jax's own cache on disk, which can be switched in no other way, meanwhile off.
    "flide_jax/engine/serialised.py": [
        "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE']",
        "jax.config.update('jax_platforms', platforms)",
        "jax.config.update('jax_enable_compilation_cache', False)",
        "jax.config.update('jax_enable_compilation_cache', before)",
    ],
}


@pytest.mark.parametrize("package", ["pallas_kernels", "flide_jax"])
def test_a_package_sets_no_global_switch(package):
    for file in sources(package):
        allowed = SWITCHES.get(file.relative_to(ROOT).as_posix(), [])
        assert list(switches(file.read_text(encoding="utf-8"))) == allowed, file


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['A'] = '1'",
        "del os.environ['A']",
        "os.environ |= {}",
        "os.environ.setdefault('A', '1')",
        "environ.update(A='1')",
        "os.putenv('A', '1')",
        "jax.config.update('jax_enable_x64', True)",
        "config.update('jax_enable_x64', True)",
        "jax.config.jax_enable_x64 = True",
    ],
)
def test_every_form_of_switch_is_seen(change):
    assert len(list(switches(f"def f():\n    {change}\n"))) == 1


def test_reading_is_no_switch():
    assert not list(switches("a = os.environ['A'], os.environ.get('B'), 'C' in os.environ, jax.config.jax_enable_x64"))


def test_importing_does_no_device_work():
    """With a platform that does not exist any device work is an error, as the last line shows."""
    program = """
import importlib, pkgutil
import flide_jax, pallas_kernels
for package in (flide_jax, pallas_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(("__main__", "triton_kernels")):  # of packages that may be missing
            importlib.import_module(module.name)
import sys, jax
assert "flide_jax.engine.engine" in sys.modules and "triton" not in sys.modules
try:
    jax.numpy.zeros(1)
except RuntimeError as error:
    print("needs a device:", "no_such_platform" in str(error))
"""
    environment = os.environ | {"JAX_PLATFORMS": "no_such_platform"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "needs a device: True\n"), done.stderr


def test_the_command_does_not_wait_for_torch():
    """Where it is installed, transformers would import it."""
    program = (
        "import sys; from flide_jax.__main__ import command; command();"
        "print('transformers' in sys.modules, sys.modules['torch'])"
    )
    example = ROOT / "flide_jax" / "demo" / "examples" / "support.json"
    command = [sys.executable, "-c", program, "inspect", str(example), "--demo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True None"
