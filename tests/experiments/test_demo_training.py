"""Training of the demo model: what the streams hold, the figures, the saved checkpoint, and that it learns."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import measure_demo_model, records, swap_people, train_demo_model
from experiments.demo_training import evaluation, hugging_face, model_card
from experiments.demo_training.feed import FeedSettings, batches
from experiments.demo_training.step import LABELS, answer_loss
from experiments.demo_training.streams import StreamBatch
from experiments.demo_world import LONGEST, Asked, DemoWorld
from flide_jax.models import families
from flide_jax.models.loading import load
from flide_jax.models.qwen3_5 import Qwen35Config, abstract
from flide_jax.request import YesNo

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


def test_probabilities_follow_the_order_of_the_gold_option(settings):
    """Logits that favour the gold option make every type of question right."""
    prompt_format = settings.packer().prompt_format
    for example in itertools.islice(settings.world.examples(4, longest=4), 30):
        asked = list(example.asked.values())
        logits = np.zeros((len(asked), len(prompt_format.labels)), np.float32)
        for row, one in enumerate(asked):
            logits[row, prompt_format.label_columns(one.question)[one.gold]] = np.log(3)
        answers = prompt_format.answers(example.request, logits)
        for name, one in example.asked.items():
            found = evaluation.probabilities(answers[name])
            expected = np.ones(found.size)
            expected[one.gold] = 3
            np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-6)
            assert evaluation.Judged(one, found).right


def test_a_report_splits_its_questions_in_every_way():
    def judged(gold: int, family: str, events: int = 0, people: int = 0, *, certain: bool = True) -> evaluation.Judged:
        return evaluation.Judged(Asked(YesNo("?"), gold, family, certain), np.array([0.9, 0.1]), events, people)

    report = evaluation.report(
        [
            judged(0, "yesno/person_in", 2, 1),
            judged(1, "yesno/person_in", 10, 3),
            judged(0, "yesno/person_in", 2, 1, certain=False),
            judged(0, "choice/b"),
            judged(1, "choice/b", 10, 3),
        ]
    )
    counts = {
        split: {name: (one["questions"], round(one["accuracy"] * one["questions"])) for name, one in parts.items()}
        for split, parts in report.items()
        if split not in ("all", "best_temperature")
    }
    assert counts == {
        "types": {"choice": (2, 1), "yesno": (3, 2)},
        "certainty": {"decided": (4, 2), "left open": (1, 1)},
        "families": {"choice/b": (2, 1), "yesno/person_in": (3, 2)},
        "events": {"02": (2, 2), "10": (2, 0)},
        "who": {"1": (1, 1), "3": (1, 0)},
        "stories": {"no story": (1, 1), "story": (4, 2)},
    }
    assert report["all"]["chance"] == 0.5 and report["all"]["mean_probability"] == pytest.approx(0.9)


def test_saved_parameters_are_read_back(tmp_path):
    written = RUN.architecture(97)
    config = Qwen35Config.from_transformers(written)
    labels = np.arange(5, 5 + LABELS, dtype=np.int32)
    specs = abstract(config, labels=LABELS, dtype=np.dtype(np.float32)).replace(head=None)
    rng = np.random.default_rng(3)
    drawn = jax.tree.map(lambda spec: rng.normal(size=spec.shape).astype(np.float32), specs)
    hugging_face.save(tmp_path, drawn, config, written)
    family, read = families.read_config(tmp_path)
    assert read == config
    specs = family.abstract(read, labels=LABELS, dtype=np.dtype(np.float32))
    loaded = load(tmp_path, family.weight_table(read, labels), specs)
    expected = drawn.replace(head=drawn.embedding[labels])
    jax.tree.map(lambda found, one: np.testing.assert_allclose(found, one, rtol=2**-8), loaded, expected)
    for found, one in zip(loaded.layers, drawn.layers, strict=True):
        if hasattr(one.mixer, "log_decay_rate"):  # decays and their norms keep float32
            np.testing.assert_array_equal(found.mixer.log_decay_rate, one.mixer.log_decay_rate)
            np.testing.assert_array_equal(found.mixer.norm, one.mixer.norm)


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
    assert records.newest(tmp_path / "results.jsonl") == record
    assert record["held_out"]["world"]["all"]["questions"] >= RUN.held_out


def test_the_measurement_writes_a_record_and_the_card(tmp_path):
    arguments = ["--requests", "8", "--results", str(tmp_path / "results.jsonl"), "--card", str(tmp_path / "card.md")]
    record = measure_demo_model.main(arguments)
    assert records.newest(tmp_path / "results.jsonl") == record
    world = record["by_longest"][str(LONGEST)]["all"]
    assert world["accuracy"] > 0.7 and world["questions"] >= 8
    card = (tmp_path / "card.md").read_text("utf-8")
    assert f"{world['accuracy']:.1%}" in card and "{" not in card


def test_swapped_people_are_asked_about_alike(tmp_path):
    for request, golds in itertools.islice(swap_people.pairs(), 20):
        (one, first), (other, second) = request.questions.items()
        assert first.options == second.options and first.instructions.replace(one, other) == second.instructions
        assert max(golds) < len(first.options)
    record = swap_people.main(stories=3, results=tmp_path / "results.jsonl")
    assert record["stories"] == 3 and records.newest(tmp_path / "results.jsonl") == record


def test_the_shipped_card_is_the_one_of_the_newest_records():
    trained, measured = (
        records.newest(records.RESULTS / f"{name}.jsonl") for name in ("train_demo_model", "measure_demo_model")
    )
    assert (train_demo_model.DEMO / "MODEL_CARD.md").read_text("utf-8") == model_card.text(trained, measured)
    weights = (train_demo_model.DEMO / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == measured["weights_sha256"]
    world = measured["by_longest"][str(LONGEST)]["all"]
    assert world["accuracy"] >= 0.9 and world["expected_calibration_error"] < 0.05
