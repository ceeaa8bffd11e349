"""The load of the serving experiment: checkpoints that load, and texts of the lengths that are asked for."""

import dataclasses
import json
import random

import pytest

from experiments import random_checkpoint
from experiments.model_sizes import SIZES
from experiments.random_checkpoint import config_json, write_checkpoint
from experiments.serve_load import Writer
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.model_directory import demo_directory
from flide_jax.models.families import read_config
from flide_jax.serving.protocol import parse_request
from pallas_kernels.trees import Request as Lengths


@pytest.mark.parametrize("size", SIZES)
def test_a_config_is_read_as_the_size_it_was_made_of(tmp_path, size):
    (tmp_path / "config.json").write_text(json.dumps(config_json(SIZES[size])))
    _, config = read_config(tmp_path)
    assert config == SIZES[size]


def test_a_random_checkpoint_loads_and_answers(tmp_path, monkeypatch):
    _, demo = read_config(demo_directory())
    tiny = dataclasses.replace(demo, width=64, feed_forward_width=64, layers=demo.layers[3:5])
    monkeypatch.setitem(random_checkpoint.SIZES, "tiny", tiny)
    write_checkpoint(tmp_path / "tiny", "tiny", demo_directory())
    engine = Engine.load(tmp_path / "tiny", EngineConfig(capacities=(128,)))
    body = Writer(tmp_path / "tiny").body(Lengths(40, [40]), random.Random(0))
    answers = engine.answer(parse_request(body).request)
    assert answers.usage.input_tokens == 80


@pytest.mark.parametrize("lengths", [Lengths(300, [60]), Lengths(3_481, [103, 40]), Lengths(20, 48 * [49])])
def test_texts_have_the_lengths_of_the_profile(lengths):
    writer, rng = Writer(demo_directory()), random.Random(1)
    request = parse_request(writer.body(lengths, rng)).request
    plan = Engine.demo(EngineConfig(capacities=(128,))).plan(request)
    assert (plan.state.size, plan.branch_lengths.tolist()) == (lengths.state, list(lengths.branches))
    assert writer.body(lengths, rng) != writer.body(lengths, rng)
