import io

import jax
import numpy as np
from rich.console import Console

from flide_jax.drawing.stream import draw_rows
from flide_jax.layout import Capacity, MetadataLayout, lay_out
from tests.trees import plan_of


def test_rows_say_what_their_metadata_does():
    stream = lay_out([plan_of(5, [2, 3], np.random.default_rng(0))])
    layout = MetadataLayout(Capacity.of_tokens(64), conv_taps=4)
    metadata = jax.tree.map(np.asarray, layout.unpack(layout.pack(stream)))
    written = io.StringIO()
    Console(file=written, width=140).print(draw_rows(stream, metadata, [4, 7]))
    _, state, branch = (line.split() for line in written.getvalue().splitlines())
    assert state == ["4", str(stream.tokens[4]), "0", "state", "4", "[0,", "5)", "1", "2", "3", "4"]
    second = ["7", str(stream.tokens[7]), "0", "1", "5", "[0,", "5)", "[7,", "8)", "2", "3", "4", "128"]
    assert branch == second
