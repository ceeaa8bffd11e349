"""What the figures show is what they were given."""

import jax
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from flide_jax.checkpoints import Checkpoint
from flide_jax.drawing.figures.attention import draw_masks, draw_tiles
from flide_jax.drawing.figures.exactness import draw_depths, draw_orders, draw_wrong_forks
from flide_jax.drawing.figures.growth import Step, draw_pages, draw_steps
from flide_jax.drawing.figures.recurrence import draw_chunks, draw_predecessors
from flide_jax.drawing.figures.stream import draw_positions
from flide_jax.drawing.figures.style import BLUE, OWN, RED, STATE, Picture
from flide_jax.layout import Capacity, lay_out
from pallas_kernels import trees
from pallas_kernels.fork_attention.runs import tile_runs
from pallas_kernels.trees import Request
from tests.drawing.words import texts
from tests.trees import plan_of

REQUESTS = [Request(90, [20, 70]), Request(40, [33])]
ROWS = trees.stream_rows(REQUESTS)
SPANS = trees.key_spans(REQUESTS, ROWS)


def colours_of_cells(picture: Picture, panel: int) -> np.ndarray:
    """The colour of each cell of an image, as text."""
    (image,) = picture.figure.axes[panel].images
    shown = np.array([to_hex(colour).upper() for colour in image.cmap.colors])
    return shown[np.asarray(image.get_array())]


def test_a_picture_is_the_same_svg_every_time():
    first, second = (draw_masks({"spans": SPANS}, ROWS).svg() for _ in range(2))
    assert first == second and first.lstrip().startswith("<?xml") and "<dc:date>" not in first
    assert draw_masks({"spans": SPANS}, ROWS)._repr_svg_() == first


def test_masks_show_both_sources_and_a_dense_mask_the_same_cells():
    visible = np.asarray(SPANS.visible(ROWS))
    picture = draw_masks({"spans": SPANS, "dense": visible}, ROWS)
    cells = colours_of_cells(picture, 0)
    assert ((cells == STATE) | (cells == OWN) == visible).all()
    branch = trees.texts(REQUESTS)[1]
    assert (cells[branch[-1], branch] == [STATE] * 90 + [OWN] * 70).all()
    assert ((colours_of_cells(picture, 1) != to_hex("white").upper()) == visible).all()


def test_tiles_cover_what_is_seen():
    runs = tile_runs(SPANS, None, rows=16, block=32)
    cells = colours_of_cells(draw_tiles(runs, SPANS, key_rows=ROWS, block=32), 0)[:ROWS]
    visible = np.asarray(SPANS.visible(ROWS))
    used = visible.any(axis=1)  # a row of padding may stand in a tile whose others see a block
    assert (((cells == STATE) | (cells == OWN)) == visible)[used].all(), (
        "a pair that is seen is not met, or the reverse"
    )
    met = (cells != to_hex("white").upper()).sum()
    assert visible.sum() == SPANS.pairs() < met <= runs.pairs(32)


def test_rows_stand_at_their_positions():
    stream = lay_out([plan_of(12, [5, 7], np.random.default_rng(0)), plan_of(4, [3], np.random.default_rng(1))])
    picture = draw_positions(stream, Capacity.of_tokens(64), ["a", "b", "c"])
    lines = [line for line in picture.figure.axes[1].lines if line.get_linewidth() > 2]
    positions = np.concatenate([line.get_ydata() for line in lines])
    np.testing.assert_array_equal(positions, stream.token_index)
    (read,) = [line for line in picture.figure.axes[1].lines if line.get_label() == "row that is read"]
    np.testing.assert_array_equal(read.get_xdata(), stream.read_rows)
    assert {"state 0", "state 1", "a", "b", "c", "padding", "12", "P = 4"} <= set(texts(picture))


def test_every_branch_starts_from_its_slot():
    segments = trees.segments_of_capacity(REQUESTS)
    picture = draw_chunks(segments, ["s0", "s1", "a", "b", "c"])
    arrows = [text.arrow_patch for text in picture.figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 3 + 2  # to each branch, and from each state
    assert {"slot 0", "slot 1", "s0: 90 rows", "b: 70 rows"} <= set(texts(picture))


def test_slots_of_the_pool_have_their_own_numbers_and_one_that_is_resumed_stands_above():
    segments = jax.tree.map(np.asarray, trees.growing_segments([Request(90, [20])], 128, tail=10))
    picture = draw_chunks(segments, ["first", "second", "a"])
    places = {text.get_text(): text.get_position()[1] for text in picture.figure.axes[0].texts if text.get_text()}
    assert {"slot 0", "slot 1 of the pool"} <= set(places)
    assert places["slot 0 of the pool"] > places["first: 80 rows"] > 0  # no segment writes it, the first starts from it
    arrows = [text.arrow_patch for text in picture.figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 3 + 2  # to each segment, and from each that leaves a state


def test_a_branch_reads_the_last_rows_of_its_state():
    before = trees.predecessors([Request(5, [2, 2])], 9)
    picture = draw_predecessors(before, np.array([0, 0, 0, 0, 0, 1, 1, 2, 2], np.int32), pieces=[0, 1, 2])
    arcs = [patch for patch in picture.figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arcs) == 2 * 3  # the first row of a state has none


def test_no_difference_is_drawn_at_zero():
    (axes,) = draw_depths({"float64": np.array([0.0, 1e-15])}, {"float64": 2.0**-52}).figure.axes
    (line,) = [line for line in axes.lines if line.get_label() == "float64"]
    zero, *_ = axes.get_yticks()
    assert axes.get_yticklabels()[0].get_text() == "0"
    assert line.get_ydata().tolist() == [zero, 1e-15]


def test_a_wrong_fork_has_another_mark():
    picture = draw_wrong_forks({"right": np.array([0.0, 1e-16]), "wrong": np.array([0.0, 1e-3])}, tolerance=1e-12)
    right, wrong, *_ = picture.figure.axes[0].lines
    assert (right.get_color(), wrong.get_color()) == (BLUE, RED) and right.get_marker() != wrong.get_marker()


def test_orders_are_measured_in_steps():
    one, next_one = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    (axes,) = draw_orders({4: one, 8: next_one}, 1.0).figure.axes
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert dots.get_ydata() == pytest.approx([0, 1])


def test_steps_and_pages():
    (axes,) = draw_steps([Step(70, 0, 60, 20), Step(100, 60, None, 20)]).figure.axes
    widths = [bar.get_width() for container in axes.containers for bar in container]
    assert widths == [0, 70, 20, 60, 40, 20]
    tokens = np.zeros(100, np.int32)
    held = [
        Checkpoint("", tokens[:70], np.array([3, 5], np.int32), 0, tokens[:70]),
        Checkpoint("", tokens, np.array([3, 7], np.int32), 1, tokens),
    ]
    assert texts(draw_pages(held)) == ["3", "5", "3", "7"]
