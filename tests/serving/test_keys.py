import pytest

from flide_jax.serving.keys import Keys, read_keys
from flide_jax.serving.refusals import Refusal


def test_without_keys_every_header_is_ignored():
    for header in (None, "Bearer anything", "Basic x", ""):
        assert Keys().name_of(header) is None


def test_a_key_tells_whose_it_is():
    keys = Keys({"k1": "one", "k2": "two"})
    assert keys.name_of("Bearer k2") == "two"
    assert keys.name_of("bearer  k1 ") == "one"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic k1", "k1", "Bearer k", "Bearer k11", "Bearer \udcff"]
)
def test_no_key_and_a_wrong_key_are_refused(header):
    with pytest.raises(Refusal) as refused:
        Keys({"k1": "one"}).name_of(header)
    assert refused.value.status == 401
    assert refused.value.detail["error_type"] == "authentication_error"
    assert refused.value.headers == {"www-authenticate": "Bearer"}


def test_reads_keys_of_a_file_and_of_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nalice k1   # hers\n\nk2\n")
    keys = read_keys(file, "bob k3\nk4")
    assert len(keys) == 4
    assert (keys.name_of("Bearer k1"), keys.name_of("Bearer k3")) == ("alice", "bob")
    assert "k2" not in (keys.name_of("Bearer k2") or "k2")
    assert len(read_keys(None, None)) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b c", "line 1: must be KEY or NAME KEY"),
        ("k\nx k", "line 2: this key stands twice"),
        ("# none", "no key in it"),
    ],
)
def test_says_what_is_wrong_with_a_file(tmp_path, text, message):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_keys(file, None)
