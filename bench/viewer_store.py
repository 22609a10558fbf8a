"""A large run folder for bench/viewer.py, written by the functions that write runs.

It is like a run of reinforcement learning: tasks with 8 rollouts of 10 turns of 60 tokens in one stage, with credit,
trained rows and reasons for leaving rollouts out. There are also a tree with values and pairs, and a turn of 32,000
tokens.
"""

import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coterie.recipes import registry
from coterie.record.rows import TrainedRow, Update
from coterie.record.store import Store
from coterie.record.tree import Credit, Ending, ItemKey, LeftOut, Outcome, Selection, Task, Tree
from coterie.record.turn import Message, Part, Request, Sample, Speaker, make_turn
from coterie.runs.run import new_run

AGENTS = ("Alice", "Bob")
ROLLOUTS, TURNS, TOKENS, STEPS, LONG = 8, 10, 60, 40, 32_000
FINGERPRINT = "0123456789abcdef"
"""Fingerprint of the settings that computed the credit."""
MARKER = " zebrafish"
"""Text of one turn, for a search."""


class StoreWriter:
    """Writes a large store by the functions that write runs."""

    def __init__(self, store: Store, tokenizer: Tokenizer, corpus: list[int]) -> None:
        self.store, self.tokenizer, self.corpus = store, tokenizer, corpus
        self.random, self.numbers = random.Random(0), np.random.default_rng(0)

    def ids(self, count: int) -> tuple[int, ...]:
        start = self.random.randrange(len(self.corpus) - count)
        return tuple(self.corpus[start : start + count])

    def add_turn(
        self, tree: Tree, node: str, agent: str, last: str | None, running: tuple[int, ...], ids: tuple[int, ...],
        prompt: tuple[int, ...], draw: int,
    ) -> str:  # fmt: skip
        """Add a turn, sampled from the agent's running tokens and new ones, and return its id."""
        logprobs = tuple((-self.numbers.exponential(0.5, len(ids))).tolist())
        message = Message.of("user", self.tokenizer.decode(prompt, skip_special_tokens=False))
        request = Request.make(agent, node, last, running + prompt, (message,), running)
        sample = Sample(request.id, ids, logprobs, "end", "policy", "0", draw, 1.0, 1.0)
        part = Part(self.tokenizer.decode(ids, skip_special_tokens=False), source="sampled")
        turn = make_turn(node, Speaker("agent", agent), [part], sample=sample, draw=draw)
        tree.add(turn, request)
        return turn.id

    def add_task(self, task: str) -> None:
        self.store.put_tasks([Task(task, {"question": self.tokenizer.decode(self.ids(40))})])

    def rollout(self, tree: Tree, number: int, *, with_marker: bool = False) -> str:
        """Add a dialogue of two agents, whose prompts contain each other's turns, and return its leaf."""
        node, last = tree.root, dict[str, str | None].fromkeys(AGENTS)
        running, new = dict.fromkeys(AGENTS, ()), self.ids(40)
        for position in range(TURNS):
            agent = AGENTS[position % 2]
            ids = self.ids(TOKENS)
            if with_marker and position == 4:
                ids = (*ids, *self.tokenizer.encode(MARKER).ids)
            node = self.add_turn(tree, node, agent, last[agent], running[agent], ids, new, number)
            last[agent], running[agent] = node, running[agent] + new + ids
            new = ids
        reason = Ending("turns", truncated=True) if number == 7 else Ending("agreed")
        tree.end(Outcome(node, number, reason, "42", float(self.random.random() < 0.5)))
        return node

    def row(self, origin: str, tokens: int, advantage: float) -> TrainedRow:
        """Return a row with the arrays that GRPO records."""
        logprob, entropy = (self.numbers.exponential(0.5, tokens) for _ in range(2))
        arrays = {
            "advantage": np.full(tokens, advantage), "logprob": -logprob, "reference": -logprob - 0.01,
            "entropy": entropy, "clipped": self.numbers.random(tokens) < 0.02,
        }  # fmt: skip
        return TrainedRow(origin, None, None, 1.0, tokens, {"loss": -advantage}, arrays=arrays)

    def reinforcement(self, tasks: int) -> None:
        """Write the rollouts of all tasks as one stage, and the steps that trained on them."""
        rows, left_out = list[TrainedRow](), list[LeftOut]()
        for index in range(tasks):
            task = f"train-0-{index:04d}"
            self.add_task(task)
            for number in range(ROLLOUTS):
                tree = Tree(task, "reinforce/00000", 0)
                leaf = self.rollout(tree, number, with_marker=(index, number) == (tasks // 2, 3))
                reward, advantage = tree.outcomes[leaf].score or 0.0, self.random.gauss(0, 1)
                values = {"total": reward, "term:task": reward, "advantage": advantage}
                credit = [
                    Credit(leaf, f"{n}:{a}", v, FINGERPRINT)
                    for n, v in values.items()
                    for a in AGENTS
                ]
                key = ItemKey(0, tree.stage, task, f"{number:04d}")
                metrics = {"tokens": TURNS * TOKENS, "turns": TURNS}
                self.store.finish(key, tree=tree, credit=credit, metrics=metrics)
                if index % 5 == 4:
                    left_out += [LeftOut(task, tree.root, "groups_equal", number=1.0)] * (
                        not number
                    )
                elif tree.outcomes[leaf].ending.truncated:
                    left_out.append(LeftOut(task, leaf, "paths_masked"))
                else:
                    rows += [
                        self.row(f"{leaf}/{a}/0", TURNS // 2 * TOKENS, advantage) for a in AGENTS
                    ]
        size = -(-len(rows) // STEPS)
        for step in range(STEPS):
            of_step = rows[step * size : (step + 1) * size]
            update = Update(0, "reinforce", "policy", step + 1, of_step, step)
            reasons = left_out[step::STEPS]
            metrics = {"reward": 0.5 + step / 100, "policy/loss": 0.1, "policy/entropy": 0.5}
            key = ItemKey(0, "reinforce", "", f"step-{step:05d}")
            self.store.finish(key, updates=[update], left_out=reasons, metrics=metrics)

    def search_tree(self, size: int) -> None:
        """Write a tree with values and pairs of siblings. A node has up to five children."""
        self.add_task("tree")
        tree, waiting = Tree("tree", "rollout", 0), list[tuple[str, str | None, tuple[int, ...]]]()
        waiting.append((tree.root, None, ()))
        pairs = list[tuple[str, str]]()
        while len(tree.turns) < size:
            node, last, running = waiting.pop(self.random.randrange(len(waiting)))
            prompt, children = self.ids(8), list[str]()
            for draw in range(self.random.choice((1, 1, 2, 3, 5))):
                ids = self.ids(16)
                children.append(
                    self.add_turn(tree, node, "solver", last, running, ids, prompt, draw)
                )
                waiting.append((children[-1], children[-1], running + prompt + ids))
            pairs += [(children[0], children[1])] if len(children) > 1 else []
        for number, leaf in enumerate(tree.leaves()):
            tree.end(Outcome(leaf.id, number, Ending("answered"), "42", self.random.random()))
        credit = [Credit(n, "value", self.random.random(), FINGERPRINT) for n in tree.turns]
        self.store.finish(
            ItemKey(0, "rollout", "tree"), tree=tree, credit=credit, metrics={"tokens": 16 * size}
        )
        pairs = pairs[: size // 20]
        selections = [Selection(chosen, "solver", rejected=rejected) for chosen, rejected in pairs]
        reasons = [
            LeftOut("tree", leaf.id, "small_margin", "solver", 0.1) for leaf in tree.leaves()[:500]
        ]
        self.store.finish(ItemKey(0, "select", "", ""), selections=selections, left_out=reasons)
        rows = [
            TrainedRow(f"{turn}/solver/0", turn, None, 1.0, 16, {"loss": 0.7, "margin": 0.0}, side, number)
            for number, pair in enumerate(pairs) for side, turn in zip(("chosen", "rejected"), pair, strict=True)
        ]  # fmt: skip
        self.store.put_update(Update(0, "train", "solver", 1, rows))

    def long_turn(self) -> None:
        self.add_task("long")
        tree = Tree("long", "long", 0)
        leaf = self.add_turn(tree, tree.root, "Alice", None, (), self.ids(LONG), self.ids(40), 0)
        tree.end(Outcome(leaf, 0, Ending("answered"), "42", 1.0))
        self.store.finish(ItemKey(0, "long", "long", "0000"), tree=tree)
        update = Update(0, "long", "policy", 1, [self.row(f"{leaf}/Alice/0", LONG, 1.0)])
        self.store.put_update(update)


def write_run(folder: Path, tasks: int, nodes: int) -> None:
    """Write a run folder with a large store and a tokenizer."""
    root = Path(__file__).parents[1]
    files = [
        str(file) for path in ("docs", "src") for file in sorted(root.glob(f"{path}/**/*.[mp][dy]"))
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=49152, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train(files, trainer)
    text = "".join(Path(file).read_text("utf-8") for file in files[::3])
    settings = registry.settings("rl/grpo", [])
    with new_run(folder, "rl/grpo", settings, "") as run:
        writer = StoreWriter(run.store, tokenizer, tokenizer.encode(text).ids)
        writer.reinforcement(tasks)
        if nodes:
            writer.search_tree(nodes)
            writer.long_turn()
        checkpoint = run.folder / "training" / "policy" / "iteration-00" / "final"
        checkpoint.mkdir(parents=True)
        tokenizer.save(str(checkpoint / "tokenizer.json"))
