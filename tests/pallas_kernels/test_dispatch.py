"""Which implementation runs on which card, and what is said where none can."""

import importlib.metadata

import jax
import pytest
from jax.sharding import AbstractDevice

from pallas_kernels import dispatch, triton


def refuse():
    raise NotImplementedError("not me")


TABLE = {name: lambda name=name: name for name in dispatch.NAMES}
WITHOUT_PALLAS = TABLE | {"pallas": refuse}


def on(kind: str, platform: str, implementation: str | None = None, table=TABLE):
    """What runs where programs are compiled for such a device."""
    device = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    mesh = jax.sharding.AbstractMesh((1,), ("card",)).update(abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        return dispatch.run("fork_attention", table, implementation)


@pytest.mark.parametrize(
    ("kind", "platform", "chosen"),
    [
        ("NVIDIA H200", "cuda", "pallas"),
        ("NVIDIA A100-SXM4-80GB", "cuda", "triton"),
        ("NVIDIA GeForce RTX 4090", "cuda", "triton"),
        ("AMD Instinct MI300X", "rocm", "xla"),
        ("cpu", "cpu", "xla"),
    ],
)
def test_the_best_that_can_run_is_chosen(kind, platform, chosen):
    assert on(kind, platform) == chosen


@pytest.mark.parametrize(("kind", "platform", "op_by_op"), [("NVIDIA H200", "cuda", False), ("cpu", "cpu", True)])
def test_a_kernel_is_one_op_where_ops_run_one_by_one(kind, platform, op_by_op):
    table = {name: lambda: jax.config.jax_disable_jit for name in dispatch.NAMES}
    with jax.disable_jit():
        assert on(kind, platform, table=table) == op_by_op


def test_triton_comes_second_on_hopper_and_can_be_named_there():
    assert on("NVIDIA H200", "cuda", table=WITHOUT_PALLAS) == "triton"
    assert on("NVIDIA H200", "cuda", "triton") == "triton"


def test_a_named_implementation_that_cannot_run_fails():
    with pytest.raises(NotImplementedError, match="the triton kernels are for NVIDIA cards of capability 8.0 on, not"):
        dispatch.run("fork_attention", TABLE, "triton")
    with pytest.raises(NotImplementedError, match="the pallas kernels are for H100, .*, not for NVIDIA A100"):
        on("NVIDIA A100-SXM4-80GB", "cuda", "pallas")
    with pytest.raises(ValueError, match="implementation must be one of pallas, triton, xla, reference, got 'cuda'"):
        dispatch.run("fork_attention", TABLE, "cuda")


def test_where_none_can_run_the_reason_of_each_is_given_in_one_line():
    with pytest.raises(NotImplementedError) as caught:
        on("NVIDIA H200", "cuda", table=dict.fromkeys(("pallas", "triton", "xla"), refuse))
    assert str(caught.value) == "fork_attention: no implementation can run: not me; not me; not me"


@pytest.mark.parametrize(
    ("kind", "capability", "runs"),
    [
        ("NVIDIA A100-SXM4-80GB", "8.0", True),
        ("NVIDIA GeForce RTX 5090", "12.0", True),
        ("Tesla T4", "7.5", False),
        ("AMD Instinct MI300X", "gfx942", False),
    ],
)
def test_a_card_that_is_there_is_asked_for_its_capability(monkeypatch, kind, capability, runs):
    class Card:
        device_kind, platform, compute_capability = kind, "gpu", capability

    monkeypatch.setattr(jax, "devices", lambda: [Card])
    assert dispatch.run("fork_attention", TABLE, None) == ("triton" if runs else "xla")


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch):
    versions = {"jax-triton": "0.4.1", "triton": "3.7.1"}

    def version(package):
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    triton.check()
    versions["triton"] = "3.6.0"
    with pytest.raises(NotImplementedError, match="need triton 3.7 or newer, this is 3.6.0"):
        triton.check()
    del versions["jax-triton"]
    with pytest.raises(NotImplementedError, match=r"need the package jax-triton: install flide-jax\[triton\]"):
        triton.check()
