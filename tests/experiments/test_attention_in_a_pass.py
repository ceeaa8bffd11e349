"""Attention between products, on a host: a stand-in for nvidia-smi, and no times."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import attention_in_a_pass
from pallas_kernels.bench import Launches
from pallas_kernels.fork_attention import cases
from pallas_kernels.trees import Request

CASE = cases.Case([Request(20, [5, 9])], heads=2, key_heads=1, head_dim=8)
SIZE = dataclasses.replace(attention_in_a_pass.SIZE, width=16, feed_forward_width=24)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(attention_in_a_pass, "SIZE", SIZE)
    monkeypatch.setattr(attention_in_a_pass, "ATTENTIONS", 2)
    monkeypatch.setattr(cases, "caller", lambda case, _, of=cases.caller: of(case, "xla"))


@pytest.mark.usefixtures("small")
def test_the_products_change_nothing_that_attention_reads():
    hidden, mixed = attention_in_a_pass.work_of(CASE, products=True)()
    untouched, alone = attention_in_a_pass.work_of(CASE, products=False)()
    jax.tree.map(np.testing.assert_array_equal, mixed, alone)
    assert hidden.shape == untouched.shape and not np.array_equal(hidden, untouched)
    assert np.isfinite(np.asarray(hidden, np.float32)).all()


@pytest.mark.usefixtures("small")
def test_a_row_has_the_clock_and_the_median_launch(monkeypatch, tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nfor mhz in 1000 1500 1500; do echo $mhz, 600.5; done; echo 9; exec sleep 60\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    launches = [("fork_attention_kernel", us) for us in (8.0, 2.0, 4.0)] + [("product", 90.0)]
    monkeypatch.setattr(attention_in_a_pass, "trace_launches", lambda work: Launches(launches))
    rows = list(attention_in_a_pass.measured(CASE, seconds=0.3))
    assert [row["way"] for row in rows] == ["bursts", "back to back", "in a pass"]
    for row in rows:
        assert (row["us"], row["mhz"], row["watts"], row["kilocycles"]) == (4.0, 1500.0, 600.5, 6.0)
        assert row["samples"] == {"us": [8.0, 2.0, 4.0], "mhz": [1000.0, 1500.0, 1500.0], "watts": [600.5] * 3}
