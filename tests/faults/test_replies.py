"""Whatever a server answers for a while, the dialogues are those of a run in which nothing went wrong."""

import asyncio
from collections.abc import Callable

import pytest

from coterie.engines import endpoint
from coterie.engines.connections import Address
from coterie.engines.endpoint import FinalFault
from coterie.engines.pool import running_servers
from coterie.engines.protocol import EngineError, Sampling, Stats
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import ServerClient
from coterie.models.loading import LoadedModel
from tests.faults.conftest import MODEL, QUICK, Played, at, play
from tests.faults.proxy import Bad, Body, Plan, Proxy, proxy

OPENING = 1 + 1 + 1
"""Completion requests with which a pool checks a server when it is opened."""


def edited(change: Callable[[Body], object]) -> Bad:
    """The right reply, with something in its one choice changed."""

    def edit(reply: Body) -> Body:
        change(reply["choices"][0])
        return reply

    return Bad(edit=edit)


FAULTS = {
    "500": Bad(status=500),
    "rate limited until tomorrow": Bad(status=429, headers=(("retry-after", "86400"),)),
    "half of the JSON": Bad(edit=lambda reply: {"model": reply["model"]}),
    "connection cut": Bad(keep=80),
    "stall": Bad(stall=True),
    "an id too few": edited(lambda choice: choice["token_ids"].pop()),
    "a log-prob too few": edited(lambda choice: choice["logprobs"]["content"].pop()),
    "log-prob above 0": edited(lambda c: c["logprobs"]["content"][0].update(logprob=0.5)),
    "log-prob of nothing": edited(
        lambda c: c["logprobs"]["content"][0].update(logprob=float("nan"))
    ),
    "another prompt": Bad(
        edit=lambda reply: reply | {"prompt_token_ids": reply["prompt_token_ids"][::-1]}
    ),
    "unknown weights": edited(lambda choice: choice["weight_versions"][0].update(version="9")),
    "another model": Bad(edit=lambda reply: reply | {"model": "impostor"}),
}


def _play(
    server: str, model: LoadedModel, plan: Plan, settings: VLLMSettings = QUICK, *more: str
) -> tuple[Played, Stats, Proxy]:
    """Play over a proxy with this plan, and ``more`` servers."""

    async def run() -> tuple[Played, Stats, Proxy]:
        async with proxy(server, plan) as between:
            urls = at(between.url, *more, settings=settings)
            opened = running_servers(model.renderer, urls, policy="talker", version="0")
            async with opened as pool:
                return await play(pool, model), pool.stats, between

    return asyncio.run(run())


@pytest.mark.parametrize("name", FAULTS)
def test_a_reply_that_is_bad_for_now_changes_nothing(
    name: str,
    server: str,
    model: LoadedModel,
    quiet: Played,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "MAX_WAIT", 1.0)

    def plan(number: int, body: Body) -> Bad | None:
        return FAULTS[name] if number in (OPENING, OPENING + 5) else None

    played, stats, between = _play(server, model, plan)
    assert played == quiet
    assert between.bad == stats.retries == 2
    assert stats.failures == 0


def test_an_item_that_fails_for_good_is_recorded_and_the_others_are_unharmed(
    server: str, model: LoadedModel, quiet: Played
) -> None:
    victims: list[int] = []

    def plan(number: int, body: Body) -> Bad | None:
        if number == OPENING + 6:
            victims.append(body["sampling_params"]["seed"])
        return Bad(status=500) if body["sampling_params"].get("seed") in victims else None

    settings = QUICK.model_copy(update={"attempts": 3})
    played, stats, _ = _play(server, model, plan, settings)
    failed = {name: said for name, said in played.items() if isinstance(said, str)}
    assert len(failed) == 1 and stats.failures == 1 and stats.retries == 2
    (reason,) = failed.values()
    assert "after 3 attempts" in reason and "500" in reason
    assert {n: s for n, s in played.items() if n not in failed} == {
        n: s for n, s in quiet.items() if n not in failed
    }


def test_out_of_context_is_final_and_only_for_the_item(
    server: str, model: LoadedModel, quiet: Played
) -> None:
    async def run() -> tuple[Played, Stats]:
        async with running_servers(
            model.renderer, at(server), policy="talker", version="0"
        ) as pool:
            played = await play(pool, model, long=2)
            too_long = [1] * (model.context_length - 3)
            with pytest.raises(EngineError, match="context overflow"):
                await pool.sample(too_long, [0], Sampling(max_tokens=4))
            ends = model.renderer.end_ids
            for name, ids, status in ((MODEL, [10**6], "400"), ("nobody", [5], "404")):
                client = ServerClient(Address(server), name, model.renderer.decode, ends)
                with pytest.raises(FinalFault, match=status):
                    await client.complete(ids, 0, Sampling())
                await client.close()
            return played, pool.stats

    played, stats = asyncio.run(run())
    reason = played.pop("2")
    assert isinstance(reason, str) and "out of context" in reason
    assert stats.retries == 0 and stats.failures == 1
    assert played == {name: said for name, said in quiet.items() if name != "2"}


def test_a_server_that_fails_is_passed_over_for_one_that_works(
    server: str, model: LoadedModel, quiet: Played
) -> None:
    def plan(number: int, body: Body) -> Bad | None:
        return Bad(status=500) if number >= OPENING else None

    played, stats, broken = _play(server, model, plan, QUICK, server)
    assert played == quiet
    assert broken.bad == stats.retries > 0 and stats.failures == 0


def test_a_request_asks_for_exactly_what_is_recorded(server: str, model: LoadedModel) -> None:
    _, _, between = _play(server, model, lambda number, body: None)
    body = between.bodies[OPENING]
    assert all(isinstance(token, int) for token in body["token_ids"]) and body["return_token_ids"]
    parameters = body["sampling_params"]
    wanted = {"temperature": 1.2, "top_p": 0.98, "max_tokens": 64, "logprobs": 0}
    assert wanted.items() <= parameters.items() and type(parameters["seed"]) is int
    assert set(parameters["stop_token_ids"]) == model.renderer.end_ids
