"""The store of checkpoints by examples: what is found, what is shared, what makes room."""

import numpy as np
import pytest

from flide_jax.checkpoints import CheckpointStore, StoreSize

PAGE, SLOT = 100, 1_000


def store_of(pages: int = 16, slots: int = 8, **options) -> CheckpointStore:
    return CheckpointStore(StoreSize(pages, slots, page_bytes=PAGE, slot_bytes=SLOT), **options)


def text(*parts: tuple[int, int]) -> np.ndarray:
    """(token, how often) one after another."""
    return np.concatenate([np.full(count, token, np.int32) for token, count in parts])


def save(store: CheckpointStore, tokens: np.ndarray, *, namespace: str = "", most: int | None = None):
    """What a round does: resume as far as there is something, save all of it. None: no room, or nothing new."""
    parent = store.find(tokens, namespace=namespace, most=tokens.size if most is None else most)
    reservation = store.reserve(tokens, namespace=namespace, parent=parent)
    if reservation is not None:
        store.commit(reservation)
    if parent is not None:
        store.release(parent)
    return reservation


def stored_sizes(store: CheckpointStore) -> list[int]:
    return [one.tokens.size for one in store]


def test_finds_the_longest_beginning():
    store = store_of()
    for length in (70, 130, 200):
        save(store, text((1, length)))
    save(store, text((1, 70), (2, 50)))
    assert store.longest(text((1, 199)), namespace="", most=199) == 130
    assert store.longest(text((1, 500)), namespace="", most=500) == 200
    assert store.longest(text((1, 500)), namespace="", most=199) == 130
    assert store.longest(text((1, 70), (2, 49), (3, 9)), namespace="", most=500) == 70
    assert store.longest(text((1, 70), (2, 50), (3, 9)), namespace="", most=500) == 120
    assert store.longest(text((1, 69), (2, 400)), namespace="", most=500) == 0


def test_no_lookup_crosses_a_namespace():
    store = store_of()
    save(store, text((1, 70)), namespace="one")
    for other in ("", "two", "on", "one "):
        assert store.find(text((1, 90)), namespace=other, most=90) is None
    assert store.find(text((1, 90)), namespace="one", most=90) is not None


def test_equal_hashes_find_nothing_by_themselves():
    store = store_of(hashes=lambda tokens: np.zeros(tokens.size, np.uint64))
    for token in (1, 2):
        save(store, text((token, 70)))
    for token in (1, 2):
        found = store.find(text((token, 99)), namespace="", most=99)
        assert found is not None and found.tokens[0] == token
        store.release(found)
    assert store.find(text((3, 99)), namespace="", most=99) is None
    assert store.find(text((1, 69), (3, 9)), namespace="", most=99) is None


def test_a_step_adds_the_pages_of_its_own_tokens_alone():
    store = store_of()
    save(store, text((1, 640)))  # 10 pages
    assert store.bytes == 10 * PAGE + SLOT
    step = save(store, text((1, 640), (2, 70)))  # 2 more
    assert (step.begin, step.copied) == (640, None)
    assert store.bytes == 12 * PAGE + 2 * SLOT
    next_step = save(store, text((1, 640), (2, 70), (3, 50)))  # the last page has room for all of it
    assert (next_step.begin, next_step.copied) == (710, None)
    assert store.bytes == 12 * PAGE + 3 * SLOT
    np.testing.assert_array_equal(next_step.checkpoint.pages, step.checkpoint.pages)


def test_who_goes_on_second_in_a_page_gets_a_copy_of_it():
    store = store_of()
    parent = save(store, text((1, 100))).checkpoint
    first = save(store, text((1, 100), (2, 10)))
    second = save(store, text((1, 100), (3, 10)))
    assert first.copied is None
    np.testing.assert_array_equal(first.checkpoint.pages, parent.pages)
    assert second.copied == (parent.pages[1], second.checkpoint.pages[1])
    assert second.checkpoint.pages[0] == parent.pages[0]
    assert second.checkpoint.pages[1] not in parent.pages
    assert store.bytes == 3 * PAGE + 3 * SLOT


def test_a_full_last_page_needs_no_copy():
    store = store_of()
    save(store, text((1, 128)))
    for token in (2, 3):
        step = save(store, text((1, 128), (token, 10)))
        assert (step.begin, step.copied) == (128, None)
    assert store.bytes == 4 * PAGE + 3 * SLOT


def test_rows_of_what_came_to_nothing_are_written_again():
    store = store_of()
    save(store, text((1, 100)))
    parent = store.find(text((1, 110)), namespace="", most=110)
    failed = store.reserve(text((1, 110)), namespace="", parent=parent)
    store.abandon(failed)
    store.release(parent)
    assert store.longest(text((1, 110)), namespace="", most=110) == 100
    assert store.bytes == 2 * PAGE + SLOT
    assert save(store, text((1, 110))).copied is None


def test_what_is_stored_or_reserved_is_not_saved_twice():
    store = store_of()
    tokens = text((1, 100))
    reservation = store.reserve(tokens, namespace="", parent=None)
    assert store.reserve(tokens.copy(), namespace="", parent=None) is None
    assert store.reserve(tokens, namespace="other", parent=None) is not None
    store.commit(reservation)
    assert save(store, tokens) is None


def test_what_was_used_longest_ago_makes_room():
    store = store_of(slots=3)
    for token in (1, 2, 3):
        save(store, text((token, 64)))
    store.release(store.find(text((1, 64)), namespace="", most=64))
    save(store, text((4, 64)))
    assert [one.tokens[0] for one in store] == [3, 1, 4]
    assert store.counters.evictions == 1


def test_pages_make_room_too():
    store = store_of(pages=4)
    for token in (1, 2):
        save(store, text((token, 128)))
    save(store, text((3, 64)))
    assert [one.tokens[0] for one in store] == [2, 3]
    assert store.bytes == 3 * PAGE + 2 * SLOT


def test_pages_of_an_evicted_parent_stay_with_its_child():
    store = store_of(pages=6, slots=3)
    tokens = text((1, 100), (2, 100))
    parent = save(store, tokens[:100]).checkpoint
    child = save(store, tokens).checkpoint
    assert set(parent.pages) <= set(child.pages)
    others = [save(store, text((token, 64))).checkpoint for token in (3, 4)]
    assert stored_sizes(store) == [200, 64, 64]
    assert not {page for other in others for page in other.pages} & set(child.pages)
    assert store.bytes == 6 * PAGE + 3 * SLOT


def test_nothing_that_is_pinned_or_reserved_makes_room():
    store = store_of(slots=2)
    save(store, text((1, 64)))
    pinned = store.find(text((1, 99)), namespace="", most=99)
    reserved = store.reserve(text((2, 64)), namespace="", parent=None)
    assert store.reserve(text((3, 64)), namespace="", parent=None) is None
    store.commit(reserved)
    assert store.reserve(text((3, 64)), namespace="", parent=None) is not None
    assert stored_sizes(store) == [64]
    store.release(pinned)


def test_nothing_is_evicted_in_vain():
    store = store_of(pages=8)
    save(store, text((1, 64)))
    save(store, text((2, 256)))
    pinned = store.find(text((2, 256)), namespace="", most=256)
    assert store.reserve(text((3, 320)), namespace="", parent=None) is None, "4 of 8 pages cannot be had"
    assert store.reserve(text((2, 256), (3, 320)), namespace="", parent=pinned) is None
    assert len(store) == 2 and store.counters.evictions == 0


def test_rows_are_free_again_where_there_is_no_room_for_the_rest():
    store = store_of(pages=3)
    save(store, text((1, 100)))
    parent = store.find(text((1, 100)), namespace="", most=100)
    assert store.reserve(text((1, 100), (2, 200)), namespace="", parent=parent) is None
    assert store.reserve(text((1, 100), (2, 20)), namespace="", parent=parent).copied is None


def test_what_changed_at_the_end_of_a_state():
    store = store_of()
    assert store.changing(text((1, 70)), namespace="") == 0
    save(store, text((1, 70), (2, 30)))
    save(store, text((3, 90)))
    assert store.changing(text((1, 70), (4, 9), (2, 30)), namespace="") == 30
    assert store.changing(text((1, 70), (2, 30), (4, 9)), namespace="") == 0
    assert store.changing(text((1, 70), (2, 30), (4, 9)), namespace="other") == 0
    assert store.changing(text((5, 70)), namespace="") == 0, "nothing in common says nothing"
    assert store.changing(text((1, 69)), namespace="") == 31
    save(store, text((1, 65), (4, 35)))
    assert store.changing(text((1, 68), (5, 9)), namespace="") == 32, "that which is most alike"
    reservation = store.reserve(text((6, 50)), namespace="", parent=None, text=text((6, 50), (7, 8)))
    store.commit(reservation)
    assert store.changing(text((6, 50), (8, 9)), namespace="") == 8, "what was left out counts"
    assert store.changing(text((6, 40), (7, 9)), namespace="") == 10 + 8
    assert store.changing(text((6, 50), (7, 5), (8, 9)), namespace="") == 3, "of it, what stayed as it was does not"


def test_what_another_store_held_is_adopted_with_what_it_shared():
    source, store = store_of(), store_of(pages=6, slots=4)
    for tokens in (text((9, 64)), text((1, 100)), text((1, 100), (2, 100)), text((1, 100), (3, 20))):
        save(source, tokens)
    save(store, text((5, 64)))
    pairs = store.adopt(list(source))
    assert [old.tokens.size for old, _ in pairs] == [200, 100, 120], "the last ones, as far as there is room"
    first, parent, second = (new for _, new in pairs)
    assert first.pages[0] == parent.pages[0] == second.pages[0] and first.pages[1] == parent.pages[1]
    assert len({*first.pages, *parent.pages, *second.pages}) == 5
    assert store.bytes == 6 * PAGE + 4 * SLOT
    assert store.longest(text((1, 100), (2, 300)), namespace="", most=400) == 200
    assert not store.adopt(list(source)), "there is no room, and they are known"
    pinned = store.find(text((1, 100), (3, 20)), namespace="", most=120)
    reservation = store.reserve(text((1, 100), (3, 28)), namespace="", parent=pinned)
    assert reservation is not None and reservation.copied is not None, "how far a page was written is not known"


NEW = -1


def test_what_another_store_held_is_admitted_beside_what_is_the_same_here():
    source, store = store_of(), store_of(pages=6, slots=3)
    parent, child = (save(source, tokens).checkpoint for tokens in (text((1, 100)), text((1, 100), (2, 100))))
    first = store.admit(parent, np.array([NEW, NEW], np.int32))
    second = store.admit(child, np.array([first.pages[0], NEW, NEW, NEW], np.int32))
    assert second.pages[0] == first.pages[0] and len({*first.pages, *second.pages}) == 5
    assert store.bytes == 5 * PAGE + 2 * SLOT
    assert store.longest(text((1, 100), (2, 300)), namespace="", most=400) == 200
    assert store.admit(child, np.array([NEW] * 4, np.int32)) is None, "it is known"
    pinned = store.find(text((1, 100)), namespace="", most=100)
    step = store.reserve(text((1, 100), (3, 20)), namespace="", parent=pinned)
    assert step.copied is not None, "what came from elsewhere is not written behind"


def test_what_is_admitted_makes_room_and_keeps_what_it_shares():
    evicted = []
    source, store = store_of(), store_of(pages=5, slots=3, evicting=lambda one: evicted.append(one.tokens.size))
    parent, child = (save(source, tokens).checkpoint for tokens in (text((1, 100)), text((1, 100), (2, 150))))
    first = store.admit(parent, np.array([NEW, NEW], np.int32))
    save(store, text((5, 128)))
    second = store.admit(child, np.array([first.pages[0], NEW, NEW, NEW], np.int32))
    assert evicted == [100, 128] and second.pages[0] == first.pages[0]
    assert store.bytes == 4 * PAGE + SLOT
    other = save(source, text((6, 320))).checkpoint
    pinned = store.find(text((1, 100), (2, 150)), namespace="", most=250)
    assert store.admit(other, np.array([second.pages[0], NEW, NEW, NEW, NEW], np.int32)) is None
    store.release(pinned)
    assert store.bytes == 4 * PAGE + SLOT and len(evicted) == 2, "in vain nothing is evicted, or held"
    store.clear()
    assert store.bytes == 0


def test_nothing_is_evicted_in_vain_for_what_shares_too_little():
    source, store = store_of(), store_of(pages=4)
    parent, child = (save(source, tokens).checkpoint for tokens in (text((1, 100)), text((1, 100), (2, 200))))
    first = store.admit(parent, np.array([NEW, NEW], np.int32))
    assert store.admit(child, np.array([first.pages[0], NEW, NEW, NEW, NEW], np.int32)) is None, "5 of 4 pages"
    assert stored_sizes(store) == [100] and store.counters.evictions == 0


def test_what_is_renewed_is_the_last_to_go():
    store = store_of()
    for token in (1, 2):
        save(store, text((token, 64)))
    assert store.renew(text((1, 64)), namespace="")
    assert not store.renew(text((1, 64)), namespace="other") and not store.renew(text((1, 63)), namespace="")
    assert [one.tokens[0] for one in store] == [2, 1]


def test_clear_forgets_everything_but_leaves_what_is_pinned_in_its_place():
    store = store_of()
    save(store, text((1, 100)))
    save(store, text((2, 100)))
    pinned = store.find(text((1, 100)), namespace="", most=100)
    reserved = store.reserve(text((3, 100)), namespace="", parent=None)
    store.clear()
    assert len(store) == 0 and store.bytes == 2 * PAGE + SLOT
    assert store.find(text((1, 100)), namespace="", most=100) is None
    store.commit(reserved)
    assert len(store) == 0, "a round that began before has nothing to store any more"
    again = store.reserve(text((4, 14 * 64)), namespace="", parent=None)
    assert not set(again.checkpoint.pages) & set(pinned.pages)
    assert again.checkpoint.slot != pinned.slot
    store.abandon(again)
    store.release(pinned)
    assert store.bytes == 0


def test_counts():
    store = store_of(slots=2)
    for tokens in (text((1, 70)), text((1, 100)), text((2, 90))):
        save(store, tokens)
    found = {"hits": 1, "misses": 2, "tokens_saved": 70, "saved": 3, "evictions": 1, "spilled": 0, "restored": 0}
    assert vars(store.counters) == found


def test_a_size_of_a_budget():
    size = StoreSize.within(10_000, page_bytes=10, slot_bytes=1_000)
    assert (size.slots, size.pages) == (6, 6 * 64)
    assert 8_360 < size.bytes <= 10_000
    with pytest.raises(ValueError, match="take 3,280 bytes at least, got 3,279"):
        StoreSize.within(3_279, page_bytes=10, slot_bytes=1_000)
