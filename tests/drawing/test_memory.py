import pytest

from flide_jax.drawing.memory import in_bytes


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "0.98 KiB"),
        (1_024, "1.00 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (999 * 2**20, "999 MiB"),
        (2**30, "1.00 GiB"),
        (150 * 2**40, "150 TiB"),
        (5_000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(count, shown):
    assert in_bytes(count) == shown
