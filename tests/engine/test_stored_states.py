"""Checkpoints on disk: an engine of the same model goes on from them, and no other does."""

import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from flide_jax.checkpoints import Placement
from flide_jax.engine import Engine, EngineConfig, stored_states
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


def test_what_is_saved_is_trusted_whatever_the_mask(other, tmp_path):
    other.clear_checkpoints()
    before = os.umask(0)
    try:
        other.save_checkpoints(tmp_path / "saved")
    finally:
        os.umask(before)
    assert (tmp_path / "saved" / "checkpoints.json").stat().st_mode & 0o777 == 0o600


def of_each(field: str, value) -> Callable[[dict], None]:
    """Gives this value to all checkpoints."""
    return lambda manifest: [entry.update({field: value}) for entry in manifest["checkpoints"]] and None


def move(manifest: dict) -> None:
    """Five tokens from one text to another."""
    first, second, *_ = manifest["checkpoints"]
    first["text"], second["text"] = first["text"] - 5, second["text"] + 5


# What changes a manifest, and what is said of it where its sum is right; None: it could have been saved so.
DAMAGES = {
    "one slot for all": (of_each("slot", 0), "two checkpoints have the same slot"),
    "pages cut to one": (of_each("pages", [0]), "tokens, texts and pages do not go together"),
    "no token": (of_each("tokens", 0), "tokens, texts and pages do not go together"),
    "longer texts": (of_each("text", 10_000), "tokens, texts and pages do not go together"),
    "shorter texts": (lambda manifest: manifest["checkpoints"].pop(), "tokens, texts and pages do not go together"),
    "tokens moved": (move, None),
    "no salt": (of_each("namespace", ""), None),
    "pages beyond": (
        lambda manifest: manifest["checkpoints"][0]["pages"].__setitem__(0, 1_000),
        "names pages or slots that are not there",
    ),
    "no fields": (lambda manifest: manifest.update(checkpoints=[{}]), "is damaged: 'text'"),
    "no arrays": (lambda manifest: manifest.update(arrays={}), "names other arrays than this model has"),
}


def change(directory: Path, damaging: Callable[[dict], object], *, summed: bool = False) -> None:
    """Change a manifest, and its sum too where that is wanted."""
    file = directory / "checkpoints.json"
    manifest = json.loads(file.read_text())
    damaging(manifest)
    if summed:
        manifest["sha256"] = stored_states.sum_of(manifest)
    file.write_text(json.dumps(manifest))


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

    def test_another_format(self, other, copy):
        change(copy, lambda manifest: manifest.update(format=1))
        with pytest.raises(StoredStatesError, match="another format"):
            other.restore_checkpoints(copy)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_manifest(self, other, copy, damage):
        other.clear_checkpoints()
        change(copy, DAMAGES[damage][0])
        with pytest.raises(StoredStatesError, match="checkpoints.json: is damaged: its SHA-256 is another one"):
            other.restore_checkpoints(copy)
        assert not other.checkpoint_bytes

    @pytest.mark.parametrize("damage", [name for name, (_, message) in DAMAGES.items() if message is not None])
    def test_a_manifest_that_makes_no_sense(self, other, copy, damage):
        damaging, message = DAMAGES[damage]
        change(copy, damaging, summed=True)
        with pytest.raises(StoredStatesError, match=message):
            other.restore_checkpoints(copy)

    def test_changed_bytes_of_an_array(self, other, copy):
        file = max((copy / "arrays").rglob("*"), key=lambda file: file.stat().st_size)
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(byte ^ 1 for byte in content[middle : middle + 64])
        file.write_bytes(content)
        with pytest.raises(StoredStatesError, match="is damaged: array|cannot be read"):
            other.restore_checkpoints(copy)

    def test_a_sum_of_other_numbers(self, other, copy):
        """However orbax keeps an array: what comes out of it is what counts."""
        change(copy, lambda manifest: manifest["arrays"]["0"].update(sha256=64 * "0"), summed=True)
        with pytest.raises(StoredStatesError, match="is damaged: array 0 is not what was saved"):
            other.restore_checkpoints(copy)

    def test_a_truncated_array_is_one_error(self, other, copy, monkeypatch):
        """Of other arrays that are on their way at that moment, threads of orbax would say more; at some moments."""
        file = max((copy / "arrays").rglob("*"), key=lambda file: file.stat().st_size)
        content, unraisable = file.read_bytes(), []
        monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
        for part in np.linspace(0.1, 0.9, 9):
            file.write_bytes(content[: int(part * len(content))])
            with pytest.raises(StoredStatesError, match="cannot be read"):
                other.restore_checkpoints(copy)
        time.sleep(0.1)  # what reads on in threads
        assert not unraisable

    @pytest.mark.parametrize("name", [".", "checkpoints.json"])
    def test_others_may_write(self, other, copy, name):
        path = copy / name
        path.chmod(path.stat().st_mode | 0o022)
        with pytest.raises(StoredStatesError, match="others may write to it, and answers come from checkpoints"):
            other.restore_checkpoints(copy)

    @pytest.mark.usefixtures("saved")  # it has something to save then, whatever ran before
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

    def test_a_file(self, engine, tmp_path):
        file = tmp_path / "file"
        file.write_text("")
        with pytest.raises(StoredStatesError, match="file: is a file; checkpoints are saved in a new or an empty dir"):
            engine.save_checkpoints(file)

    def test_an_engine_without_checkpoints(self, tiny_model, saved):
        plain = Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_bytes=0))
        with pytest.raises(ValueError, match="keeps no checkpoints"):
            plain.restore_checkpoints(saved)
