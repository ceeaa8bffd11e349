"""Workloads from files in the form of their releases: what is asked, what is drawn, what is cut; and their tokens."""

import importlib
import json

import pytest

from experiments import records
from experiments.workloads import build, builders, multirc_table2, table2
from experiments.workloads.system_one import system_one
from flide_jax.engine.model_directory import demo_directory
from flide_jax.prompts.format import PromptFormat
from flide_jax.serving.protocol import read_request
from pallas_kernels.trees import Request as Lengths


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def releases(tmp_path):
    """A file or directory of each release."""
    (tmp_path / "race").mkdir()
    for number in range(5):
        passage = {
            "article": f"Story {number} is short.",
            "questions": ["What is it?", "Who?"],
            "options": [["long", "short", "red", "blue"], ["Mary", "Tom", "nobody", "all"]],
            "answers": ["B", "D"],
        }
        write(tmp_path / "race" / f"{number}.txt", passage)
    asked = {"question": "Why?", "options": ["a", "b", "c", "d"], "gold_label": 3}
    hidden = {"question": "When?", "options": ["a", "b", "c", "d"]}
    lines = [{"article": "A tale.", "questions": [asked]}, {"article": "A tale.", "questions": [hidden]}]
    write(tmp_path / "quality", "\n".join(map(json.dumps, lines)))
    answers = [{"text": f"x{n}", "label": n % 2} for n in range(30)]
    passage = {"text": "A passage.", "questions": [{"question": "Who?", "answers": answers}] * 4}
    write(tmp_path / "multirc", json.dumps({"passage": passage}) + "\n")
    (tmp_path / "services").mkdir()
    service = {
        "service_name": "Movies_1",
        "description": "tickets",
        "slots": [{"name": "price", "description": "its price"}, {"name": "genre", "description": "its genre"}],
        "intents": [{"name": "Buy", "description": "buy one"}],
    }
    write(tmp_path / "services" / "schema.json", [service, service | {"service_name": "Music_2"}])
    state = {"active_intent": "Buy", "requested_slots": ["genre"], "slot_values": {}}
    turns = [
        {"speaker": "USER", "utterance": "Which one?", "frames": [{"service": "Movies_1", "state": state}]},
        {"speaker": "SYSTEM", "utterance": "A comedy.", "frames": [{"service": "Movies_1"}]},
    ]
    write(tmp_path / "services" / "dialogues_001.json", [{"turns": turns}])
    write(tmp_path / "intents", {"test": [["pay it", "pay_bill"], ["hello", "greeting"]], "train": [["no", "no"]]})
    (tmp_path / "mmlu").mkdir()
    write(tmp_path / "mmlu" / "law_test.csv", '"Is it, really?",yes,no,never,"at times, yes",D\n')
    (tmp_path / "bbh").mkdir()
    write(
        tmp_path / "bbh" / "navigate.json",
        {"examples": [{"input": "Turn.", "target": "Yes"}, {"input": "2+2", "target": "4"}]},
    )
    (tmp_path / "agent-steps").mkdir()
    said = [("system", "Fix it."), ("assistant", "ls"), ("user", "a.py"), ("assistant", "cat a.py")]
    history = [{"role": role, "content": content} for role, content in said]
    write(tmp_path / "agent-steps" / "one.traj", {"history": history})
    return tmp_path


def rows_of(releases, name):
    return list(builders.BUILDERS[name](releases / name))


@pytest.mark.parametrize("name", builders.BUILDERS)
def test_rows_are_requests(releases, name):
    rows = rows_of(releases, name)
    assert rows
    for row in rows:
        request = read_request(system_one(row)).request
        assert len(request.questions) == len(row["questions"]) > 0


def test_golds_are_places_of_options(releases):
    assert [one["gold"] for one in rows_of(releases, "race")[0]["questions"]] == [1, 3]
    (article,) = rows_of(releases, "quality")
    assert [one["gold"] for one in article["questions"]] == [2, None]
    assert rows_of(releases, "mmlu")[0]["questions"][0]["gold"] == 3
    assert [row["questions"][0]["gold"] for row in rows_of(releases, "bbh")] == [True]
    service, intent, *slots = rows_of(releases, "services")[0]["questions"]
    assert (service["gold"], intent["gold"], [slot["gold"] for slot in slots]) == (0, 0, [False, True])
    message = rows_of(releases, "intents")[0]["questions"][0]
    assert message["options"][message["gold"]][0] == "pay_bill" and len(message["options"]) == 2


def test_multirc_stops_at_the_first_question_that_would_be_too_many(releases):
    (passage,) = rows_of(releases, "multirc")
    assert len(passage["questions"]) == 60
    first, second, *_ = passage["questions"]
    assert first == builders.yes_no("Who? Is “x0” a correct answer?", False)
    assert second["gold"] is True


def test_agents_grow_step_by_step(releases):
    first, second = (row["state"] for row in rows_of(releases, "agent-steps"))
    assert first == "system: Fix it.\nassistant: ls" and second.startswith(first + "\nuser: a.py")


def test_what_is_drawn_is_the_same_in_every_run(releases):
    rows = rows_of(releases, "race")
    drawn = builders.sample(rows, 3, seed=1)
    assert drawn == builders.sample(rows, 3, seed=1) != builders.sample(rows, 3, seed=2)
    assert [rows.index(row) for row in drawn] == sorted(rows.index(row) for row in drawn)
    one = builders.one_question(rows, seed=0)
    assert [len(row["questions"]) for row in one] == 5 * [1] and len(builders.each_question(rows)) == 10
    assert len({row["questions"][0]["question"] for row in one}) == 2


def test_a_state_is_cut_behind_its_last_word_that_fits():
    row = builders.row("one two  three four", [])
    assert builders.cut(row, lambda one: len(one["state"]) <= 14)["state"] == "one two  three"
    assert builders.cut(row, lambda one: len(one["state"]) <= 13)["state"] == "one two"
    assert builders.cut(row, lambda one: True) == row
    assert builders.cut(row, lambda one: False)["state"] == "one"


def test_the_command_cuts_to_tokens_and_counts_them(releases, capsys):
    words = " ".join(["garden"] * 300)
    write(releases / "quality", json.dumps({"article": words, "questions": [{"question": "Why?", "options": ["a"]}]}))
    demo = str(demo_directory())
    build.main(["quality", str(releases / "quality"), "--questions", "each", "--tokens", "120", "--tokenizer", demo])
    out = write(releases / "rows.jsonl", capsys.readouterr().out)
    build.main(["profile", str(out), "--tokenizer", demo])
    ((state, (question,)),) = json.loads(capsys.readouterr().out)
    assert 110 < state + question <= 120
    (row,) = map(json.loads, out.read_text("utf-8").splitlines())
    plan = PromptFormat.load(demo).plan(read_request(system_one(row)).request)
    assert (plan.state.size, plan.branch_lengths.tolist()) == (state, [question])


def test_tokens_need_a_tokenizer(releases, capsys):
    with pytest.raises(SystemExit):
        build.main(["race", str(releases / "race"), "--tokens", "100"])
    assert "--tokenizer" in capsys.readouterr().err


def test_the_profile_of_multirc_has_the_tokens_of_the_paper(tmp_path, capsys):
    record = table2.main(["--results", str(tmp_path / "results.jsonl")])
    assert record["agrees"] and records.newest(tmp_path / "results.jsonl") == record
    assert record["profiles"]["multirc"]["requests"] == 83 and record["seed"] is None
    assert not table2.agrees(table2.means([Lengths(327, [49])]))
    assert "multirc in the paper" in capsys.readouterr().out


def test_texts_of_other_lengths_are_recorded_and_do_not_agree(tmp_path):
    workload, results = tmp_path / "workload.jsonl", tmp_path / "results.jsonl"
    workload.write_text(json.dumps({"state": "It rains.", "questions": 2 * [builders.yes_no("Is it wet?", True)]}))
    arguments = [str(workload), str(demo_directory()), "--results", str(results)]
    assert multirc_table2.main(arguments) == 1
    record = records.newest(results)
    assert not record["agrees"] and record["requests"] == 1 and record["arguments"]["workload"] == workload.name
    assert record["texts"]["as sequences"] - record["texts"]["stream"] == record["texts"]["state"]


@pytest.mark.parametrize("program", ["build race", "system_one", "multirc_table2"])
def test_a_file_that_is_not_there_is_one_line(program, capsys):
    name, *arguments = program.split()
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"experiments.workloads.{name}").main([*arguments, "/nowhere", "/nowhere"][:2])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("/nowhere: no such file or directory")
