"""A tiny random checkpoint with the shipped tokenizer and template: everything that answers, but nothing it knows."""

import json
import shutil
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "flide_jax" / "demo"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a checkpoint that `Engine.load` takes; read-only."""
    # torch is imported here: a run without it need not wait for the import.
    from tests.oracle.checkpoints import FORMS, save_checkpoint
    from tests.oracle.configs import FULL, LINEAR, text_config
    from tests.oracle.twins import build_twin

    tokenizer = json.loads((DEMO / "tokenizer.json").read_text("utf-8"))
    rows = max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]) + 1
    # One layer of each kind, for what uses it compiles it many times; all orders of layers are in `tests.exactness`.
    layers = [LINEAR, FULL]
    config = text_config(
        "one_kv_head", vocab_size=rows, tie_word_embeddings=True, layer_types=layers, num_hidden_layers=len(layers)
    )
    directory = tmp_path_factory.mktemp("tiny-model")
    save_checkpoint(build_twin(config, storage="bfloat16"), directory, FORMS["text"])
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / name, directory)
    return directory
