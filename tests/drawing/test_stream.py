import io

import jax
import numpy as np
from rich.console import Console

from flide_jax.drawing.stream import draw_rows
from flide_jax.layout import Capacity, MetadataLayout, lay_out
from tests.trees import plan_of


def test_rows_say_what_their_metadata_does():
    stream = lay_out([plan_of(5, [2, 3], np.random.default_rng(0)), plan_of(4, [2, 1], np.random.default_rng(1))])
    layout = MetadataLayout(Capacity.of_tokens(64), conv_taps=4)
    metadata = jax.tree.map(np.asarray, layout.unpack(layout.pack(stream)))
    written = io.StringIO()
    Console(file=written, width=140).print(draw_rows(stream, metadata, [4, 11, 15]))
    _, state, branch, last = (line.split() for line in written.getvalue().splitlines())
    assert state == ["4", str(stream.tokens[4]), "0", "0", "4", "[0,", "5)", "1", "2", "3", "4"]
    second = ["11", str(stream.tokens[11]), "0", "2", "5", "[0,", "5)", "[11,", "12)", "2", "3", "4", "192"]
    assert branch == second
    assert last[:5] == ["15", str(stream.tokens[15]), "1", "1", "5"]
