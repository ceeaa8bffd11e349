"""A bundle gives the executables that would be compiled, and is refused wherever it might not."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from flide_jax.checkpoints import Placement
from flide_jax.engine import Ablation, Engine, EngineConfig, bundle
from flide_jax.engine.bundle import BundleError
from flide_jax.engine.model_directory import describe
from flide_jax.engine.program import Program
from flide_jax.models import families
from tests.engine.requests import REQUESTS

CONFIG = EngineConfig(dtype="float32", capacities=(256, 512))


def program(directory: Path, config: EngineConfig = CONFIG) -> Program:
    return Program.of(describe(directory), config)


def make(directory: Path, model: Path, config: EngineConfig) -> Path:
    bundle.prepare(directory)
    made = program(model, config)
    capacities = made.capacities(config.ladder())
    saved = dict(bundle.save(directory, made, capacities))
    assert set(saved) == set(capacities) and min(saved.values()) > 1_000
    return directory


@pytest.fixture(scope="session")
def stored(tiny_model, tmp_path_factory) -> Path:
    """The bundle of the engine that the fixture `engine` is; read-only."""
    return make(tmp_path_factory.mktemp("bundles") / "new" / "bundle", tiny_model, CONFIG)


@pytest.fixture
def copy(stored, tmp_path) -> Path:
    """A bundle that a test may break."""
    return shutil.copytree(stored, tmp_path / "bundle")


@pytest.fixture
def untraceable(monkeypatch):
    """Every forward that is traced from now on fails."""

    def forward(*args, **options):
        raise AssertionError("traced")

    monkeypatch.setitem(families.FAMILIES, "qwen3_5_text", dataclasses.replace(families.QWEN3_5, forward=forward))


def error_of(directory: Path, model: Path, config: EngineConfig = CONFIG) -> str:
    """What an engine says that refuses a bundle."""
    with pytest.raises(BundleError) as caught:
        Engine.load(model, dataclasses.replace(config, bundle=directory))
    message = str(caught.value)
    assert "\n" not in message and str(directory) in message
    return message


def test_the_answers_have_the_same_bits_and_nothing_is_traced(engine, stored, tiny_model, untraceable):
    loaded = Engine.load(tiny_model, dataclasses.replace(CONFIG, bundle=stored))
    assert list(loaded.prepare_all()) == list(loaded.executables.compiled) == list(CONFIG.ladder().capacities)
    plans = [engine.plan(request) for request in [*REQUESTS, *REQUESTS]]
    for group in (plans, plans[:1], plans[1:]):
        for found, expected in zip(loaded.logits(group), engine.logits(group), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert loaded.answer_all(REQUESTS) == engine.answer_all(REQUESTS)


def test_in_a_process_of_its_own(engine, stored, tiny_model):
    """Nothing that compiling leaves behind in a process is needed, the binding of LAPACK for one."""
    code = f"""
import sys
from flide_jax.engine import Engine, EngineConfig
from tests.engine.requests import REQUESTS, probabilities
engine = Engine.load(sys.argv[1], EngineConfig(dtype="float32", capacities=(256, 512), bundle={str(stored)!r}))
print([probabilities(answers).tolist() for answers in engine.answer_all(REQUESTS)])
"""
    command = [sys.executable, "-c", code, str(tiny_model)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    from tests.engine.requests import probabilities

    assert json.loads(done.stdout) == [probabilities(answers).tolist() for answers in engine.answer_all(REQUESTS)]


def test_float64_needs_no_switch(exact_engine, tiny_model, tmp_path):
    config = EngineConfig(dtype="float64", capacities=(1_024,))
    stored = make(tmp_path / "bundle", tiny_model, config)
    loaded = Engine.load(tiny_model, dataclasses.replace(config, bundle=stored))
    assert loaded.answer_all(REQUESTS) == exact_engine.answer_all(REQUESTS)
    assert not jax.config.jax_enable_x64


def test_none_is_loaded_before_a_request_needs_it(stored, tiny_model, untraceable):
    loaded = Engine.load(tiny_model, dataclasses.replace(CONFIG, bundle=stored))
    assert not loaded.executables.compiled
    loaded.answer(REQUESTS[1])
    assert [capacity.tokens for capacity in loaded.executables.compiled] == [256]


def test_a_capacity_that_it_lacks_is_compiled(stored, tiny_model, caplog):
    config = dataclasses.replace(CONFIG, capacities=(128, 512), bundle=stored)
    loaded = Engine.load(tiny_model, config)
    assert [capacity.tokens for capacity in loaded.prepare_all()] == [128, 512]
    assert [capacity.tokens for capacity in loaded.executables.compiled] == [512, 128]
    assert [record.getMessage() for record in caplog.records] == [
        f"{stored} has no executable for 128 tokens: it is compiled"
    ]


def test_a_directory_without_a_name_is_refused():
    with pytest.raises(ValueError, match="bundle must name a directory, got ''"):
        EngineConfig(bundle="")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EngineConfig(dtype="bfloat16"), 'dtype is "bfloat16" here, "float32" in the bundle'),
        (EngineConfig(dtype="float32", implementation="xla"), 'implementation is "xla" here, none in the bundle'),
        (
            EngineConfig(dtype="float32", implementation={"gated_norm": "xla"}),
            'else: implementation.gated_norm is "xla" here, none in the bundle',
        ),
        (
            EngineConfig(dtype="float32", ablation=Ablation(selective_readout=False)),
            "selective_readout is false here, true in the bundle",
        ),
    ],
)
def test_an_engine_that_chooses_otherwise(stored, tiny_model, config, message):
    found = error_of(stored, tiny_model, config)
    assert found.startswith(f"{stored}: made for something else: ")
    assert found.endswith(message) and ";" not in found


def test_an_engine_that_promises_more(stored, tiny_model):
    found = error_of(stored, tiny_model, dataclasses.replace(CONFIG, batch_invariant=True))
    assert "batch_invariant is true here, false in the bundle; " in found
    assert "xla_allow_excess_precision is false here, none in the bundle" in found


def test_another_model(stored, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config", config)
    text["rms_norm_eps"] = 1e-5
    (model / "config.json").write_text(json.dumps(config))
    found = error_of(stored, model)
    assert found.endswith(": architecture.norm_epsilon is 1e-05 here, 1e-06 in the bundle")


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        (("versions", "jaxlib"), "0.1", 'versions.jaxlib is "'),
        (("versions", "jax-cuda13-plugin"), "0.1", 'versions.jax-cuda13-plugin is none here, "0.1" in the bundle'),
        (("device",), "NVIDIA H200", 'device is "'),
        (("sources",), "0" * 64, 'sources is "'),
        (
            ("xla_options", "from 1 tokens", "xla_gpu_enable_triton_gemm"),
            False,
            "xla_gpu_enable_triton_gemm is none here, false in",
        ),
        (("conv_taps",), 2, "conv_taps is 4 here, 2 in the bundle"),
        (("labels",), 3, "here, 3 in the bundle"),
        (("platform",), "cuda 13", 'here, "cuda 13" in the bundle'),
        (("matmul_precision",), "highest", 'matmul_precision is none here, "highest" in the bundle'),
        (("a_later_version_adds",), {"this": 1}, "a_later_version_adds.this is none here, 1 in the bundle"),
    ],
)
def test_whatever_else_differs_is_named(copy, tiny_model, path, value, shown):
    manifest = json.loads((copy / bundle.MANIFEST).read_text())
    at = manifest["depends_on"]
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    (copy / bundle.MANIFEST).write_text(json.dumps(manifest))
    found = error_of(copy, tiny_model)
    assert shown in found
    assert found.count(";") == 0


def test_flags_of_the_environment_count(stored, tiny_model, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert 'xla_flags is "--xla_cpu_enable_fast_math=true" here, "" in the bundle' in error_of(stored, tiny_model)


def test_the_sources_are_those_an_executable_is_made_of(monkeypatch, tmp_path):
    before = bundle.sources_hash()
    root = Path(bundle.__file__).parents[2]
    for part in bundle.SOURCES:
        assert (root / part).exists()
    for part in ("flide_jax", "pallas_kernels"):
        shutil.copytree(root / part, tmp_path / part, ignore=shutil.ignore_patterns("demo", "__pycache__"))
    monkeypatch.setattr(bundle.importlib.resources, "files", lambda package: tmp_path / package)
    assert bundle.sources_hash() == before
    (tmp_path / "flide_jax/cli/run.py").write_text("")
    assert bundle.sources_hash() == before
    changed = tmp_path / "flide_jax/models/layers.py"
    changed.rename(changed.with_name("layer.py"))
    renamed = bundle.sources_hash()
    (tmp_path / "pallas_kernels/gated_norm/xla.py").write_text("")
    assert len({before, renamed, bundle.sources_hash()}) == 3


class TestDamaged:
    def test_a_file_is_not_what_was_written(self, copy, tiny_model):
        file = copy / "256.executable"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert error_of(copy, tiny_model).startswith(f"{file}: damaged")

    def test_a_file_that_no_engine_here_asks_for_is_not_read(self, copy, tiny_model):
        (copy / "512.executable").unlink()
        config = dataclasses.replace(CONFIG, capacities=(256,), bundle=copy)
        assert len(list(Engine.load(tiny_model, config).prepare_all())) == 1

    @pytest.mark.parametrize("name", ["256.executable", bundle.MANIFEST])
    def test_a_file_is_missing(self, copy, tiny_model, name):
        (copy / name).unlink()
        assert error_of(copy, tiny_model) == f"{copy / name}: No such file or directory"

    def test_no_such_directory(self, tiny_model, tmp_path):
        assert error_of(tmp_path / "nowhere", tiny_model) == f"{tmp_path / 'nowhere'}: No such file or directory"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not the manifest of a bundle: "),
            ("[]", "not the manifest of a bundle: it holds no object"),
            ("{}", "format None cannot be read, only 1"),
            ('{"format": 2}', "format 2 cannot be read, only 1"),
            ('{"format": 1}', "made for something else: "),
        ],
    )
    def test_the_manifest_is_none(self, copy, tiny_model, content, message):
        (copy / bundle.MANIFEST).write_text(content)
        assert message in error_of(copy, tiny_model)

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ([{}], "not the manifest of a bundle"),
            (3, "not the manifest of a bundle"),
            (
                [{"capacity": {"tokens": 1, "more": 2}, "files": [{"name": "f", "sha256": ""}]}],
                "not the manifest of a bundle",
            ),
            (
                [
                    {
                        "capacity": {"tokens": 1, "requests": 1, "branches": 1, "reads": 1},
                        "files": [{"name": "../f", "sha256": ""}],
                    }
                ],
                "'../f' is no file of this directory",
            ),
        ],
    )
    def test_the_manifest_lists_no_files(self, copy, tiny_model, entries, message):
        manifest = json.loads((copy / bundle.MANIFEST).read_text()) | {"executables": entries}
        (copy / bundle.MANIFEST).write_text(json.dumps(manifest))
        assert message in error_of(copy, tiny_model)

    def test_an_executable_that_cannot_be_loaded(self, copy, tiny_model):
        manifest = json.loads((copy / bundle.MANIFEST).read_text())
        (copy / "256.executable").write_bytes(b"no pickle")
        manifest["executables"][0]["files"][0]["sha256"] = bundle.hashlib.sha256(b"no pickle").hexdigest()
        (copy / bundle.MANIFEST).write_text(json.dumps(manifest))
        loaded = Engine.load(tiny_model, dataclasses.replace(CONFIG, bundle=copy))
        for use in (lambda: list(loaded.prepare_all()), lambda: loaded.answer(REQUESTS[1])):
            with pytest.raises(BundleError, match="256.executable: cannot be loaded: "):
                use()

    def test_a_file_that_changes_behind_the_first_look(self, copy, tiny_model):
        loaded = Engine.load(tiny_model, dataclasses.replace(CONFIG, bundle=copy))
        (copy / "256.executable").write_bytes(b"another")
        with pytest.raises(BundleError, match="256.executable: damaged"):
            loaded.answer(REQUESTS[1])


class TestWhoMayWrite:
    """Whoever can write to a bundle can run code in the process that loads it."""

    @pytest.mark.parametrize("mode", [0o020, 0o002])
    @pytest.mark.parametrize("name", [".", bundle.MANIFEST, "512.executable"])
    def test_others(self, copy, tiny_model, name, mode):
        path = copy / name
        path.chmod(path.stat().st_mode | mode)
        assert error_of(copy, tiny_model).startswith(f"{path}: others may write to it")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    @pytest.mark.parametrize("name", [".", bundle.MANIFEST, "512.executable"])
    def test_another_user_as_owner(self, copy, tiny_model, name):
        os.chown(copy / name, 12_345, -1)
        assert error_of(copy, tiny_model).startswith(f"{copy / name}: belongs to user 12345")

    def test_a_link_to_somewhere_else(self, copy, tiny_model, tmp_path):
        file = copy / "512.executable"
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        assert error_of(copy, tiny_model) == f"{file}: is a symbolic link"

    def test_the_directory_may_be_named_by_a_link(self, copy, tiny_model, tmp_path):
        (tmp_path / "current").symlink_to(copy)
        config = dataclasses.replace(CONFIG, bundle=tmp_path / "current")
        assert list(Engine.load(tiny_model, config).prepare_all())

    def test_nothing_is_run_before_the_look(self, copy, tiny_model, monkeypatch):
        monkeypatch.setattr(
            bundle.serialised.serialize_executable, "deserialize_and_load", lambda *_, **__: pytest.fail("loaded")
        )
        (copy / "512.executable").chmod(0o666)
        (copy / "256.executable").chmod(0o666)
        error_of(copy, tiny_model)

    def test_what_is_made_is_trusted_whatever_the_mask(self, tmp_path):
        before = os.umask(0)
        try:
            bundle.prepare(tmp_path / "new")
            bundle._write(tmp_path / "new" / "file", b"")
        finally:
            os.umask(before)
        for path in (tmp_path / "new", tmp_path / "new" / "file"):
            assert not path.stat().st_mode & 0o022


def test_a_process_of_its_own_compiles_the_same(stored, tiny_model, tmp_path):
    bundle.prepare(tmp_path / "apart")
    made = program(tiny_model)
    smallest, _ = made.capacities(CONFIG.ladder())
    assert set(dict(bundle.save(tmp_path / "apart", made, [smallest], processes=2))) == {smallest}
    here, there = (json.loads((directory / "manifest.json").read_text()) for directory in (stored, tmp_path / "apart"))
    assert here["depends_on"] == there["depends_on"]
    assert list(bundle.Bundle(tmp_path / "apart", made, [smallest]).load()) == [smallest]


class TestPrepare:
    def test_not_empty(self, stored):
        with pytest.raises(BundleError, match="is not empty"):
            bundle.prepare(stored)

    def test_others_may_write(self, tmp_path):
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o775)
        with pytest.raises(BundleError, match="others may write to it"):
            bundle.prepare(tmp_path / "open")

    def test_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(BundleError, match=r"file.*: (File exists|Not a directory)"):
                bundle.prepare(path)


def test_a_bundle_for_an_engine_that_runs_op_by_op():
    with pytest.raises(ValueError, match="op by op has no executables"):
        EngineConfig(bundle="somewhere", ablation=Ablation(op_by_op=True))


GROWING = dataclasses.replace(
    CONFIG, capacities=(256,), checkpoint_bytes=60_000_000, placement=Placement(shortest=8, margin=2, step=2)
)


@pytest.fixture(scope="module")
def growing(tiny_model, tmp_path_factory) -> Path:
    """Of an engine that keeps checkpoints; read-only."""
    return make(tmp_path_factory.mktemp("growing") / "bundle", tiny_model, GROWING)


class TestGrowing:
    """The size of the store of checkpoints is part of what a bundle is made for."""

    def test_neither_family_is_traced(self, growing, tiny_model, monkeypatch):
        def forward(*args, **options):
            raise AssertionError("traced")

        expected = Engine.load(tiny_model, GROWING)
        family = dataclasses.replace(families.QWEN3_5, forward=forward, growing_forward=forward)
        monkeypatch.setitem(families.FAMILIES, "qwen3_5_text", family)
        loaded = Engine.load(tiny_model, dataclasses.replace(GROWING, bundle=growing))
        assert [capacity.is_growing for capacity in loaded.prepare_all()] == [False, True]
        for request in (REQUESTS[0], REQUESTS[0], REQUESTS[1]):
            found, wanted = loaded.answer(request), expected.answer(request)
            assert found == wanted and found.usage == wanted.usage
        assert loaded.checkpoint_counters().hits == 1

    def test_another_size_is_refused(self, growing, tiny_model):
        other = dataclasses.replace(GROWING, checkpoint_bytes=90_000_000)
        assert "checkpoints.pages is" in error_of(growing, tiny_model, other)

    def test_shorter_requests_are_refused(self, growing, tiny_model):
        """Their table of pages is a shorter one, so each executable is another."""
        other = dataclasses.replace(GROWING, max_request_tokens=256)
        assert "resumed_pages is" in error_of(growing, tiny_model, other)

    def test_none_are_refused(self, growing, tiny_model):
        assert "checkpoints" in error_of(growing, tiny_model, dataclasses.replace(GROWING, checkpoint_bytes=0))
