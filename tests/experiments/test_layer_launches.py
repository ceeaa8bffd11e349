"""One layer of each kind out of a trace: a made one, whose layers are known."""

import dataclasses

import pytest

from experiments import floors
from experiments.growing_state import launch_lines
from experiments.layer_launches import Launch, by_name, one_layer_of_each, ops_of, table
from experiments.model_sizes import SIZES
from flide_jax.models.qwen3_5.config import LayerKind
from pallas_kernels.trees import Request

GDN, ATTENTION = LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION
LAYERS = (GDN, GDN, GDN, ATTENTION, GDN, GDN, ATTENTION)
FEED_FORWARD = ("fusion_2", "matmul_3", "matmul_4")
NAMES = {
    GDN: ("fusion_1", "matmul_1", "segmented_conv_k", "loop_select", "segmented_gdn_solve_k", "segmented_gdn_scan_k",
          "segmented_gdn_scan_k", "gated_norm_k", "matmul_2", *FEED_FORWARD),
    ATTENTION: ("fusion_1", "nvjet_sm90", "rotary_norm_k", "fork_attention_k", "loop_convert", "matmul_2",
                *FEED_FORWARD),
}  # fmt: skip
OPS = {
    GDN: ["norm", "in_proj", "convolution", "between", "recurrence", "recurrence", "recurrence", "gated norm",
          "out_proj", "norm", "gate_up", "down"],
    ATTENTION: ["norm", "in_proj", "rotary norm", "attention", "between", "out_proj", "norm", "gate_up", "down"],
}  # fmt: skip


def a_pass(layers=LAYERS) -> list[Launch]:
    """Launches take as long as the number of their layer; the first of each kind has structure to find out."""
    found = [Launch("loop_gather", 0.5)]
    for number, kind in enumerate(layers):
        names = list(NAMES[kind])
        if number in (0, 3):
            names.insert(3, "sort_1")
        found += [Launch(name, float(number)) for name in names]
    return [*found, Launch("fusion_9", 0.5), Launch("matmul_9", 0.5)]


def test_a_layer_of_each_kind_is_found_whole():
    layers = (*LAYERS, GDN, GDN)
    found = one_layer_of_each(a_pass(layers), layers)
    assert {kind: tuple(launch.name for launch in layer) for kind, layer in found.items()} == NAMES
    assert {launch.us for launch in found[ATTENTION]} == {6.0}  # not the first, which finds the structure out


def test_launches_beside_a_layers_own_do_not_shift_it():
    launches = []
    for launch in a_pass():
        launches.append(launch)
        if launch.name.startswith("segmented_conv") and launch.us in (2.0, 5.0):  # of the layers before attention
            launches.append(Launch("loop_select_2", 9.0))
    attention = one_layer_of_each(launches, LAYERS)[ATTENTION]
    assert tuple(launch.name for launch in attention if launch.name != "sort_1") == NAMES[ATTENTION]


def test_a_layer_that_lost_a_launch_in_the_trace_is_not_taken():
    for name in ("matmul_3", "gated_norm_k", "segmented_gdn_solve_k"):
        lost = [launch for launch in a_pass() if (launch.name, launch.us) != (name, 1.0)]  # of the second layer
        recurrent = one_layer_of_each(lost, LAYERS)[GDN]
        assert [launch.name for launch in recurrent if launch.name != "sort_1"] == list(NAMES[GDN])
    with pytest.raises(ValueError, match="with all of their products"):
        one_layer_of_each([launch for launch in a_pass() if launch.name != "matmul_3"], LAYERS)


def test_every_launch_has_an_op():
    for kind, layer in one_layer_of_each(a_pass((*LAYERS, GDN)), (*LAYERS, GDN)).items():
        assert ops_of(layer) == OPS[kind]


def test_a_trace_of_another_model_is_refused():
    with pytest.raises(ValueError, match="5 convolutions, the model 6 layers"):
        one_layer_of_each(a_pass(), (*LAYERS, GDN))
    with pytest.raises(ValueError, match="neighbours"):
        one_layer_of_each(a_pass((GDN, ATTENTION, GDN)), (GDN, ATTENTION, GDN))


def test_floors_add_up_to_that_of_the_whole_pass():
    """Where arithmetic bounds everything, but for what only moves bytes."""
    size, requests = SIZES["4B"], [Request(60_000, [9_000] * 4)]
    moved = ("norm", "convolution", "gated norm", "rotary norm")
    layers = sum(
        sum(us for op, us in floors.of_layer(kind, size, requests).items() if op not in moved) for kind in size.layers
    )
    assert layers == pytest.approx(1e6 * floors.of_pass(size, requests), rel=0.01)


def test_the_table_says_each_ops_time_once():
    layer = one_layer_of_each(a_pass(), LAYERS)[GDN]
    layer = [dataclasses.replace(launch, us=1.0) for launch in layer]
    lines = table(layer, floors.of_layer(GDN, SIZES["0.8B"], [Request(250, [75])]))
    recurrence = [line for line in lines if line.startswith("recurrence")]
    assert [len(line.split()) for line in recurrence] == [3, 3, 5] and recurrence[-1].split()[2] == "3.00"
    assert lines[-1].split()[:2] == ["all", "12.00"] and "12 launches" in lines[-1]


def test_launches_of_a_step_beside_those_of_a_plain_request():
    step, plain = (
        by_name([Launch(*one) for one in launches], 2)
        for launches in (
            [("scan_1", 4.0), ("scatter_7", 3.0), ("scatter_9", 5.0), ("scan_2", 6.0)],
            [("scan_1", 4.0), ("copy", 20.0), ("scan_3", 2.0), ("scan_4", 2.0)],
        )
    )
    assert step == {"scan": (1.0, 5.0), "scatter": (1.0, 4.0)} and list(plain) == ["copy", "scan"]
    lines = launch_lines({"size": "0.8B", "case": "launches", "step": step, "plain": plain}, least_us=2.0)
    assert lines[0].endswith(": -5.0 us more than a plain request")
    assert [line.split() for line in lines[1:]] == [
        ["4.0", "us", "+1.0", "x", "scatter"],
        ["-10.0", "us", "-0.5", "x", "copy"],
    ]
