"""Critics: a judge that compares replies, step critics that score them, corrections of actions, and likelihoods.

SWEET-RL (arXiv 2503.15478, equation 3): the advantage of a turn is the mean over its tokens of log pi_critic -
log pi_ref under the critic's own prompt, which may show more than the agent's (:class:`LikelihoodCritic`).

Optima (arXiv 2410.08115), equation 1: R_loss(tau) is the maximum over turns of the turn's mean token loss under the
initial base model (:func:`turn_losses`).

MOAT (arXiv 2509.09629): PPL(a | x, s) = exp(-(1 / |a|) sum_i log p(a_i | a_<i, x, s)), over exactly the tokens of the
right actions ``a`` with their end token (:func:`mean_loglikelihoods`).
"""

import asyncio
import math
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Literal, Protocol

from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import Engine, EngineError, LikelihoodModel, gather_or_cancel
from coterie.models.loading import LoadedModel
from coterie.models.prefix_trie import CostRule, Splitter
from coterie.record.rows import Segment, View

Chat = Callable[[list[Utterance]], Awaitable[str]]
"""Chat model: messages -> reply. Raises ``EngineError``."""
_LETTER = re.compile(r"\W*([ab])\W*", re.IGNORECASE)
_NAMED = re.compile(r"\b(?:reply|answer|option|verdict)(?:\W+is)?\W+([ab])\b", re.IGNORECASE)
_JUDGE_RULES = (
    "You compare two replies, A and B, that an assistant could send next in a conversation with a person. The "
    "assistant has not seen the reference solution.\n"
    "- The better reply brings the assistant closer to a solution that does what the reference does: it is a question "
    "about something that is still unknown, or an answer that is right.\n"
    "- Length and politeness do not count.\n"
    "- Reply with one letter and nothing else. If reply A is better, your message is:\nA\n"
    "If reply B is better, your message is:\nB"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """Task and dialogue that the replies could continue."""

    key: str
    """Task and turn id; together with the seed it determines the comparisons."""
    task: str
    reference: str = field(repr=False)
    """Privileged solution, which critics may see."""
    dialogue: Sequence[tuple[str, str]] = ()
    """(speaker, text) so far, oldest first."""


@dataclass(slots=True)
class Judge:
    """Compares replies with ``chat``, and counts comparisons."""

    chat: Chat
    opponents: int = 3
    """Number of next candidates in the circle that each is compared with (at least 1)."""
    seed: int = 0
    comparisons: int = 0
    unreadable: int = 0
    """Number of answers without one clear letter, which count as ties."""

    async def wins(self, situation: Situation, replies: Sequence[str]) -> list[float]:
        """Return the share of comparisons that each reply wins; a tie is half a win.

        Equal replies tie without a question to the model. A single reply has 0.5. Raises ``EngineError``.
        """
        pairs = self._pairs(situation.key, len(replies))
        sides = ((replies[a], replies[b]) for a, b in pairs)
        # If a comparison fails, no request of another one continues in the background.
        results = await gather_or_cancel(self._first_wins(situation, *both) for both in sides)
        won = [0.0] * len(replies)
        for (a, b), share in zip(pairs, results, strict=True):
            won[a] += share
            won[b] += 1 - share
        # Every reply is in equally many comparisons: with the next and with the previous
        # candidates.
        each = 2 * len(pairs) // max(len(replies), 1)
        return [share / each if each else 0.5 for share in won]

    def _pairs(self, key: str, count: int) -> list[tuple[int, int]]:
        # In a circle each reply is A as often as B, so that a judge's preference for a position
        # cancels. It is random, so that opponents do not depend on the order of sampling.
        circle = list(range(count))
        random.Random(f"{self.seed}/{key}").shuffle(circle)
        steps = range(1, min(self.opponents, count - 1) + 1)
        return [(circle[i], circle[(i + step) % count]) for step in steps for i in range(count)]

    async def _first_wins(self, situation: Situation, a: str, b: str) -> float:
        """Return 1 if A is better, 0 if B is, 0.5 for a tie."""
        if a == b:
            return 0.5
        self.comparisons += 1
        verdict = read_verdict(await self.chat(judge_question(situation, a, b)))
        self.unreadable += verdict is None
        return {"A": 1.0, "B": 0.0, None: 0.5}[verdict]


def judge_question(situation: Situation, a: str, b: str) -> list[Utterance]:
    """Build the prompt of one comparison."""
    dialogue = (
        "\n".join(f"{speaker}: {text}" for speaker, text in situation.dialogue) or "(nothing yet)"
    )
    blocks = {
        "Task": situation.task,
        "Reference solution": situation.reference,
        "Conversation so far": dialogue,
        "Reply A": a,
        "Reply B": b,
    }
    text = "\n\n".join(f"## {title}\n{block}" for title, block in blocks.items())
    return [
        Utterance("system", _JUDGE_RULES),
        Utterance("user", f"{text}\n\nWhich reply is better, A or B?"),
    ]


def read_verdict(answer: str) -> str | None:
    """Return ``A`` or ``B``: a letter alone on the first or last line, else the only reply named in the last line."""
    lines = [line for line in answer.splitlines() if line.strip()]
    # Models answer first and explain, or reason and then answer.
    ends = lines[:1] + lines[-1:]
    letters = {alone[1].upper() for line in ends if (alone := _LETTER.fullmatch(line))}
    if not letters:
        letters = {letter.upper() for line in lines[-1:] for letter in _NAMED.findall(line)}
    # Two different letters are no verdict.
    return letters.pop() if len(letters) == 1 else None


SCORED_TOKENS = 1 << 14
"""Maximum padded tokens of one forward pass of a :class:`HeadCritic`, unless one candidate needs more."""


class StepCritic(Protocol):
    """Scores candidates of one turn; only order and differences are meaningful."""

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return a score for each candidate after ``prompt``; higher is better. Raises ``EngineError``."""
        ...


@dataclass(eq=False)
class LikelihoodCritic:
    """Log-ratio of a language model trained as a critic (``DPO`` on trajectories) and its reference.

    ``tokens`` takes the mean over a candidate's tokens, ``none`` the sum.
    """

    critic: Engine
    reference: Engine
    reduction: Literal["tokens", "none"] = "tokens"

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return log-ratios in nats, with one pass over the prompt for each model."""
        # SWEET-RL, equation 3: log pi_critic - log pi_ref of each candidate, under the critic's
        # prompt.
        both = (engine.logprobs(prompt, candidates) for engine in (self.critic, self.reference))
        ours, reference = await asyncio.gather(*both)
        ratios = [
            sum(critic_logprobs) - sum(reference_logprobs)
            for critic_logprobs, reference_logprobs in zip(ours, reference, strict=True)
        ]
        # The sum favors long or short candidates; the paper takes the mean over tokens.
        if self.reduction == "tokens":
            lengths = map(len, candidates)
            ratios = [ratio / length for ratio, length in zip(ratios, lengths, strict=True)]
        return _checked(ratios)


@dataclass(eq=False)
class HeadCritic:
    """Model with a value head, in this process.

    ``mean`` is the mean value over a candidate's tokens (trained by ``Regression``), ``last`` the value at its last
    token (trained by ``Classifier``: the logit of success). With a ``rule``, shared prefixes are computed once.
    """

    loaded: LoadedModel
    pool: Literal["mean", "last"]
    rule: CostRule | None = None

    def __post_init__(self) -> None:
        from coterie.models.check import check  # torch takes seconds to import

        check(self.loaded.model)

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return pooled values. Raises ``EngineError`` for candidates that are empty or exceed the context."""
        if not prompt or not all(map(len, candidates)):
            raise EngineError("values need a prompt and candidates, none of them empty")
        sequences = [(*prompt, *candidate) for candidate in candidates]
        longest, limit = max(map(len, sequences), default=0), self.loaded.context_length
        if longest > limit:
            raise EngineError(f"context overflow: {longest} tokens, but the critic takes {limit}")
        start = len(prompt)
        # All candidates have the same prompt, which runs once in a trie, and tries are kept within
        # the budget of a pass.
        splitter = Splitter([[ids] for ids in sequences], self.rule, SCORED_TOKENS)
        scores = [0.0] * len(sequences)
        for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
            for index, value in zip(part, self._pooled(part, sequences, start), strict=True):
                scores[index] = value
        return _checked(scores)

    def _pooled(
        self, part: Sequence[int], sequences: Sequence[tuple[int, ...]], start: int
    ) -> list[float]:
        import torch

        from coterie.models.adapters import token_values

        chosen = [sequences[i] for i in part]
        # Pool over the candidate's own tokens only, not over the prompt.
        begin = start if self.pool == "mean" else -1
        positions = [range(len(ids))[begin:] for ids in chosen]
        with torch.inference_mode():
            values = token_values(self.loaded.model, chosen, positions, self.rule)
            return [float(value.mean()) for value in values]


def _checked(numbers: list[float]) -> list[float]:
    """Return the numbers; raise ``EngineError`` if one is not finite, since it would still sort somewhere."""
    if not all(map(math.isfinite, numbers)):
        raise EngineError(f"the critic's scores are not all numbers: {numbers}")
    return numbers


Verdict = Literal["accepted", "corrected", "rejected"]

ACCEPTED = "ACCEPT"
# Chat models decorate the lines (`**Corrected actions:**`), or write the text on the next line. The
# lookahead keeps a line without text from taking the next heading as its text.
_LINE = r"^[^\w\n]*corrected {}[^\w\n:]*:[^\w\n]*\n{{0,3}}(?!\W*corrected )(.+)$"
_SUBGOALS = re.compile(_LINE.format("subgoals"), re.IGNORECASE | re.MULTILINE)
_ACTIONS = re.compile(_LINE.format("actions"), re.IGNORECASE | re.MULTILINE)
# "I do not ACCEPT" is no acceptance.
_REFUSED = re.compile(rf"(\bnot|n't|\bcannot|\bnever)\s+{ACCEPTED}\b", re.IGNORECASE)
_CORRECTION_RULES = (
    "You check the actions that an agent wrote for the subgoals of a task.\n"
    f"- If carrying out the actions answers the task, reply with one word: {ACCEPTED}\n"
    "- Otherwise reply with two lines and nothing else:\n"
    "Corrected subgoals: Subgoal 1: ...; Subgoal 2: ...\n"
    "Corrected actions: R1 = Tool(...); R2 = Tool(...)\n"
    "- The actions may use these tools only."
)


@dataclass(frozen=True, slots=True)
class Correction:
    """Verdict of a critic, with its corrections."""

    verdict: Verdict
    subgoals: str = ""
    actions: str = ""


def correction_question(task: str, subgoals: str, actions: str, tools: str) -> list[Utterance]:
    blocks = {"Tools": tools, "Task": task, "Subgoals": subgoals, "Actions": actions or "(none)"}
    text = "\n\n".join(f"## {title}\n{block}" for title, block in blocks.items())
    return [Utterance("system", _CORRECTION_RULES), Utterance("user", text)]


def read_correction(reply: str) -> Correction:
    """Read a reply: both lines of a correction, or acceptance, and not both."""
    subgoals, actions = _SUBGOALS.findall(reply), _ACTIONS.findall(reply)
    # The word in capitals only: "acceptable" or "accept" occur in explanations.
    accepted = re.search(rf"\b{ACCEPTED}(ED)?\b", reply) and not _REFUSED.search(reply)
    if accepted and not subgoals and not actions:
        return Correction("accepted")
    if accepted or not (subgoals and actions):
        return Correction("rejected")
    # A critic that reasons first may write the lines several times; the last is its result.
    return Correction("corrected", subgoals[-1].strip(), actions[-1].strip())


async def turn_losses(engine: Engine, views: Iterable[View]) -> dict[str, float]:
    """Return the mean loss (nats a token) of each own turn of views; pass all of a tree, for its shared prefixes."""
    # Engines score tokens after a prompt of at least one token: the first of a segment. All
    # segments with this token are one call, in which the engine shares longer prefixes.
    beginnings: dict[int, list[Segment]] = {}
    for view in views:
        for segment in view.segments:
            beginnings.setdefault(segment.pieces[0].ids[0], []).append(segment)
    losses: dict[str, float] = {}
    for first_token, segments in beginnings.items():
        scores = await engine.logprobs([first_token], [segment.ids[1:] for segment in segments])
        for segment, logprobs in zip(segments, scores, strict=True):
            losses |= _of_turns(segment, logprobs)
    return losses


def _of_turns(segment: Segment, logprobs: list[float]) -> dict[str, float]:
    """Return the mean loss of each turn of a segment from the log-probs of all its tokens but the first."""
    # The first token has no log-prob, so all positions are shifted by one.
    losses, position = {}, -1
    for piece in segment.pieces:
        stop = position + len(piece.ids)
        if piece.turn is not None and piece.ids:
            # Only own turns have a loss; prompts are context.
            losses[piece.turn.id] = -sum(logprobs[position:stop]) / len(piece.ids)
        position = stop
    return losses


async def mean_loglikelihoods(
    model: LikelihoodModel, prompts: Sequence[tuple[int, ...]], target: Sequence[int]
) -> list[float]:
    """Return the mean log-probability (nats a token) of ``target`` after each prompt; their prefix is shared."""
    if not target:
        raise ValueError("an empty target has no likelihood")
    if not prompts:
        return []
    # `commonprefix` works on any sequences, despite its module.
    shared = len(commonprefix(prompts))  # noqa: RUF071
    rest = [[*prompt[shared:], *target] for prompt in prompts]
    scores = await model.logprobs(list(prompts[0][:shared]), rest)
    # Scores cover the rest of each prompt as well; only the target's tokens count.
    return [math.fsum(logprobs[-len(target) :]) / len(target) for logprobs in scores]


def perplexity(mean_loglikelihood: float) -> float:
    """Return the perplexity for a mean log-probability; infinity on overflow."""
    try:
        return math.exp(-mean_loglikelihood)
    except OverflowError:
        return math.inf
