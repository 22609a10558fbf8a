"""Prompts go to the server that has their beginning, unless it is much busier than another."""

import random

from coterie.engines.pool import FACTOR, SLACK, PrefixRouter
from coterie.engines.sequence import BLOCK, block_keys


def ids(seed: int, blocks: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(50_000) for _ in range(blocks * BLOCK)]


def given(router: PrefixRouter, prompt: list[int], loads: list[int]) -> int:
    keys = block_keys(prompt)
    server = router.choose(keys, loads, range(len(loads)))
    router.remember(server, keys)
    return server


def test_a_key_depends_on_all_tokens_up_to_its_end() -> None:
    prompt = ids(0, 3)
    assert len(set(block_keys([*prompt, 1, 2, 3]))) == 3
    assert block_keys(prompt)[:2] == block_keys(prompt[: 2 * BLOCK + 5])
    changed = [prompt[0] + 1, *prompt[1:]]
    assert not set(block_keys(prompt)) & set(block_keys(changed))


def test_a_busy_holder_is_passed_over_until_it_is_less_busy() -> None:
    router = PrefixRouter(2)
    prompt = ids(0, 4)
    home = given(router, prompt, [0, 0])
    keys, loads = block_keys(prompt), [4, 4]
    loads[home] = int(FACTOR * 4 + SLACK)
    assert router.choose(keys, loads, (0, 1)) == home
    loads[home] += 1
    assert router.choose(keys, loads, (0, 1)) == 1 - home
    router.forget(home)
    assert len(router) == 0
    loads[home] = 5
    assert router.choose(keys, loads, (0, 1)) == 1 - home


def test_a_beginning_that_all_prompts_share_does_not_gather_them_on_one_server() -> None:
    router = PrefixRouter(4)
    system = ids(0, 2)
    homes = [given(router, system + ids(seed, 3), [0] * 4) for seed in range(1, 41)]
    assert all(homes.count(server) == 10 for server in range(4))


def test_the_server_of_the_longest_known_beginning_is_chosen() -> None:
    router = PrefixRouter(3)
    prompt = ids(0, 4)
    router.remember(1, block_keys(prompt))
    router.remember(2, block_keys(prompt[: 2 * BLOCK]))
    assert router.choose(block_keys(prompt), [5, 5, 5], range(3)) == 1
    assert router.choose(block_keys(prompt[: 3 * BLOCK - 1]), [5, 5, 5], range(3)) == 2
    assert router.choose(block_keys(prompt), [5, 5, 5], (0, 2)) == 2


def test_memory_is_bounded_and_ends_of_old_prompts_go_first() -> None:
    router = PrefixRouter(2, capacity=6)
    old, new = ids(0, 4), ids(1, 4)
    router.remember(1, block_keys(old))
    router.remember(0, block_keys(new))
    assert len(router) == 6
    assert router.choose(block_keys(old[: 2 * BLOCK]), [0, 0], (0, 1)) == 1
    assert router.choose(block_keys(new), [1, 0], (0, 1)) == 0
