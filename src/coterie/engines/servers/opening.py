"""Opening of a pool of vLLM servers, child processes or external servers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from coterie.engines.protocol import EngineError
from coterie.engines.servers.client import ServerClient
from coterie.engines.servers.faults import ServerFault, TransientFault
from coterie.engines.servers.member import Member, OwnMember, ServedWeights, absolute
from coterie.engines.servers.pool import ServerPool
from coterie.engines.servers.probe import (
    PROBE_IDS,
    TEXT,
    compare_weights,
    has_processed_logprobs,
)
from coterie.engines.servers.settings import VLLMSettings
from coterie.engines.servers.vllm import VLLMBackend, check_vllm, device_lists, visible_devices
from coterie.engines.servers.wire import ServedModel
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import resolve


@asynccontextmanager
async def vllm_pool(
    model: str | Path,
    renderer: ChatRenderer,
    settings: VLLMSettings,
    log_folder: Path,
    *,
    policy: str,
    version: str,
) -> AsyncIterator[ServerPool]:
    """Open an engine over vLLM servers of a model; servers that it starts are stopped at the end.

    Raises ``UserError`` for problems that the user can fix.

    Args:
        model: Folder or hub name of the model.
        renderer: Renderer of the model.
        settings: Settings of the servers.
        log_folder: Folder of the servers' logs.
        policy: Role of the policy.
        version: Version of the weights.
    """
    if settings.urls:
        servers = running_servers(renderer, settings, policy=policy, version=version)
    else:
        check_vllm(settings)
        backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
        servers = own_servers(backend, model, renderer, log_folder, policy=policy, version=version)
    async with servers as pool:
        yield pool


@asynccontextmanager
async def own_servers(
    backend: VLLMBackend,
    model: str | Path,
    renderer: ChatRenderer,
    log_folder: Path,
    *,
    policy: str,
    version: str,
) -> AsyncIterator[ServerPool]:
    """Start all servers of ``model`` concurrently, and stop them at the end. Logs go to ``log_folder``.

    Raises ``UserError`` if a server can't be started.
    """
    settings = backend.settings
    weights = ServedWeights(absolute(resolve(model)), version)

    def connect(url: str, name: str) -> ServerClient:
        return ServerClient(url, name, renderer.decode, renderer.end_ids)

    def went_down(index: int) -> None:
        pool.forget(index)

    members = [
        OwnMember(index, policy, backend, weights, connect, log_folder.resolve(), went_down)
        for index in range(settings.servers)
    ]
    pool = ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    try:
        starts = [asyncio.ensure_future(member.start()) for member in members]
        try:
            await asyncio.gather(*starts)
        except EngineError as error:
            raise UserError(
                f"a server of {weights.model} did not start: {error}",
                "fix the problem in its log, or change the settings of the servers",
            ) from error
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        yield pool
    finally:
        await asyncio.shield(asyncio.gather(*(member.close() for member in members)))


@asynccontextmanager
async def running_servers(
    renderer: ChatRenderer, settings: VLLMSettings, *, policy: str, version: str
) -> AsyncIterator[ServerPool]:
    """Use the external servers at ``settings.urls``.

    Raises ``UserError`` if a server does not answer, lacks the model, has other weights than the first server, or
    returns log-probs before temperature.
    """
    urls = settings.urls
    cards = [
        await _card(url, settings.served_name, renderer, settings.stall_seconds) for url in urls
    ]
    if len({card.id for card in cards}) > 1:
        models = ", ".join(f"{url}: {card.id}" for url, card in zip(urls, cards, strict=True))
        raise UserError(
            f"the servers serve different models: {models}",
            "use servers of one model, or set served_name to a model of all servers",
        )
    weights = ServedWeights(cards[0].root or cards[0].id, version)
    clients = [
        ServerClient(url, card.id, renderer.decode, renderer.end_ids)
        for url, card in zip(urls, cards, strict=True)
    ]
    backend = VLLMBackend(settings, [])
    members = [Member(client.url, client.model, backend, weights, client) for client in clients]
    try:
        await _check(members, probe_ids(renderer), settings.stall_seconds)
        yield ServerPool(members, settings, weights, policy=policy, probe=probe_ids(renderer))
    finally:
        await asyncio.gather(*(member.close() for member in members))


def probe_ids(renderer: ChatRenderer) -> list[int]:
    """Return the first ids of a fixed text."""
    ids: list[int] = renderer.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    return ids[:PROBE_IDS]


async def _card(url: str, model: str | None, renderer: ChatRenderer, seconds: float) -> ServedModel:
    client = ServerClient(url, model or "", renderer.decode, renderer.end_ids)
    try:
        async with asyncio.timeout(seconds):
            cards = await client.models()
    except (ServerFault, TimeoutError) as error:
        raise UserError(
            f"no inference server answers at {url}: {error!r}", "start it, or correct the address"
        ) from error
    finally:
        await client.close()
    matches = [card for card in cards if card.id == model or (model is None and not card.parent)]
    if len(matches) != 1:
        names = ", ".join(card.id for card in cards)
        what = f"not {model}" if model else "not one model"
        raise UserError(f"{url} serves {names}, {what}", "set served_name to one of its models")
    return matches[0]


async def _check(members: Sequence[Member], probe: Sequence[int], seconds: float) -> None:
    clients = [member.client for member in members]
    try:
        async with asyncio.timeout(seconds):
            for member in members:
                await member.card(member.client)
            different = await compare_weights(clients, probe)
            exact = [await has_processed_logprobs(client, probe) for client in clients]
    except (TransientFault, TimeoutError) as error:
        raise UserError(f"a server does not work: {error!r}", "see its log") from error
    except ServerFault as error:
        raise UserError(
            f"a server refuses token ids or log-probs: {error}", "see its log"
        ) from error
    if different:
        raise UserError(
            f"two servers have different weights: {different}", "load the same checkpoint on all"
        )
    if not all(exact):
        raise UserError(
            f"{clients[exact.index(False)].url} returns log-probs before temperature and top-p",
            "start vLLM with --logprobs-mode processed_logprobs",
        )
