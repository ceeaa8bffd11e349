"""The peers of the kernels are given the same problem: what they compute on a CPU is what ours do. No time is taken."""

import sys
import types

import jax
import pytest
import torch

from experiments import kernel_peers
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.segmented_gdn import cases as recurrence
from pallas_kernels.trees import Request

REQUESTS = [Request(70, [5, 66]), Request(1, [1]), Request(64, [3])]
BFLOAT16 = 5e-3


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(kernel_peers, "DEVICE", "cpu")
    monkeypatch.setattr(kernel_peers, "LAYERS", 1)
    monkeypatch.setattr(kernel_peers, "timed", lambda *_: {})
    monkeypatch.setattr(kernel_peers, "replayed", lambda *_: [1.0, 4.0, 2.0])
    monkeypatch.setattr(kernel_peers, "elapsed", lambda *_: [5.0])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


# torch says that this is slow without compilation, and how it would like to be asked.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_flex_attention_computes_a_fork(monkeypatch):
    case = attention.Case(REQUESTS, heads=4, key_heads=2, head_dim=64)
    # cuDNN has no part in this: it needs a GPU.
    monkeypatch.setattr(jax.nn, "dot_product_attention", causal_on_the_host)
    rows = {(row["mask"], row["by"]): row for row in kernel_peers.rows("fork_attention", case, ["xla"])}
    assert rows.keys() == {("fork", "xla"), ("causal", "xla"), ("causal", "cudnn"), ("fork", "flex_attention")}
    for row in rows.values():
        assert 0 < row["error"] < BFLOAT16
    peer = rows["fork", "flex_attention"]
    assert (peer["us"], peer["us_samples"], peer["us_mask_samples"]) == (2.0, [1.0, 4.0, 2.0], [5.0])


dot_product_attention = jax.nn.dot_product_attention


def causal_on_the_host(*operands, implementation, **options):
    assert implementation == "cudnn"
    with jax.numpy_dtype_promotion("standard"):
        return dot_product_attention(*operands, implementation="xla", **options)


def delta_rule(query, key, value, decay, strength, *, scale, state_v_first, cu_seqlens, initial_state=None, **options):
    """chunk_gated_delta_rule as flash-linear-attention documents it, row by row."""
    assert state_v_first and set(options) <= {"output_final_state"}
    heads, group = value.shape[2], value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(group, dim=2)[0].double() for x in (query, key))
    value, decay, strength = (x[0].double() for x in (value, decay, strength))
    out, last = torch.zeros_like(value), []
    for number, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        state = torch.zeros(heads, value.shape[2], key.shape[2], dtype=torch.float64)
        state = state if initial_state is None else initial_state[number].double()
        for t in range(begin, end):
            state = state * decay[t].exp()[:, None, None]
            write = strength[t][:, None] * (value[t] - torch.einsum("hvk,hk->hv", state, key[t]))
            state = state + write[:, :, None] * key[t][:, None, :]
            out[t] = scale * torch.einsum("hvk,hk->hv", state, query[t])
        last.append(state)
    return out[None], torch.stack(last)


def test_the_delta_rule_in_two_calls_computes_a_fork(monkeypatch):
    for name in ("fla", "fla.ops", "fla.ops.gated_delta_rule"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = delta_rule
    case = recurrence.Case(REQUESTS, key_heads=1, value_heads=2)
    ours, peer = kernel_peers.rows("segmented_gdn", case, ["reference"])
    assert (ours["by"], peer["by"]) == ("reference", "flash-linear-attention")
    assert max(ours["error"], ours["error_state"]) < BFLOAT16
    assert max(peer["error"], peer["error_state"]) < 1e-6  # the stand-in rounds nothing


def test_a_peer_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)  # as if it were not installed
    case = recurrence.Case(REQUESTS, key_heads=1, value_heads=2)
    ours, peer = kernel_peers.rows("segmented_gdn", case, ["reference"])
    assert "error" in ours and peer["failed"].startswith("ModuleNotFoundError") and "fla" in peer["failed"]


def test_cases_of_former_rounds_are_left_out():
    assert set(kernel_peers.CASES) <= set(kernel_peers.computable("fork_attention"))
    assert "resumed" in attention.CASES and "resumed" not in kernel_peers.computable("fork_attention")
    assert set(kernel_peers.CASES) <= set(kernel_peers.computable("segmented_gdn"))
