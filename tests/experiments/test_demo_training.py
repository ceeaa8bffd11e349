"""Training of the demo model: what the streams hold, the figures, the saved checkpoint, and that it learns."""

import dataclasses
import itertools
import json
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import train_demo_model
from experiments.demo_training import evaluation, hugging_face
from experiments.demo_training.feed import FeedSettings, batches
from experiments.demo_training.step import LABELS, answer_loss
from experiments.demo_training.streams import StreamBatch, held_out_batches
from experiments.demo_world import Asked, DemoWorld
from flide_jax.models import families
from flide_jax.models.loading import load
from flide_jax.models.qwen3_5 import Qwen35Config, abstract
from flide_jax.request import Choice, YesNo

RUN = dataclasses.replace(train_demo_model.TINY, tokens=192, branches=4, streams=3)


@pytest.fixture(scope="module")
def settings() -> FeedSettings:
    world = DemoWorld(parts=("story", "support", "command"))
    return FeedSettings(train_demo_model.DEMO, world, RUN.capacity(), 4, RUN.streams, 5, RUN.longest, RUN.growing)


def test_streams_ask_what_the_examples_ask(settings):
    packer = settings.packer()
    batch, asked = packer.pack(settings.world.examples(1, longest=4), 3)
    labels = packer.prompt_format.labels
    for row, stream in enumerate(asked):
        metadata = packer.layout.unpack(batch.buffers[row])
        assert 1 <= len(stream) <= RUN.branches
        assert (batch.options[row, : len(stream)] > 0).all() and (batch.options[row, len(stream) :] == 0).all()
        for column, one in enumerate(stream):
            first, count = batch.first_label[row, column], batch.options[row, column]
            expected = packer.prompt_format.label_columns(one.question)
            assert list(range(first, first + count)) == expected.tolist()
            assert batch.gold[row, column] == one.gold < count
            assert labels[first] == {"yesno": "yes", "score": "0", "choice": "A"}[one.family.split("/")[0]]
            # The read stands at the end of a text: no row follows it.
            assert metadata.read_rows[column] not in metadata.predecessors[:, -1]


def test_long_examples_lose_their_last_questions(settings):
    packer = settings.packer()
    for example in itertools.islice(settings.world.examples(2, longest=4), 60):
        fitted, plan = packer.fitted(example)
        assert plan.state.size + plan.branches.size <= RUN.tokens and plan.branch_lengths.size <= RUN.branches
        assert list(fitted.asked.values()) == list(example.asked.values())[: len(fitted.asked)]


def test_held_out_batches_hold_every_question_once(settings):
    packer = settings.packer()
    examples = list(itertools.islice(settings.world.examples(3, longest=4), 20))
    batches_of_three = held_out_batches(packer, iter(examples), 20, 3)
    asked = [one for _, streams in batches_of_three for stream in streams for one in stream]
    assert asked == [one for example in examples for one in packer.fitted(example)[0].asked.values()]
    assert {batch.buffers.shape[0] for batch, _ in batches_of_three} == {3}


def test_batches_do_not_depend_on_the_workers(settings):
    alone = itertools.islice(batches(settings, workers=0), 3)
    shared = batches(settings, workers=2)
    for expected, found in zip(alone, shared, strict=False):
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
    shared.close()


def test_calibration_error_and_temperature():
    question = YesNo("?")
    judged = [evaluation.Judged(Asked(question, gold, "yesno/x"), np.array([0.7, 0.3])) for gold in [0] * 7 + [1] * 3]
    assert evaluation.accuracy(judged) == 0.7
    assert evaluation.expected_calibration_error(judged) == pytest.approx(0, abs=1e-12)
    assert evaluation.best_temperature(judged) == pytest.approx(1)
    sure = [dataclasses.replace(one, probabilities=np.array([0.99, 0.01])) for one in judged]
    assert evaluation.expected_calibration_error(sure) == pytest.approx(0.29)
    assert evaluation.best_temperature(sure) > 1.9


def _batch(**columns: list[int]) -> StreamBatch:
    """One stream with nothing in it but its reads."""
    return StreamBatch(np.zeros((1, 1), np.int32), **{name: np.array([row], np.int32) for name, row in columns.items()})


def test_answer_loss_is_a_softmax_over_the_questions_own_options():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 2, LABELS)).astype(np.float32)
    batch = StreamBatch(
        np.zeros((1, 1), np.int32),
        np.array([[12, 0]], np.int32),
        np.array([[3, 0]], np.int32),
        np.array([[2, 0]], np.int32),
    )
    options = logits[0, 0, 12:15].astype(np.float64)
    expected = np.log(np.exp(options).sum()) - options[2]
    loss, measures = answer_loss(jnp.asarray(logits), batch)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(measures["choice"]) == (options.argmax() == 2)


def test_judge_reads_the_probabilities_of_each_question():
    asked = Asked(Choice("?", {"a": None, "b": None}), 1, "choice/x")
    batch = _batch(first_label=[12], options=[2], gold=[1])
    logits = np.zeros((1, 1, LABELS))
    logits[0, 0, 13] = np.log(3)
    (one,) = evaluation.judge(lambda _: logits, [(batch, [[asked]])])
    np.testing.assert_allclose(one.probabilities, [0.25, 0.75])
    assert one.right


def test_saved_parameters_are_read_back(tmp_path):
    written = RUN.architecture(97)
    config = Qwen35Config.from_transformers(written)
    labels = np.arange(5, 5 + LABELS, dtype=np.int32)
    specs = abstract(config, labels=LABELS, dtype=np.dtype(np.float32)).replace(head=None)
    rng = np.random.default_rng(3)
    drawn = jax.tree.map(lambda spec: rng.normal(size=spec.shape).astype(np.float32), specs)
    params = jax.jit(hugging_face.as_saved)(drawn)
    hugging_face.save(tmp_path, jax.device_get(params), config, written)
    family, read = families.read_config(tmp_path)
    assert read == config
    specs = family.abstract(read, labels=LABELS, dtype=np.dtype(np.float32))
    loaded = load(tmp_path, family.weight_table(read, labels), specs)
    expected = params.replace(head=params.embedding[labels])
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


def test_a_tiny_run_learns_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    def one_batch_again_and_again(settings: FeedSettings, *, workers: int) -> Iterator[StreamBatch]:
        yield from itertools.repeat(settings.batch(settings.packer(), 0))

    monkeypatch.setattr(train_demo_model, "TINY", RUN)
    monkeypatch.setattr(train_demo_model, "batches", one_batch_again_and_again)
    arguments = ["--tiny", "--steps", "30", "--every", "10", "--workers", "0"]
    arguments += ["--out", str(tmp_path), "--results", str(tmp_path / "results.jsonl")]
    record = train_demo_model.main(arguments)
    losses = [entry["loss"] for entry in record["curve"]]
    assert losses[-1] < 0.8 * losses[0], losses
    assert json.loads((tmp_path / "results.jsonl").read_text("utf-8")) == record
    assert (tmp_path / "model.safetensors").is_file() and (tmp_path / "config.json").is_file()
    card = (tmp_path / "MODEL_CARD.md").read_text("utf-8")
    assert f"{record['held_out']['world']['all']['accuracy']:.1%}" in card and "{" not in card
