"""Pytest fixtures over the oracle; load with `pytest_plugins = ["tests.oracle.fixtures"]`.

torch and transformers are imported inside the fixtures: a run without them need not wait for the import.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def twin() -> Callable:
    """twin(name, *, seed=0, storage="float64") -> a random model of `tests.oracle.configs`; kept, so read-only."""
    from tests.oracle.configs import text_config
    from tests.oracle.twins import Storage, build_twin

    @cache
    def build(name: str, *, seed: int = 0, storage: Storage = "float64"):
        return build_twin(text_config(name), seed=seed, storage=storage)

    return build


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, twin: Callable) -> Callable:
    """checkpoint(name, form="text", *, seed=0) -> (directory, twin) in a form of `tests.oracle.checkpoints`; kept."""
    from tests.oracle.checkpoints import FORMS, save_checkpoint

    @cache
    def save(name: str, form: str = "text", *, seed: int = 0) -> tuple[Path, object]:
        model = twin(name, seed=seed, storage=FORMS[form].storage)
        directory = tmp_path_factory.mktemp(f"{name}-{form}")
        save_checkpoint(model, directory, FORMS[form])
        return directory, model

    return save
