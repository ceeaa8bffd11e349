"""Bad arguments of experiments end in one line that says what is wrong with which."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("experiment", "arguments", "says"),
    [
        ("train_demo_model", ["--change", "streams=3"], "--change: must be fields of a run, as a JSON object"),
        ("train_demo_model", ["--change", '{"steams": 3}'], "unexpected keyword argument 'steams'"),
        ("latency", ["--request", "250+0x75"], "--request: must be of the form 327+48x49, got '250+0x75'"),
        ("serve_load", ["--tokenizer", "."], "--tokenizer: .: no directory with tokenizer.json or tokenizer.json.xz"),
        ("train_demo_model", ["--change", '{"streams": "a"}'], "streams of a run has to be of type int"),
        ("start_up", ["--bundle", "nowhere"], "--bundle: nowhere: no such directory"),
        ("growing_state", ["--checkpoint-gb", "nan"], "--checkpoint-gb: must be a number above 0, got 'nan'"),
        ("growing_state", ["--checkpoint-gb", "0.0001"], "--checkpoint-gb: checkpoints of this model take"),
    ],
)
def test_bad_arguments_end_in_one_line(experiment, arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"experiments.{experiment}").main(arguments)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
