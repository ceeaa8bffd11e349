"""How often is the demo model right, and do its probabilities mean what they say, for stories of which length?

Prediction: 94 % right up to 10 events, the world it is meant for, and an expected calibration error under 3 %; the
training's own evaluation, in bfloat16 on the same questions, had said 94.0 %. Before any other length was tried: 97 %
up to 4 events, 96 % up to 6, 95 % up to 8; and 93 % up to 12, stories longer than any of the training.
How to read the result: the printed figures, the record appended to `results/measure_demo_model.jsonl`, and
`flide_jax/demo/MODEL_CARD.md`, which is written anew from this record and the newest ones of the training and of
`swap_people`.

Run as `python -m experiments.measure_demo_model`: a CPU answers in float32, in about ten minutes of one core. The
questions are about combinations that never occur in training. `--intents FILE ...` adds labelled messages, whose
figures are otherwise those of the training record.
"""

import argparse
import time
from pathlib import Path

import flide_jax
from experiments import records
from experiments.arguments import existing_path, positive
from experiments.demo_training import evaluation, model_card
from experiments.demo_world import LONGEST, DemoWorld
from flide_jax.engine import Engine

DEMO = Path(flide_jax.__file__).parent / "demo"
LENGTHS = (4, 6, 8, 10, 12)


def main(arguments: list[str] | None = None) -> dict:
    """Measures, appends the record, writes the card; returns the record."""
    begin = time.monotonic()
    options = _options(arguments)
    engine = Engine.demo(evaluation.ENGINE)
    by_longest = {}
    for longest in LENGTHS:
        requests = options.requests if longest == LONGEST else -(-options.requests // 4)
        found = evaluation.measure(engine, DemoWorld(parts=evaluation.GENERATED), requests=requests, longest=longest)
        print(f"up to {longest} events: {found['all']}", flush=True)
        by_longest[str(longest)] = found
    record = {
        "requests": options.requests,
        "by_longest": by_longest,
        "weights_sha256": records.digest(DEMO / "model.safetensors"),
        "dtype": str(engine.dtype),
    }
    if options.intents:
        labelled = evaluation.measure_labelled(engine, options.intents, requests=-(-options.requests // 4))
        record |= {"labelled": labelled, "intents": [path.name for path in options.intents]}
    record |= {"minutes": (time.monotonic() - begin) / 60}
    record = records.append(options, record, config=evaluation.ENGINE, seed=evaluation.SEED)
    trained, swapped, rivals = (
        records.newest(records.RESULTS / f"{name}.jsonl") for name in ("train_demo_model", "swap_people", "rivals")
    )
    options.card.write_text(model_card.text(trained, record, swapped, rivals), encoding="utf-8")
    return record


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=positive, default=2000, help=f"up to {LONGEST} events; a quarter elsewhere")
    parser.add_argument(
        "--intents", type=existing_path, nargs="*", default=[], help="labelled messages (demo_world/intents.py)"
    )
    parser.add_argument("--results", type=Path, default=records.RESULTS / "measure_demo_model.jsonl")
    parser.add_argument("--card", type=Path, default=DEMO / "MODEL_CARD.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
