"""The experiment on a tiny model: its figures are of both modes, and only those of one may be less than all."""

import dataclasses
import json

from experiments import identical_bits
from flide_jax.models.qwen3_5.config import LayerKind
from tests.models.support import architecture


def test_on_a_tiny_model(tmp_path, monkeypatch):
    # One layer of each kind: every program is compiled in both modes and at both capacities.
    layers = (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION)
    monkeypatch.setitem(identical_bits.SIZES, "0.8B", dataclasses.replace(architecture("one_kv_head"), layers=layers))
    results = tmp_path / "results.jsonl"
    options = [
        "--size",
        "0.8B",
        "--workload",
        "race-one",
        "--most",
        "3",
        "--in-detail",
        "1",
        "--repeats",
        "0",
        "--where",
    ]
    invariant, usual = identical_bits.main([*options, "--capacities", "384", "896", "--results", str(results)])
    assert [json.loads(line) for line in results.read_text().splitlines()] == [invariant, usual]
    assert invariant["batch_invariant"] and not usual["batch_invariant"]
    assert [*invariant["ways"]] == [*usual["ways"]] and len(invariant["ways"]) == 8
    assert all(same == questions > 0 for same, questions in invariant["ways"].values())
    assert any(same < questions for same, questions in usual["ways"].values())
    assert invariant["first_difference"] is None and usual["first_difference"]["layer"] >= 0
