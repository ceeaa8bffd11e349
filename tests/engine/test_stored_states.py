"""Checkpoints on disk: an engine of the same model goes on from them, and no other does."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from flide_jax.checkpoints import Placement
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.stored_states import StoredStatesError
from flide_jax.request import Request
from tests.engine.requests import ACTION, URGENT, largest_difference
from tests.engine.test_growing import story
from tests.tolerances import EXACT

CONFIG = EngineConfig(
    dtype="float64",
    capacities=(512,),
    checkpoint_bytes=60_000_000,
    placement=Placement(shortest=40, margin=8, step=8, reach=64),
)
QUESTIONS = {"urgent": URGENT, "action": ACTION}
ABOUT = ("lamp", "vase", "chair")


def asked(steps: int, about: str, **options) -> Request:
    return Request(story(steps, about=about)[0], QUESTIONS, **options)


@pytest.fixture(scope="module")
def engine(tiny_model) -> Engine:
    return Engine.load(tiny_model, CONFIG)


@pytest.fixture(scope="module")
def other(tiny_model) -> Engine:
    """Another engine of the same model."""
    return Engine.load(tiny_model, CONFIG)


@pytest.fixture(scope="module")
def saved(engine, tmp_path_factory):
    """Three agents of two steps each, one of them with a salt; read-only."""
    for steps in (4, 5):
        engine.answer_all([asked(steps, about, cache_salt=about[:1] if about == "vase" else "") for about in ABOUT])
    directory = tmp_path_factory.mktemp("states") / "saved"
    assert engine.save_checkpoints(directory) == 6
    return directory


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_another_engine_goes_on_from_them(engine, other, saved):
    other.clear_checkpoints()
    assert other.restore_checkpoints(saved) == 6
    assert other.checkpoint_bytes == engine.checkpoint_bytes
    used = [one.tokens.size for one in engine.executables.growing.store]
    assert [one.tokens.size for one in other.executables.growing.store] == used
    for about in ABOUT:
        request = asked(6, about, cache_salt="v" if about == "vase" else "")
        found, expected = other.answer(request), engine.answer(dataclasses.replace(request, checkpoints=False))
        assert found.usage.resumed_state_tokens > 0
        assert largest_difference([found], [expected]) <= EXACT
    assert other.answer(asked(6, "vase", cache_salt="w")).usage.resumed_state_tokens == 0


def test_what_is_there_stays_and_nothing_is_stored_twice(other, saved):
    other.clear_checkpoints()
    other.answer(asked(9, "mirror"))
    assert other.restore_checkpoints(saved) == 6
    assert other.restore_checkpoints(saved) == 0
    assert len(other.executables.growing.store) == 7
    for about in ("mirror", "chair"):
        assert other.answer(asked(10, about)).usage.resumed_state_tokens > 0


def test_where_there_is_less_room_the_last_ones_are_restored(tiny_model, other, saved):
    size = other.program.store
    small = Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_bytes=3 * size.bytes // size.slots))
    room = small.executables.growing.store.size.slots
    assert small.restore_checkpoints(saved) == room == 3
    saved_tokens = [entry["tokens"] for entry in json.loads((saved / "checkpoints.json").read_text())["checkpoints"]]
    assert [one.tokens.size for one in small.executables.growing.store] == saved_tokens[-room:]


def test_of_no_checkpoints(other, tmp_path):
    other.clear_checkpoints()
    assert other.save_checkpoints(tmp_path / "none") == 0
    assert other.restore_checkpoints(tmp_path / "none") == 0


def test_only_the_owner_reads_texts(saved):
    assert saved.stat().st_mode & 0o777 == 0o700


class TestRefusals:
    def test_another_dtype(self, tiny_model, saved):
        narrow = Engine.load(tiny_model, dataclasses.replace(CONFIG, dtype="float32"))
        with pytest.raises(StoredStatesError, match="another model or dtype"):
            narrow.restore_checkpoints(saved)

    def test_other_weights(self, other, saved, monkeypatch):
        params = other.executables.params
        with jax.enable_x64(True):
            changed = tuple(leaf * 2 if leaf.ndim == 2 else leaf for leaf in params)
        monkeypatch.setattr(other.executables, "params", changed)
        with pytest.raises(StoredStatesError, match="another model or dtype"):
            other.restore_checkpoints(saved)

    def test_no_manifest(self, other, copy):
        (copy / "checkpoints.json").unlink()
        with pytest.raises(StoredStatesError, match="checkpoints.json: No such file"):
            other.restore_checkpoints(copy)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda manifest: manifest | {"format": 2}, "another format"),
            (lambda manifest: {**manifest, "checkpoints": [{"tokens": 1}]}, "array tokens is int32"),
            (lambda manifest: {**manifest, "checkpoints": [{}]}, "is damaged: 'tokens'"),
            (lambda manifest: {**manifest, "shapes": []}, "is damaged"),
        ],
    )
    def test_a_damaged_manifest(self, other, copy, change, message):
        file = copy / "checkpoints.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
        with pytest.raises(StoredStatesError, match=message):
            other.restore_checkpoints(copy)

    def test_pages_that_are_not_there(self, other, copy):
        file = copy / "checkpoints.json"
        manifest = json.loads(file.read_text())
        manifest["checkpoints"][0]["pages"][0] = 1_000
        file.write_text(json.dumps(manifest))
        with pytest.raises(StoredStatesError, match="names pages or slots that are not there"):
            other.restore_checkpoints(copy)

    def test_values_that_are_not_finite(self, other, engine, tmp_path, monkeypatch):
        growing = engine.executables.growing
        states = growing.states()
        layer = states.pool[0]
        broken = dataclasses.replace(layer, windows=np.full_like(layer.windows, np.nan))
        with monkeypatch.context() as patch:
            patch.setattr(growing, "states", lambda: dataclasses.replace(states, pool=(broken, *states.pool[1:])))
            engine.save_checkpoints(tmp_path / "broken")
        with pytest.raises(StoredStatesError, match="not finite"):
            other.restore_checkpoints(tmp_path / "broken")

    def test_missing_arrays(self, other, copy):
        shutil.rmtree(copy / "arrays")
        with pytest.raises(StoredStatesError, match="cannot be read"):
            other.restore_checkpoints(copy)

    def test_a_directory_that_is_not_empty(self, engine, copy):
        with pytest.raises(StoredStatesError, match="is not empty"):
            engine.save_checkpoints(copy)

    def test_an_engine_without_checkpoints(self, tiny_model, saved):
        plain = Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_bytes=0))
        with pytest.raises(ValueError, match="keeps no checkpoints"):
            plain.restore_checkpoints(saved)
