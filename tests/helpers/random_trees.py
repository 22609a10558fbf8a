"""Trees of random content and of one turn, and stores of them, for tests."""

import random

from coterie.record.store import Store
from coterie.record.tree import TURNS, Ending, ItemKey, Outcome, Tree, hash_of
from coterie.record.turn import (
    Message,
    Part,
    Request,
    Sample,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    make_turn,
)

PICTURE = b"\x89PNG, or what stands for it"
TEXTS = [
    "",
    "yes",
    "naïve café",
    "数学 是\u2028",
    "🤝🏽 family",
    '"quoted" \\ \n\t',
    "e\u0301\u0000x",
]
TOOLS = (
    Tool("search", "Finds é.", {"type": "object", "properties": {"q": {"type": "string"}}}),
    Tool("move", "Goes on.", {"type": "object"}, alone=True),
)
AUDIENCES = [None, frozenset({"Alice"}), frozenset({"Bob", "critic"})]
WORLD = Speaker("environment", "world")
AGENTS = [Speaker("agent", "Alice"), Speaker("agent", "Bob")]
SPEAKERS = [*AGENTS, Speaker("person", "user"), Speaker("tool", "search"), WORLD]


def episodes(seed: int, task: str, samples: int = 3) -> list[Tree]:
    return [_episode(seed, task, sample) for sample in range(samples)]


def random_tree(seed: int, task: str, samples: int = 3) -> Tree:
    first, *rest = episodes(seed, task, samples)
    for tree in rest:
        first.requests |= tree.requests
        first.images |= tree.images
        for turn in tree.turns.values():
            first.add(turn)
        for outcome in tree.outcomes.values():
            first.end(outcome)
    return first


def item_key(task: str, sample: int = 0) -> ItemKey:
    return ItemKey(0, "rollout", task, str(sample))


def fill_store(store: Store, tasks: int) -> None:
    """Finish three samples of each of so many tasks."""
    for number in range(tasks):
        for sample, tree in enumerate(episodes(number, f"t{number:03}")):
            store.finish(item_key(f"t{number:03}", sample), tree=tree)


def one_turn_tree(task: str, iteration: int = 0) -> Tree:
    tree = Tree(task, "rollout", iteration)
    turn = make_turn(tree.root, WORLD, [Part(task)], author="environment")
    tree.add(turn)
    tree.end(Outcome(turn.id, 0, Ending("agreed"), None, 1.0))
    return tree


def _episode(seed: int, task: str, sample: int) -> Tree:
    rng = random.Random(f"{seed}/{task}")
    tree = Tree(task, "rollout", 0)
    tree.add_image(PICTURE)
    node, shared = tree.root, rng.randint(0, 3)
    for depth in range(shared + 4):
        if depth == shared:
            rng = random.Random(f"{seed}/{task}/{sample}")
        speaker = rng.choice(SPEAKERS)
        draw = sample if depth >= shared else 0
        if speaker.kind == "agent":
            node = _speak(rng, tree, node, speaker, draw)
        else:
            turn = _observe(rng, node, speaker, draw)
            tree.add(turn)
            node = turn.id
    answer, ending = rng.choice([None, *TEXTS]), rng.choice([Ending("agreed"), TURNS])
    tree.end(Outcome(node, sample, ending, answer, rng.choice([None, rng.uniform(-9, 9)])))
    return tree


def _speak(rng: random.Random, tree: Tree, node: str, speaker: Speaker, draw: int) -> str:
    """Add a sampled turn with its request, a delta on the agent's previous one; its id."""
    own = [turn for turn in tree.path(node) if turn.speaker == speaker]
    prompt, messages = _ids(rng, 6), tuple(_message(rng) for _ in range(2))
    previous: Turn | None = own[-1] if own else None
    running: tuple[int, ...] = ()
    said: tuple[Message, ...] = ()
    if previous and previous.sample:
        before = tree.requests[previous.sample.request]
        said = (*tree.messages(before), Message("assistant", turn=previous.id))
        running = (*before.ids, *previous.ids)
        if rng.random() < 0.7:  # otherwise history is rewritten
            prompt, messages = running + prompt, said + messages
    tools, last = rng.choice([(), TOOLS]), previous.id if previous else None
    request = Request.make(speaker.name, node, last, prompt, messages, running, said, tools)
    ids = _ids(rng, 8)
    logprobs, finish = (
        tuple(rng.uniform(-9, 0) for _ in ids),
        rng.choice(["end", "stop_string", "length"]),
    )
    spans = (("3", 2), ("4", len(ids) - 2)) if len(ids) > 4 else ()
    behavior = (logprobs, finish, "policy", "4" if spans else "3", rng.getrandbits(64))
    sample = Sample(request.id, ids, *behavior, rng.choice([0.7, 1.0]), 0.95, spans)
    calls = tuple(
        ToolCall(f"c{i}", "search", '{"q": "é"}', rng.choice(["", "cut off"]))
        for i in range(rng.randint(0, 2))
    )
    parts = _parts(rng, span=(0, len(ids)))
    turn = make_turn(node, speaker, parts, sample=sample, calls=calls, draw=draw)
    tree.add(turn, request)
    return turn.id


def _observe(rng: random.Random, node: str, speaker: Speaker, draw: int) -> Turn:
    results = tuple(
        ToolResult(f"c{i}", rng.choice(TEXTS), rng.random() < 0.5) for i in range(rng.randint(0, 3))
    )
    ids = rng.choice([(), _ids(rng, 4)])
    return make_turn(
        node, speaker, _parts(rng), ids=ids, results=results, author=speaker.name, draw=draw
    )


def _parts(rng: random.Random, span: tuple[int, int] | None = None) -> list[Part]:
    sources = ["literal", "task:question", "turn:0"]
    return [
        Part(rng.choice(TEXTS), rng.choice(AUDIENCES), rng.choice(sources),
             rng.choice([None, hash_of(PICTURE)]), span)
        for _ in range(rng.randint(0, 3))
    ]  # fmt: skip


def _message(rng: random.Random) -> Message:
    return Message(rng.choice(["system", "user", "tool"]), tuple(_parts(rng)))


def _ids(rng: random.Random, most: int) -> tuple[int, ...]:
    return tuple(rng.randrange(2**31) for _ in range(rng.randint(1, most)))
