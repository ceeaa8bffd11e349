"""The walk of the proof names the op whose structure is wrong, and holds where nothing is."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import exactness
from flide_jax.layout import MetadataLayout
from flide_jax.models import families


def walk():
    with jax.enable_x64(True):
        return exactness.walk(families.QWEN3_5, exactness.SMALL["qwen3_5"], trees=1, seed=9)


def wrong_ops(record):
    """The ops that do not keep the step of the induction."""
    return {row["op"] for row in record["ops"] if row["step"] > exactness.LARGEST}


@pytest.fixture
def structure(monkeypatch):
    """structure(change) lets every round of forks be laid out with changed metadata."""

    def install(change):
        unpack = MetadataLayout.unpack

        def changed(layout, buffer):
            metadata = unpack(layout, buffer)
            return change(metadata) if layout.capacity.branches else metadata

        monkeypatch.setattr(MetadataLayout, "unpack", changed)

    return install


def siblings_are_seen(metadata):
    """Branches see everything before them."""
    spans = metadata.spans
    own_begin = np.where(spans.own_end > 0, spans.state_end, 0).astype(np.int32)
    return dataclasses.replace(metadata, spans=dataclasses.replace(spans, own_begin=own_begin))


def window_is_lost(metadata):
    """The convolution of branches sees zeros in place of the last rows of the state."""
    own = np.where(metadata.spans.own_end > 0, metadata.spans.own_begin, 0)[:, None]
    return dataclasses.replace(metadata, predecessors=np.where(metadata.predecessors < own, -1, metadata.predecessors))


def memory_is_lost(metadata):
    """Branches start their recurrence from zero."""
    none = np.full_like(metadata.segments.initial_slot, -1)
    return dataclasses.replace(metadata, segments=dataclasses.replace(metadata.segments, initial_slot=none))


def positions_restart(metadata):
    """Branches count their positions from 0."""
    rows = np.arange(metadata.tokens.size, dtype=np.int32)
    own = np.where(metadata.spans.own_end > 0, rows - metadata.spans.own_begin, metadata.rotary_positions)
    return dataclasses.replace(metadata, rotary_positions=own.astype(np.int32))


def test_every_op_of_every_layer_keeps_equal_rows_equal():
    record = walk()
    assert exactness.holds(record)
    layers = exactness.SMALL["qwen3_5"].layers
    assert [row["layer"] for row in record["ops"]] == sorted(row["layer"] for row in record["ops"])
    mixers = [row["op"] for row in record["ops"] if row["op"] in ("fork_attention", "segmented_gdn")]
    assert mixers == ["fork_attention" if kind.value == "full_attention" else "segmented_gdn" for kind in layers]
    assert record["questions"] > 1


@pytest.mark.parametrize(
    ("change", "op"),
    [(siblings_are_seen, "fork_attention"), (window_is_lost, "segmented_conv"), (memory_is_lost, "segmented_gdn")],
)
def test_a_wrong_structure_is_found_at_the_op_that_reads_it(structure, change, op):
    structure(change)
    record = walk()
    assert wrong_ops(record) == {op}
    assert not exactness.holds(record) and record["conclusion"] > exactness.LARGEST


def test_wrong_positions_are_found_before_any_op(structure):
    structure(positions_restart)
    record = walk()
    assert record["base"] > 0 and not exactness.holds(record)


def test_every_family_has_a_small_model():
    for family in families.FAMILIES.values():
        assert any(families.FAMILIES[name] is family for name in exactness.SMALL)
