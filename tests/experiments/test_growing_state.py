"""Agents' steps from files, and their replay: what is resumed is what their texts have in common."""

import dataclasses
import json

import pytest

from experiments import growing_state, measured_model
from experiments.workloads.agents import read_agents
from experiments.workloads.builders import agent_steps
from flide_jax.engine.model_directory import demo_directory

STEPS = 3


@pytest.fixture
def demonstrations(tmp_path):
    """Two made-up agents of three steps each."""
    for room in ("kitchen", "garden"):
        history = [{"role": "user", "content": f"Find the lamp in the {room}. " * 8}]
        for step in range(STEPS):
            history.append({"role": "assistant", "content": f"Mary opened box {step} in the {room}. " * 2})
            history.append({"role": "user", "content": f"Box {step} of the {room} is empty."})
        (tmp_path / f"{room}.traj").write_text(json.dumps({"history": history}))
    return tmp_path


def test_agents_are_told_apart_by_their_texts(demonstrations, tmp_path):
    from_directory = read_agents(demonstrations, demo_directory())
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in agent_steps(demonstrations)))
    for agents in (from_directory, read_agents(rows, demo_directory())):
        assert [len(steps) for steps in agents] == [STEPS, STEPS]
        for steps in agents:
            for one, next_ in zip(steps, steps[1:], strict=False):
                most = one.state.size - 8  # tokens may join at the end
                assert (next_.state[:most] == one.state[:most]).all()


def test_texts_are_replayed(demonstrations, tiny_model, tmp_path, monkeypatch, capsys):
    """In place of the demo model, where no answer matters: a program compiles a quarter as long."""
    monkeypatch.setattr(measured_model, "demo_directory", lambda: tiny_model)
    monkeypatch.setattr(growing_state, "SMALL", dataclasses.replace(growing_state.SMALL, replay_rungs=(256,)))
    arguments = ["--replay", "--demonstrations", str(demonstrations), "--size", "demo"]
    (record,) = growing_state.main([*arguments, "--results", str(tmp_path / "results.jsonl")])
    agents, margin = read_agents(demonstrations, demo_directory()), growing_state.SMALL.placement.margin
    resumed = [step.state.size - margin for steps in agents for step in steps[:-1]]
    assert record["resumed_tokens"] == sum(resumed)
    assert record["state_tokens"] == sum(step.state.size for steps in agents for step in steps)
    assert record["computed_tokens"] == record["tokens"] - record["resumed_tokens"]
    assert (record["later_steps"], record["later_steps_resumed"]) == (4, 4)
    said = f"{record['state_tokens'] - sum(resumed):,} of {record['state_tokens']:,} state tokens are computed"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--demonstrations are what --replay runs"),
        (["--replay"], "no step of an agent in it"),
    ],
)
def test_demonstrations_that_cannot_be_replayed(tmp_path, capsys, given, message):
    with pytest.raises(SystemExit):
        growing_state.main([*given, "--demonstrations", str(tmp_path)])
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


def test_rows_of_another_form(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"state": "Mary left."}\n')
    with pytest.raises(ValueError, match="rows.jsonl: no trajectories, or rows made of them: KeyError"):
        read_agents(tmp_path / "rows.jsonl", demo_directory())
