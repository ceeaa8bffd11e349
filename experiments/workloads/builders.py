"""The paper's workloads from the public releases of their data, which are not part of this repository.

A row is what `system_one` reads: {"state": text, "questions": [{"type", "question", "options", "gold"}, ..]}. `gold` is
an option's place, or a boolean of a yes/no question. What is drawn at random is drawn with a fixed seed, from rows in
the order of their files' names, so that the same files give the same rows.
"""

import csv
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

LETTERS = "ABCDEFGHIJ"
MOST_CANDIDATES = 64  # of MultiRC: no further question once this many candidates are asked about
STORY_QUESTIONS = 18  # a request of QuALITY with all questions
AGENT_QUESTIONS = (
    "Has the agent reproduced the problem?",
    "Is the last command likely to change a file?",
    "Did the last command fail?",
    "Is the task finished?",
)


def race(directory: Path) -> Iterator[Row]:
    """RACE: one passage with all its questions from each file, {"article", "questions", "options", "answers"}."""
    for path in sorted(directory.rglob("*.txt")):
        passage = json.loads(path.read_text("utf-8"))
        asked = zip(passage["questions"], passage["options"], passage["answers"], strict=True)
        yield row(passage["article"], [lettered(text, options, LETTERS.index(gold)) for text, options, gold in asked])


def quality(path: Path) -> Iterator[Row]:
    """QuALITY: one article with all its questions, {"article", "questions": [{"question", "options", "gold_label"}]}.

    An article that several lines hold is one row, with the questions of all of them. Golds count from 1, and are
    missing in the test set.
    """
    questions: dict[str, list[Row]] = {}
    for article in json_lines(path):
        for asked in article["questions"]:
            gold = asked.get("gold_label")
            one = lettered(asked["question"], asked["options"], None if gold is None else gold - 1)
            questions.setdefault(article["article"], []).append(one)
    for article, several in questions.items():
        yield row(article, several[:STORY_QUESTIONS])


def multirc(path: Path) -> Iterator[Row]:
    """MultiRC in the form of SuperGLUE: every candidate answer of a passage is a yes/no question.

    The questions of a passage are asked in order, up to the first whose candidates would pass `MOST_CANDIDATES`.
    """
    for passage in (line["passage"] for line in json_lines(path)):
        asked: list[Row] = []
        for question in passage["questions"]:
            candidates = question["answers"]
            if len(asked) + len(candidates) > MOST_CANDIDATES:
                break
            asked += [
                yes_no(f"{question['question']} Is “{one['text']}” a correct answer?", bool(one["label"]))
                for one in candidates
            ]
        yield row(passage["text"], asked)


def services(directory: Path) -> Iterator[Row]:
    """Schema-Guided Dialogue: behind each turn of a user, which service, which of its intents, and whether each of its
    slots is asked for; from `schema.json` and `dialogues_*.json`. The services to choose from are all of the schema.
    """
    schema = {one["service_name"]: one for one in json.loads((directory / "schema.json").read_text("utf-8"))}
    names = [[name, one["description"]] for name, one in schema.items()]
    for path in sorted(directory.glob("dialogues_*.json")):
        for dialogue in json.loads(path.read_text("utf-8")):
            said: list[str] = []
            for turn in dialogue["turns"]:
                said.append(f"{turn['speaker'].capitalize()}: {turn['utterance']}")
                frames = [frame for frame in turn["frames"] if "state" in frame]
                if frames:
                    yield row("\n".join(said), _about_service(schema, names, frames[0]))


def _about_service(schema: dict[str, Any], names: list[list[str]], frame: Row) -> list[Row]:
    service, state = schema[frame["service"]], frame["state"]
    intents = [[one["name"], one["description"]] for one in service["intents"]] + [["NONE", "none of these"]]
    wanted = set(state["requested_slots"])
    return [
        choice("Which service should handle the last user message?", names, frame["service"]),
        choice("Which intent does the user have?", intents, state["active_intent"]),
        *(
            yes_no(f"Does the user ask for: {slot['description']}?", slot["name"] in wanted)
            for slot in service["slots"]
        ),
    ]


def intents(path: Path) -> Iterator[Row]:
    """CLINC150, {"test": [[message, intent], ..]}: one choice among all intents."""
    labelled = json.loads(path.read_text("utf-8"))["test"]
    options = [[name, name.replace("_", " ")] for name in sorted({name for _, name in labelled})]
    for message, name in labelled:
        yield row(message, [choice("Which intent does the message express?", options, name)])


def mmlu(directory: Path) -> Iterator[Row]:
    """MMLU's test files: rows of question, four options and the letter of the right one."""
    for path in sorted(directory.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for question, *options, letter in csv.reader(file):
                yield row(question, [lettered("Which option answers the question?", options, LETTERS.index(letter))])


def bbh(directory: Path) -> Iterator[Row]:
    """BIG-Bench Hard, {"examples": [{"input", "target"}]}: the tasks that are answered by yes or no, true or false."""
    truth = {"yes": True, "true": True, "no": False, "false": False}
    for path in sorted(directory.glob("*.json")):
        for example in json.loads(path.read_text("utf-8"))["examples"]:
            if (gold := truth.get(example["target"].strip().lower())) is not None:
                yield row(example["input"], [yes_no("Is the answer to the above yes or true?", gold)])


def agent_steps(directory: Path) -> Iterator[Row]:
    """SWE-agent's trajectories, {"history": [{"role", "content"}, ..]}: the state behind each step of the agent."""
    for path in sorted(directory.rglob("*.traj")):
        said: list[str] = []
        for message in json.loads(path.read_text("utf-8"))["history"]:
            said.append(f"{message['role']}: {message['content']}")
            if message["role"] == "assistant":
                yield row("\n".join(said), [yes_no(question, None) for question in AGENT_QUESTIONS])


BUILDERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "race": race,
    "quality": quality,
    "multirc": multirc,
    "services": services,
    "intents": intents,
    "mmlu": mmlu,
    "bbh": bbh,
    "agent-steps": agent_steps,
}


def sample(rows: Sequence[Row], count: int | None, *, seed: int) -> list[Row]:
    """So many rows, drawn without repetition, in their order; all of them when there are no more or `count` is None."""
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[index] for index in sorted(random.Random(seed).sample(range(len(rows)), count))]


def one_question(rows: Sequence[Row], *, seed: int) -> list[Row]:
    """Each state with one of its questions, drawn."""
    rng = random.Random(seed)
    return [one | {"questions": [rng.choice(one["questions"])]} for one in rows]


def each_question(rows: Sequence[Row]) -> list[Row]:
    """A row of its own for each question."""
    return [one | {"questions": [question]} for one in rows for question in one["questions"]]


def cut(one: Row, fits: Callable[[Row], bool]) -> Row:
    """A row whose state loses words at its end until it fits: the longest that does, one word at least."""
    text, ends = one["state"], []
    for index in range(1, len(one["state"]) + 1):
        if index == len(text) or (text[index].isspace() and not text[index - 1].isspace()):
            ends.append(index)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(one | {"state": text[: ends[middle]]}):
            low = middle
        else:
            high = middle - 1
    return one | {"state": text[: ends[low]]}


def row(state: str, questions: Sequence[Row]) -> Row:
    """One row."""
    return {"state": state, "questions": list(questions)}


def lettered(question: str, options: Sequence[str], gold: int | None) -> Row:
    """A choice whose options are texts, named by letters."""
    named = [list(pair) for pair in zip(LETTERS, options, strict=False)]
    return {"type": "choice", "question": question, "options": named, "gold": gold}


def choice(question: str, options: Sequence[Sequence[str]], gold: str) -> Row:
    """A choice among names with descriptions; `gold` is a name."""
    place = next((place for place, (name, *_) in enumerate(options) if name == gold), None)
    return {"type": "choice", "question": question, "options": [list(one) for one in options], "gold": place}


def yes_no(question: str, gold: bool | None) -> Row:
    """A yes/no question."""
    return {"type": "noul", "question": question, "gold": gold}


def json_lines(path: Path) -> Iterator[Any]:
    """The values of a file with one JSON value a line."""
    for line in path.read_text("utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)
