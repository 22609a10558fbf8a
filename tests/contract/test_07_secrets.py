"""Contract 7: a privileged field never becomes part of a prompt of a policy that may not see it."""

from functools import partial

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.record.rows import Edit, recontext, rows, view
from coterie.record.tree import Secret, Tree
from coterie.record.turn import Message, Part, PrivilegeError
from tests.helpers.recorded_dialogues import AGENTS, Played, opening_messages, play_exchange

GOLD = "heliotrope"
SECRET = Secret(GOLD, name="gold", readers=frozenset({"critic"}))
MINE = "zanzibar"


def talk(engine: InProcessEngine) -> Played:
    """A dialogue in which each turn has a part that only its speaker may see."""
    number = iter(range(100))

    def say(text: str) -> tuple[Part, ...]:
        agent = AGENTS[next(number) % 2]
        hidden = Part(f"{MINE}{agent}", audience=frozenset({agent}))
        return (Part(text, source="sampled"), hidden)

    return play_exchange(engine, lambda _: Sampling(max_tokens=12), turns=6, say=say)


def test_a_secret_redacts_itself() -> None:
    shown = f"{SECRET} {SECRET!r} {[SECRET]} {SECRET!s:>40}"
    assert GOLD not in shown


def test_only_its_readers_open_it() -> None:
    assert SECRET.reveal("critic") == GOLD
    with pytest.raises(PrivilegeError, match="Alice"):
        SECRET.part("Alice")


def test_rendering_a_secret_for_another_reader_is_refused(engine: InProcessEngine) -> None:
    message = Message("user", (Part("The answer: "), SECRET.part("critic")))
    render = engine.loaded.renderer.render
    tree = Tree("task", "rollout", 0)
    assert GOLD in engine.loaded.renderer.decode(render([message], tree, "critic"))
    with pytest.raises(PrivilegeError, match="secret:gold"):
        render([message], tree, "Alice")


def test_recontext_for_an_agent_refuses_it_too(engine: InProcessEngine) -> None:
    game = talk(engine)
    hint = Message("user", (SECRET.part("critic"),))
    with pytest.raises(PrivilegeError):
        recontext(
            game.tree, game.leaf, "Alice", name="leak", edit=lambda m: (*m, hint),
            render=engine.loaded.renderer.render,
        )  # fmt: skip


def test_a_critic_reads_the_secret_around_the_agents_turns_as_sampled(
    engine: InProcessEngine,
) -> None:
    game = play_exchange(engine, lambda _: Sampling(max_tokens=12), say=thinking_aloud)
    render = engine.loaded.renderer.render
    hint = Message("user", (Part("The answer: "), SECRET.part("critic")))
    with pytest.raises(PrivilegeError, match="secret:gold"):
        recontext(game.tree, game.leaf, "Alice", name="leak", edit=told(hint), render=render)
    critic = partial(render, privileges="critic")
    seen = recontext(game.tree, game.leaf, "Alice", name="critic", edit=told(hint), render=critic)
    said = [turn.ids for turn in game.tree.path(game.leaf) if turn.speaker.name == "Alice"]
    found = list(rows(seen))
    assert [row.ids[t.start : t.stop] for row in found for t in row.targets] == said
    assert all(GOLD in engine.loaded.renderer.decode(row.ids) for row in found)
    plain, same = (
        recontext(game.tree, game.leaf, "Alice", name="same", edit=lambda m: m, render=one)
        for one in (render, critic)
    )
    assert plain == same, "a critic sees all that the agent saw"


def thinking_aloud(text: str) -> tuple[Part, ...]:
    """What is sampled, half of it for the agents alone."""
    half = len(text) // 2
    return (
        Part(text[:half], source="sampled"),
        Part(text[half:], audience=frozenset(AGENTS), source="sampled"),
    )


def told(hint: Message) -> Edit:
    """A prompt with a hint in front."""
    return lambda messages: (hint, *messages)


def test_no_prompt_or_row_has_what_its_reader_may_not_see(engine: InProcessEngine) -> None:
    game = talk(engine)
    decode = engine.loaded.renderer.decode
    for agent, other in (AGENTS, AGENTS[::-1]):
        texts = [decode(prompt) for who, prompt, _ in game.calls if who == agent]
        texts += [decode(row.ids) for row in rows(view(game.tree, game.leaf, agent))]
        private = opening_messages(other)[0].parts[1].text
        for text in texts:
            assert GOLD not in text
            assert MINE + other not in text
            assert private not in text
        assert opening_messages(agent)[0].parts[1].text in texts[0]
