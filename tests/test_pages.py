"""Pages: shared for as long as sequences are the same, counted, freed, grown."""

from os.path import commonprefix

import numpy as np

from coterie.engines.llama import Pages
from coterie.engines.sequence import BLOCK, BlockIndex, PrefixCache


def pages() -> Pages:
    return Pages(2, 2, 8)


def fill(store: Pages, row: int, length: int, value: float) -> None:
    for block in range(-(-length // BLOCK)):
        store.keys[store.page(row, block)] = store.values[store.page(row, block)] = value


def test_a_fork_shares_full_pages_and_copies_the_last() -> None:
    store = pages()
    store.begin(0, [], 2 * BLOCK + 5)
    fill(store, 0, 2 * BLOCK + 5, 3.0)
    store.fork(0, [1, 2], 2 * BLOCK + 5)
    assert store.used == 3 + 2
    for row in (1, 2):
        assert [store.page(row, n) for n in (0, 1)] == [store.page(0, n) for n in (0, 1)]
        last = store.page(row, 2)
        assert last != store.page(0, 2)
        assert (store.keys[last] == 3.0).all() and (store.values[last] == 3.0).all()
        assert store.table[row, :3].tolist() == [store.page(row, n) for n in range(3)]
    store.fork(0, [3], 2 * BLOCK)  # at the end of a page: all are shared
    assert store.used == 3 + 2
    assert store.page_bytes == 2 * 2 * 2 * 8 * BLOCK * np.dtype(np.float32).itemsize


def test_the_last_user_of_a_page_frees_it() -> None:
    store = pages()
    store.begin(0, [], 70)
    store.fork(0, [1, 2], 64)
    store.leave(0, 2)  # row 2 is row 0 now
    assert store.used == 2
    store.begin(2, [store.page(1, 0)], 33)
    store.drop(0)
    store.drop(1)
    assert store.used == 2
    store.drop(2)
    assert store.used == 0
    store.begin(0, [], 300)
    assert store.used == 10 and len(set(store.table[0, :10])) == 10


def test_growth_keeps_all_that_is_there() -> None:
    store = pages()
    for row in range(40):
        store.begin(row, [], 3 * BLOCK)
        fill(store, row, 3 * BLOCK, row)
    store.extend(7, 70 * BLOCK)
    for row in range(40):
        for block in range(3):
            page = store.table[row, block]
            assert page == store.page(row, block) and (store.keys[page] == row).all()
    assert store.table[7, :70].tolist() == [store.page(7, n) for n in range(70)]
    assert len({store.page(row, n) for row in range(40) for n in range(3)}) == 120


def test_what_is_kept_for_prompts_to_come_outlives_its_row_and_goes_in_order_of_use() -> None:
    store = pages()
    kept = PrefixCache[int](2, store.release)
    store.begin(0, [], 3 * BLOCK)
    for name, block in ((b"a", 0), (b"b", 1)):
        assert kept.put(name, store.page(0, block))
        store.keep(store.page(0, block))
    first = store.page(0, 0)
    assert not kept.put(b"a", first)
    store.drop(0)
    assert store.used == 2
    assert kept.known([b"a", b"x", b"b"]) == [first]
    store.begin(0, [], BLOCK)
    assert kept.put(b"c", store.page(0, 0))  # b was used longest ago
    store.keep(store.page(0, 0))
    assert kept.known([b"b"]) == [] and kept.known([b"a", b"c"]) == [first, store.page(0, 0)]
    kept.clear()
    assert store.used == 1
    assert not PrefixCache[int](0).put(b"a", 1)


def test_the_index_finds_the_page_that_begins_most_like_a_prompt() -> None:
    index, rng = BlockIndex(), np.random.default_rng(0)
    held: dict[int, tuple[bytes, tuple[int, ...]]] = {}
    for page in range(300):
        before, ids = b"ab"[page % 2 :][:1], tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist())
        index.add(page, before, ids)
        held[page] = before, ids
        if page % 3 == 0:
            gone = int(rng.choice(list(held)))
            index.drop(gone)
            del held[gone]
        wanted = tuple(rng.integers(0, 3, 6).tolist())
        found, count = index.closest(b"a", wanted)
        alike = {
            one: len(commonprefix([ids, wanted]))  # noqa: RUF071
            for one, (key, ids) in held.items()
            if key == b"a"
        }
        assert count == max(alike.values(), default=0) and (not count or alike[found] == count)
    for page in held:
        index.drop(page)
    assert not index._after and not index._place and index.closest(b"a", (1,)) == (0, 0)


def test_rows_that_begin_alike_become_neighbours() -> None:
    store = pages()
    store.begin(0, [], 2 * BLOCK)
    store.begin(1, [], BLOCK)
    store.begin(2, [store.page(0, 0)], 2 * BLOCK)
    store.begin(3, [store.page(1, 0)], 3 * BLOCK)
    held = [[store.page(row, n) for n in range(blocks)] for row, blocks in enumerate((2, 1, 2, 3))]
    order = store.arrange(4)
    assert sorted(order) == [0, 1, 2, 3] and abs(order.index(0) - order.index(2)) == 1
    for row, before in enumerate(order):
        assert [store.page(row, n) for n in range(len(held[before]))] == held[before]
        assert store.table[row, : len(held[before])].tolist() == held[before]
    assert store.arrange(4) == [0, 1, 2, 3]
