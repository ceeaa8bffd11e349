"""README's results, from the records of `results/`: its tables and its figure, nothing of it typed by hand.

Run as `python -m experiments.tables` after new records were made; `--check` changes nothing and exits with 1 where
README or the figure is not what the records say.
"""

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments import records
from experiments.latency import ORIGINAL
from experiments.line_chart import Line, draw

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIGURE = records.RESULTS / "questions_per_state.svg"
BEGIN = "<!-- Made by `python -m experiments.tables` from experiments/results. -->"
END = "<!-- End of what is made. -->"

Record = dict[str, Any]
WAYS = {
    "alone": "each question as a text of its own",
    "forked": "forked",
    "kept state": "the state kept, then each question",
    "multi-item": "multi-item scoring",
    "transformers": "texts of their own, by transformers",
}


def read(name: str) -> list[Record]:
    """All records of an experiment, the newest first; none where it has not run."""
    path = records.RESULTS / f"{name}.jsonl"
    return records.read(path)[::-1] if path.is_file() else []


def newest(name: str, wanted: Callable[[Record], bool] = lambda record: True) -> Record | None:
    """The newest record of an experiment that is wanted; None where there is none."""
    return next(filter(wanted, read(name)), None)


def largest(name: str, wanted: Callable[[Record], bool]) -> Record | None:
    """The wanted record with most questions, the newest of these: a small run is no news. None where there is none."""
    return next(iter(records.largest(list(filter(wanted, read(name)[::-1])), (), by="questions")), None)


def speed() -> Iterator[str]:
    """A lone request and a full queue, beside the original engine; below, what was measured with a variant."""
    variants: dict[str, int] = {}

    def marked(record: Record, shown: str) -> str:
        variant = record.get("version")
        return shown if variant is None else f"{shown} ({variants.setdefault(variant, len(variants) + 1)})"

    yield "| | lone, original | lone, here | 64 queued, original | 64 queued, here |"
    yield "|---|---|---|---|---|"
    for (size, workload), (lone, queued) in ORIGINAL.items():

        def ours(record: Record, size: str = size, workload: str = workload) -> bool:
            return (record["size"], record["workload"]) == (size, workload) and records.counts(record)

        alone = newest("latency", ours)
        full = newest("latency", lambda record, ours=ours: ours(record) and "64" in record["queued"])
        here = "-" if alone is None else marked(alone, f"{alone['lone_ms']:.2f} ms")
        rate = "-" if full is None else marked(full, f"{full['queued']['64']:.4g} /s")
        yield f"| {size} {workload} | {lone:.2f} ms | {here} | {queued:.4g} /s | {rate} |"
    yield ""
    for variant, number in variants.items():
        yield from paragraph(f"({number}) measured with: {variant}; see experiments/README.md.")


def exactness() -> Iterator[str]:
    """The walk of the proof, a row for each family."""
    yield "| float64 | one op, equal inputs | all layers | answers | questions |"
    yield "|---|---|---|---|---|"
    for family in dict.fromkeys(record["family"] for record in read("exactness")):
        found = largest("exactness", lambda record, family=family: record["family"] == family)
        assert found is not None
        step, chain = (max(row[kind] for row in found["ops"]) for kind in ("step", "chain"))
        yield f"| {family} | {step:.1e} | {chain:.1e} | {found['conclusion']:.1e} | {found['questions']} |"


def fidelity() -> Iterator[str]:
    """Known answers in narrower dtypes, a row for each way of asking."""
    yield (
        "| | total variation from float64, from float32 | 99 % of them below | the same answer (Agr) "
        "| another than as a text of its own (Flip) | the same in reverse order (Stab) | right |"
    )
    yield "|---|---|---|---|---|---|---|"
    for dtype in ("float32", "bfloat16"):
        found = largest("fidelity", lambda record, dtype=dtype: record["dtype"] == dtype)
        for way, row in ({} if found is None else found["ways"]).items():
            exact, single = row, row.get("float32")  # older records were not compared with float32
            pairs = [
                f"{exact[name]:{form}}, {'-' if single is None else format(single[name], form)}"
                for name, form in (("tv", ".1e"), ("p99", ".1e"), ("agr", ".1%"))
            ]
            yield (
                f"| {dtype} on {place(found['device'])}, {WAYS[way]} | {' | '.join(pairs)} "
                f"| {row['flip']:.1%} | {row['stab']:.1%} | {row['acc']:.1%} |"
            )


def figure() -> tuple[str, Record]:
    """Milliseconds of a request against its questions, as an SVG, and the record it shows: one of the card if any."""
    found = newest("questions_per_state", records.counts) or newest("questions_per_state")
    assert found is not None, "python -m experiments.questions_per_state has not run"
    names = {"texts": WAYS["alone"]} | WAYS
    lines = [
        Line(names[way], [(row["questions"], row["ms"][way]) for row in found["rows"]])
        for way in found["rows"][0]["ms"]
    ]
    return draw(lines, x_title="questions about one state", y_title="milliseconds of a request"), found


def part(shown: Record) -> str:
    """README's part between the markers. `shown`: the record of the figure."""
    return "\n".join(
        [
            BEGIN,
            *paragraph(
                "One H200, bfloat16, random weights at the true sizes: milliseconds of a lone request from its tokens "
                "to the logits of its labels, and requests answered a second of 64 that wait. *Original* is the "
                "original engine, 0.1.4, on the same kind of card. Where the time goes is in "
                "`experiments/README.md`."
            ),
            *speed(),
            f"![Milliseconds against questions]({FIGURE.relative_to(ROOT).as_posix()})",
            "",
            *paragraph(
                f"A state of {shown['state']:,} tokens and questions of {shown['question']}, "
                f"{shown['size']} on {place(shown['device'])}."
            ),
            *paragraph(
                "Forked against every question alone, in float64: the largest difference over the largest value, of "
                "each op given equal inputs and through all layers, and the largest of a probability "
                "(`experiments/exactness.py`)."
            ),
            *exactness(),
            "",
            *paragraph(
                "Questions with known answers, the demo model, against every question as a text of its own in float64 "
                "and in float32 (`experiments/fidelity.py`)."
            ),
            *fidelity(),
            END,
        ]
    )


def place(device: str) -> str:
    """A record's device, in words."""
    return {"cpu": "a CPU"}.get(device, device)


def paragraph(text: str) -> list[str]:
    """Lines as long as README's, and an empty one."""
    return [*textwrap.wrap(text, 120, break_on_hyphens=False, break_long_words=False), ""]


def replaced(readme: str, made: str) -> str:
    """README with the part between its markers made anew. Raises ValueError where it has not both markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md needs the two lines {BEGIN} and {END}")
    return before + made + after


def main(arguments: list[str] | None = None) -> int:
    """Writes README's part and the figure; with --check says whether they are as they would be written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where something would change")
    options = parser.parse_args(arguments)
    drawn, shown = figure()
    made = {README: replaced(README.read_text("utf-8"), part(shown)), FIGURE: drawn}
    changed = [path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in changed:
        if options.check:
            print(f"{path.relative_to(ROOT)} is not what the records say; run python -m experiments.tables")
        else:
            path.write_text(made[path], encoding="utf-8")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
