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


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    """(file, absolute name of the imported module) of every import statement, those inside functions included."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} is empty"
    for file in files:
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


ONLY = {
    "pallas_kernels": {"jax", "numpy", "jaxtyping", "pallas_kernels"},
    "flide_jax/reference": {"flide_jax.reference", "numpy", "jaxtyping", "ml_dtypes", "safetensors"},
}
NEVER = {
    "pallas_kernels": {"flide_jax", "experiments", "notebooks", "tests"},
    "flide_jax": {"experiments", "notebooks", "tests", "torch"},
    "flide_jax/layout": {"flide_jax.models", "flide_jax.engine", "flide_jax.reference", "flide_jax.cli"},
    "flide_jax/prompts": {"flide_jax.layout", "flide_jax.models", "flide_jax.engine", "flide_jax.cli", "jax"},
    "flide_jax/models": {"flide_jax.engine", "flide_jax.prompts", "flide_jax.reference", "flide_jax.cli"},
    "flide_jax/engine": {"flide_jax.cli", "flide_jax.serving", "flide_jax.reference"},
    "experiments": {"tests"},
}


@pytest.mark.parametrize("folder", ONLY)
def test_a_package_imports_only_these(folder):
    wrong = [f"{file}: {name}" for file, name in imports(folder) if not is_within(name, ONLY[folder] | STANDARD)]
    assert not wrong


@pytest.mark.parametrize("folder", NEVER)
def test_a_package_never_imports_these(folder):
    wrong = [f"{file}: {name}" for file, name in imports(folder) if is_within(name, NEVER[folder])]
    assert not wrong


def test_every_form_of_import_is_seen(tmp_path, monkeypatch):
    """The tests above can fail, for imports inside functions and relative ones too."""
    monkeypatch.setitem(imports.__globals__, "ROOT", tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    source = "import x.y\nfrom flide_jax import engine\ndef f():\n    from .. import c\n    from .d import e\n"
    (tmp_path / "a" / "b" / "file.py").write_text(source)
    found = {name for _, name in imports("a")}
    assert found == {"x.y", "flide_jax", "flide_jax.engine", "a", "a.c", "a.b.d", "a.b.d.e"}
    assert is_within("a.b.d", {"a.b"}) and not is_within("a.bc", {"a.b"})


@pytest.mark.parametrize("folder", ["pallas_kernels", "flide_jax"])
def test_a_package_sets_no_global_switch(folder):
    for file in sorted((ROOT / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        assert "config.update(" not in text and "os.environ[" not in text, file


def test_importing_does_no_device_work():
    """With a platform that does not exist any device work is an error, as the last line shows."""
    program = """
import importlib, pkgutil
import flide_jax, pallas_kernels
for package in (flide_jax, pallas_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
import sys, jax
assert "flide_jax.engine.engine" in sys.modules
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
