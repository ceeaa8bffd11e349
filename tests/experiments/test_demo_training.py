"""Training of the demo model: what the streams hold, the figures, the saved checkpoint, and that it learns."""

import dataclasses
import itertools
import random
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments import measure_demo_model, records, rivals, swap_people, train_demo_model
from experiments.demo_training import evaluation, hugging_face, model_card
from experiments.demo_training.feed import FeedSettings, batches, difficulties
from experiments.demo_training.step import LABELS, Trainer, answer_loss, word_loss
from experiments.demo_training.streams import StreamBatch
from experiments.demo_world import LONGEST, WHO, Asked, DemoWorld, Difficulty
from flide_jax.engine import EngineConfig
from flide_jax.layout import MetadataLayout
from flide_jax.models import families
from flide_jax.models.loading import load
from flide_jax.models.params import named_leaves
from flide_jax.models.qwen3_5 import Qwen35Config, abstract
from flide_jax.request import YesNo
from flide_jax.verification import probabilities

RUN = dataclasses.replace(train_demo_model.TINY, tokens=192, branches=4, streams=3)


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch):
    """What is measured here is too little to fill the usual ones."""
    monkeypatch.setattr(evaluation, "ENGINE", EngineConfig(capacities=(1_024,)))


@pytest.fixture(scope="module")
def settings() -> FeedSettings:
    world = DemoWorld(parts=("story", "support", "command"))
    return FeedSettings(train_demo_model.DEMO, world, RUN.capacity(), 4, RUN.streams, 5, RUN.longest, RUN.growing)


def test_streams_ask_what_the_examples_ask(settings):
    packer = settings.packer()
    batch, asked = packer.pack(settings.world.examples(1, Difficulty(4)), 3)
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
            assert batch.who[row, column] == (one.certain and one.family in WHO)
            assert labels[first] == {"yesno": "yes", "score": "0", "choice": "A"}[one.family.split("/")[0]]
            # The read stands at the end of a text: no row follows it.
            assert metadata.read_rows[column] not in metadata.predecessors[:, -1]


def test_the_word_of_an_answer_belongs_to_the_row_that_ends_its_question(settings):
    packer = settings.packer()
    text = Tokenizer.from_file(str(train_demo_model.DEMO / "tokenizer.json"))
    batch, asked = packer.pack(settings.world.examples(1, Difficulty(4)), 6)
    families = set()
    for row, stream in enumerate(asked):
        metadata = packer.layout.unpack(batch.buffers[row])
        assert (batch.words[row, len(stream) :] == -1).all()
        for column, one in enumerate(stream):
            if batch.words[row, column] < 0:
                assert one.word is None or f"{one.question.instructions}"[-1] != "?"
                continue
            families.add(one.family)
            assert f" {one.word}".startswith(text.decode([batch.words[row, column]]))
            # From that row back to the branch's first one: the state is not among the rows that follow each other.
            at, said = batch.word_rows[row, column], []
            while metadata.spans.own_end[at] > 0 and len(said) < 60:
                said.append(metadata.tokens[at])
                at = metadata.predecessors[at, -1]
            assert text.decode(said[::-1]) == f"Question: {one.question.instructions}\n"
            if one.family.startswith("choice/"):
                assert one.word == list(one.question.options)[one.gold] or "1" in "".join(one.question.options)
    assert {"choice/where_person", "yesno/person_in", "score/owns"} & families


def test_the_loss_of_words_leaves_out_reads_without_one():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, 2, 3, 11)).astype(np.float32)  # of two depths
    nothing = np.zeros((1, 3), np.int32)
    words = np.array([[4, -1, 7]], np.int32)
    batch = StreamBatch(nothing, nothing, nothing, nothing, nothing > 0, nothing, words)
    loss, right = word_loss(jnp.asarray(logits), batch)
    log_odds = logits[0] - np.log(np.exp(logits[0]).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(loss, -(log_odds[:, 0, 4] + log_odds[:, 2, 7]) / 2, rtol=1e-5)
    best = logits[0].argmax(axis=-1)
    np.testing.assert_allclose(right, ((best[:, 0] == 4) * 1 + (best[:, 2] == 7)) / 2)
    empty = batch._replace(words=np.full_like(words, -1))
    assert not np.any(word_loss(jnp.asarray(logits), empty)[0])


def test_long_examples_lose_their_last_questions(settings):
    packer = settings.packer()
    for example in itertools.islice(settings.world.examples(2, Difficulty(4)), 60):
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
        np.array([[True, False]]),
        np.zeros((1, 2), np.int32),
        np.full((1, 2), -1, np.int32),
    )
    options = logits[0, 0, 12:15].astype(np.float64)
    expected = np.log(np.exp(options).sum()) - options[2]
    loss, measures = answer_loss(jnp.asarray(logits), batch)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(measures["choice"]) == (options.argmax() == 2)


def test_probabilities_follow_the_order_of_the_gold_option(settings):
    """Logits that favour the gold option make every type of question right."""
    prompt_format = settings.packer().prompt_format
    for example in itertools.islice(settings.world.examples(4, Difficulty(4)), 30):
        asked = list(example.asked.values())
        logits = np.zeros((len(asked), len(prompt_format.labels)), np.float32)
        for row, one in enumerate(asked):
            logits[row, prompt_format.label_columns(one.question)[one.gold]] = np.log(3)
        answers = prompt_format.answers(example.request, logits)
        for name, one in example.asked.items():
            found = probabilities(answers[name])
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


def test_stories_grow_from_who_is_where_to_the_whole_world():
    for progress, plainly in ((0.0, 0.85), (0.25, 0.85), (1.0, 0.25), (3.0, 0.25)):
        plain, growing, full = difficulties(progress, longest=10)
        assert plain.apart and plain.listed and set(plain.asked) == {"person_in", "where_person"}
        assert plain.share == pytest.approx(plainly) and plain.share + growing.share + full.share == pytest.approx(1)
        assert growing.recaps <= 0.7 and full == Difficulty(10, recaps=0.1, share=full.share)
    assert growing == dataclasses.replace(full, recaps=growing.recaps, share=growing.share)
    assert growing.recaps == pytest.approx(0.1)


def test_every_parameter_moves_by_about_its_scale_of_the_learning_rate():
    config = Qwen35Config.from_transformers(RUN.architecture(97))
    labels = np.arange(LABELS, dtype=np.int32)
    trainer = Trainer(
        config,
        MetadataLayout(RUN.capacity(), 4),
        labels,
        np.dtype(np.float32),
        word_depth=2,
        late_depth=3,
        muon_scale=0.3,
        embedding_scale=0.1,
    )
    params, moments = jax.jit(trainer.initial)(0)
    rng = np.random.default_rng(0)
    gradient = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params)
    with jax.numpy_dtype_promotion("standard"):
        update, _ = jax.jit(trainer.descent().update)(gradient, moments, params)
    for name, leaf in named_leaves(update).items():
        expected = 0.3 if name.endswith(("proj", "gate_up", "down")) else 1.0
        expected = 0.1 if name == "embedding" else expected
        assert float(jnp.sqrt(jnp.mean(leaf**2))) == pytest.approx(expected, rel=0.35), name


def test_a_tiny_run_learns_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    def one_batch_again_and_again(settings: FeedSettings, *, workers: int) -> Iterator[StreamBatch]:
        yield from itertools.repeat(settings.batch(settings.packer(), 0))

    monkeypatch.setattr(train_demo_model, "TINY", RUN)
    monkeypatch.setattr(train_demo_model, "batches", one_batch_again_and_again)
    arguments = ["--tiny", "--steps", "24", "--every", "8", "--workers", "0"]
    arguments += ["--out", str(tmp_path), "--results", str(tmp_path / "results.jsonl")]
    record = train_demo_model.main(arguments)
    losses = [entry["loss"] for entry in record["curve"]]
    assert losses[-1] < 0.8 * losses[0], losses
    for words in ([entry[name] for entry in record["curve"]] for name in ("word", "late")):
        assert words[-1] < 0.8 * words[0], words
    assert records.newest(tmp_path / "results.jsonl") == record
    assert record["held_out"]["world"]["all"]["questions"] >= RUN.held_out
    assert record["swap_people"]["stories"] == RUN.swapped


def test_the_measurement_writes_a_record_and_the_card(tmp_path):
    arguments = ["--requests", "8", "--results", str(tmp_path / "results.jsonl"), "--card", str(tmp_path / "card.md")]
    record = measure_demo_model.main(arguments)
    assert records.newest(tmp_path / "results.jsonl") == record
    world = record["by_longest"][str(LONGEST)]["all"]
    assert world["accuracy"] > 0.8 and world["questions"] >= 8
    card = (tmp_path / "card.md").read_text("utf-8")
    assert f"{world['accuracy']:.1%}" in card and "{" not in card


def test_swapped_people_are_asked_about_alike(tmp_path):
    for request, golds in itertools.islice(swap_people.pairs(10), 20):
        (one, first), (other, second) = request.questions.items()
        assert first.options == second.options and first.instructions.replace(one, other) == second.instructions
        assert max(golds) < len(first.options)
    record = swap_people.main(["--stories", "3", "--results", str(tmp_path / "results.jsonl")])
    assert all(figures["stories"] == 3 for figures in record["by_longest"].values())
    assert records.newest(tmp_path / "results.jsonl") == record


def test_the_shipped_card_is_the_one_of_the_newest_records():
    newest = [
        records.newest(records.RESULTS / f"{name}.jsonl")
        for name in ("train_demo_model", "measure_demo_model", "swap_people", "rivals")
    ]
    assert (train_demo_model.DEMO / "MODEL_CARD.md").read_text("utf-8") == model_card.text(*newest)
    digest = records.digest(train_demo_model.DEMO / "model.safetensors")
    assert all(record["weights_sha256"] == digest for record in newest[1:])
    _, measured, swapped, _ = newest
    world = measured["by_longest"][str(LONGEST)]["all"]
    assert world["accuracy"] >= 0.9 and world["expected_calibration_error"] < 0.05
    assert swapped["by_longest"][str(LONGEST)]["told_apart"] > 0.75


@pytest.mark.parametrize("relation", rivals.RELATIONS)
def test_rivals_differ_and_are_asked_about_alike(relation):
    request, golds = rivals.draw(relation, random.Random(0))
    first, second = request.questions.values()
    assert first.options == second.options and set(first.options) == set(golds) and len(set(golds)) == 2
    assert first.instructions != second.instructions and all(gold in request.state for gold in golds)
