"""Trains the demo model: can the pass that answers also train, and does a model of 7 M parameters learn to answer?

Prediction: held-out accuracy of at least 90 % on its own world over all three question types, expected calibration
error under 5 %. How to read the result: the record appended to `results/train_demo_model.jsonl`, whose held-out
questions are about stories as long as the longest of the training. `measure_demo_model` writes the model card.

Run as `python -m experiments.train_demo_model` on one accelerator; it stops by the clock. Every step answers the
questions of many forked streams with the layers of `flide_jax.models.qwen3_5` and descends the gradient of their cross
entropy. The held-out questions are about combinations that never occur in training.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer
from transformers import Qwen3_5TextConfig

import flide_jax
from experiments import records, swap_people
from experiments.arguments import existing_path, positive
from experiments.demo_training import evaluation, hugging_face
from experiments.demo_training.feed import FeedSettings, batches
from experiments.demo_training.step import LABELS, State, Trainer, Weights
from experiments.demo_training.streams import StreamBatch
from experiments.demo_world import DemoWorld
from flide_jax.engine import Engine
from flide_jax.layout import Capacity, MetadataLayout
from flide_jax.models.qwen3_5 import Qwen35Config
from flide_jax.prompts.format import PromptFormat

DEMO = Path(flide_jax.__file__).parent / "demo"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclasses.dataclass(frozen=True)
class Run:
    """Sizes of a run."""

    width: int = 192
    feed_forward: int = 512
    periods: int = 2  # of three GDN layers and one of attention
    head_dim: int = 64
    tokens: int = 1024  # of a stream
    branches: int = 24
    streams: int = 32  # a step
    longest: int = 10  # events of a story
    growing: int = 2000  # steps in which stories grow to that
    muon_scale: float = 0.2  # root mean square of the updates of matrices before the learning rate
    learning_rate: float = 2e-3
    embedding_scale: float = 0.2  # of that for the embedding
    warmup: float = 0.03  # share of the run
    language_first: float = 0.5  # share of the loss at first,
    language_weight: float = 0.1  # and once stories are grown
    word_first: float = 1.0  # weight of the answers in one word at first,
    word_weight: float = 0.3  # and once stories are grown
    late_share: float = 0.5  # of that weight at the read row
    word_depth: int = 4  # layers that find the word; those above choose the option that says it
    late_depth: int = 7  # layers that bring it to the read row; the last one finds the option's label
    held_out: int = 2000  # requests, half as many labelled messages
    swapped: int = 150  # stories in which both people are asked about (`swap_people`)
    seed: int = 0
    dtype: str = "bfloat16"

    def architecture(self, vocabulary: int) -> Qwen3_5TextConfig:
        return Qwen3_5TextConfig(
            vocab_size=vocabulary,
            hidden_size=self.width,
            intermediate_size=self.feed_forward,
            num_hidden_layers=4 * self.periods,
            layer_types=self.periods * (3 * ["linear_attention"] + ["full_attention"]),
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=self.head_dim,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=self.head_dim,
            linear_value_head_dim=self.head_dim,
            linear_conv_kernel_dim=4,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [(self.head_dim // 8 + 2 - axis) // 3 for axis in range(3)],
            },
        )

    def capacity(self) -> Capacity:
        return Capacity(tokens=self.tokens, requests=8, branches=self.branches, reads=self.branches)


TINY = Run(
    width=32, feed_forward=48, periods=1, head_dim=16, tokens=256, branches=6, streams=4, longest=4, growing=0,
    held_out=12, swapped=3, learning_rate=5e-3, embedding_scale=1.0,
    language_first=0.0, language_weight=0.0, word_depth=2, late_depth=3, dtype="float32",
)  # fmt: skip


def learning_rate(run: Run, progress: float) -> float:
    """Linear warm-up, then half a cosine to zero; `progress` goes from 0 to 1 over the run."""
    if progress < run.warmup:
        return run.learning_rate * (progress + 1e-3) / (run.warmup + 1e-3)
    return run.learning_rate * 0.5 * (1 + float(np.cos(np.pi * (progress - run.warmup) / (1 - run.warmup))))


def weights(run: Run, step: int) -> Weights:
    """From the first ones down to the last ones while stories grow."""
    grown = min(1.0, step / run.growing) if run.growing else 1.0
    language = run.language_first + (run.language_weight - run.language_first) * grown
    word = run.word_first + (run.word_weight - run.word_first) * grown
    return Weights(np.float32(language), np.float32(word), np.float32(word * run.late_share))


def main(arguments: list[str] | None = None) -> dict:
    """Trains, saves, evaluates; returns the record."""
    begin = time.monotonic()
    options = _options(arguments)
    run = TINY if options.tiny else options.run
    labels = PromptFormat.load(DEMO).label_ids[:LABELS]
    written = run.architecture(Tokenizer.from_file(str(DEMO / "tokenizer.json")).get_vocab_size())
    config = Qwen35Config.from_transformers(written)
    layout = MetadataLayout(run.capacity(), config.gated_delta_net.conv_taps)
    trainer = Trainer(
        config, layout, labels, jnp.dtype(run.dtype),
        word_depth=run.word_depth, late_depth=run.late_depth,
        muon_scale=run.muon_scale, embedding_scale=run.embedding_scale,
    )  # fmt: skip
    world = DemoWorld(labelled=tuple(options.intents))
    settings = FeedSettings(
        DEMO, world, run.capacity(), layout.conv_taps, run.streams, run.seed, run.longest, run.growing
    )
    with contextlib.closing(batches(settings, workers=options.workers)) as feed:
        state = jax.jit(trainer.initial, static_argnums=0)(run.seed)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        print(f"{parameters:,} parameters on {jax.devices()[0].device_kind}", flush=True)
        state, curve = _train(run, options, trainer, state, feed, begin)
    _save(options.out, state, config, written)
    print(f"saved after {time.monotonic() - begin:.0f} s", flush=True)
    engine = Engine.load(options.out, evaluation.ENGINE)
    record = {
        "run": dataclasses.asdict(run),
        "parameters": parameters,
        "held_out": _measure(engine, run, options.intents),
        "swap_people": swap_people.measure(engine, run.swapped, longest=run.longest),
        "curve": curve,
        "minutes": (time.monotonic() - begin) / 60,
        "intents": [path.name for path in options.intents],
    }
    record = records.append(options, record, config=evaluation.ENGINE, seed=run.seed)
    print(json.dumps(record["held_out"], indent=1))
    print(json.dumps(record["swap_people"]))
    return record


def _train(
    run: Run, options: argparse.Namespace, trainer: Trainer, state: State, feed: Iterator[StreamBatch], begin: float
) -> tuple[State, list[dict]]:
    """Steps until the clock or the step count runs out; also the learning curve."""
    step = jax.jit(trainer.step, donate_argnums=0)
    curve: list[dict] = []
    pending: list[dict] = []
    started = None  # when the first step, and with it the compilation, was over
    for done, batch in enumerate(feed, 1):
        now = time.monotonic() - begin
        by_clock = 0.0 if started is None else (now - started) / max(options.minutes * 60 - started, 1e-9)
        progress = (done - 1) / options.steps if options.steps else by_clock
        if progress >= 1:
            break
        state, measures = step(state, batch, np.float32(learning_rate(run, progress)), weights(run, done - 1))
        pending.append(measures)
        if started is None:
            jax.block_until_ready(measures)
            started = time.monotonic() - begin
            print(f"first step after {started:.0f} s", flush=True)
        jax.block_until_ready(pending[-3:][0])  # the clock must not run ahead of the device
        if done % options.every == 0:
            values = {name: np.array([float(one[name]) for one in pending]) for name in measures}
            # A measure is not a number in a batch that asks nothing of its kind.
            means = {name: float(np.nanmean(some)) for name, some in values.items() if not np.isnan(some).all()}
            pending = []
            seconds = time.monotonic() - begin
            rate = (done - 1) * run.streams * run.tokens / (seconds - started)
            curve.append({"step": done, "seconds": round(seconds, 1), "rows_per_second": round(rate)} | means)
            print(" ".join(f"{name} {value:.4g}" for name, value in curve[-1].items()), flush=True)
    return state, curve


def _save(directory: Path, state: State, config: Qwen35Config, written: Qwen3_5TextConfig) -> None:
    """The whole checkpoint: parameters, architecture, and the tokenizer they were trained with."""
    hugging_face.save(directory, jax.device_get(state.params), config, written)
    if directory.resolve() != DEMO.resolve():
        for name in TOKENIZER:
            shutil.copy(DEMO / name, directory)


def _measure(engine: Engine, run: Run, intents: list[Path]) -> dict[str, dict]:
    """Reports of the saved model on the held-out part of the generated world, and on labelled messages if any."""
    world = DemoWorld(parts=evaluation.GENERATED)
    measured = {"world": evaluation.measure(engine, world, requests=run.held_out, longest=run.longest)}
    if intents:
        measured["labelled"] = evaluation.measure_labelled(engine, intents, requests=run.held_out // 2)
    return measured


def _changed(fields: str) -> Run:
    try:
        run = dataclasses.replace(Run(), **json.loads(fields))
    except (TypeError, ValueError) as error:  # no JSON, no object, or no field
        raise argparse.ArgumentTypeError(f"must be fields of a run, as a JSON object: {error}") from None
    for name, usual in vars(Run()).items():
        if not isinstance(getattr(run, name), (int, float) if isinstance(usual, float) else type(usual)):
            raise argparse.ArgumentTypeError(f"{name} of a run has to be of type {type(usual).__name__}")
    return run


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.3, help="training ends this long after the start")
    parser.add_argument("--steps", type=positive, help="train this many steps instead: the same run on every machine")
    parser.add_argument(
        "--intents", type=existing_path, nargs="*", default=[], help="labelled messages (demo_world/intents.py)"
    )
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="data processes, 0: none"
    )
    parser.add_argument("--out", type=Path, default=DEMO, help="where the checkpoint goes")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "train_demo_model.jsonl")
    parser.add_argument("--every", type=positive, default=50, help="steps between reports")
    parser.add_argument(
        "--change",
        dest="run",
        type=_changed,
        default=Run(),
        help='fields of the run to change, as JSON: {"streams": 32}',
    )
    parser.add_argument("--tiny", action="store_true", help="a model and a world small enough for a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
