"""PDDL games: an agent carries out actions of a domain until the goal of a problem is reached, as in AgentBoard.

    coterie evaluate pddl environment.domain=pddl/gripper.pddl policy=smollm2

Domains may have types, constants, negative preconditions and equality, but no quantifiers, conditional effects or
numbers. A message is one action, such as ``pick ball1 rooma left``. All state is in facts, so branches copy nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from coterie.config.folders import expanded
from coterie.config.settings import PathText, key
from coterie.datasets.catalogue import Split
from coterie.environments.acting import SOLVED, Acting, ActingSettings, observation
from coterie.environments.protocol import Grade, Pure, State, Transition
from coterie.environments.settings import draw_rows
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import digest

Fact = tuple[str, ...]
Facts = frozenset[Fact]
Literal = tuple[bool, Fact]
"""False for a negated fact, and the fact, possibly with variables."""
OBJECT = "object"
_TOKEN = re.compile(r"[()]|\??[^\s()?]+")
_UNKNOWN = re.compile(r"\((or|imply|forall|exists|when|increase|either|:functions|:derived)\b")


def parse(text: str) -> dict[str, list[Any]]:
    """Return the sections of a file by name. Raises ``ValueError``. Actions are at ``:action NAME``."""
    plain, stack = re.sub(r";[^\n]*", "", text).lower(), list[list[Any]]([[]])
    if unknown := _UNKNOWN.search(plain):
        raise ValueError(f"{unknown[1]} is not supported")
    for token in _TOKEN.findall(plain):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            inside = stack.pop()
            stack[-1].append(inside)
    if len(stack) != 1 or [item[:1] for item in stack[0]] != [["define"]]:
        raise ValueError("it is not one `(define ...)` with all its brackets")
    sections = [section for section in stack[0][0][1:] if section]
    return {" ".join(section[: 1 + (section[0] == ":action")]): section[1:] for section in sections}


def typed(words: Sequence[str]) -> dict[str, str]:
    """Return names with their types, from ``a b - type c``."""
    types: dict[str, str] = {}
    names, rest = list[str](), iter(words)
    for word in rest:
        if word == "-":
            types |= dict.fromkeys(names, next(rest, OBJECT))
            names = []
        else:
            names.append(word)
    return types | dict.fromkeys(names, OBJECT)


def literals(formula: Sequence[Any]) -> tuple[Literal, ...]:
    """Return the literals of a conjunction."""
    if formula[:1] == ["and"]:
        return tuple(literal for part in formula[1:] for literal in literals(part))
    if formula[:1] == ["not"]:
        if formula[1][:1] in (["and"], ["not"]):
            raise ValueError(f"not of {formula[1][0]} is not supported")
        return tuple((not true, fact) for true, fact in literals(formula[1]))
    if formula[:1] == ["="] and len(formula) != 3:
        raise ValueError("`=` needs two terms")
    return ((True, tuple(formula)),) if formula else ()


def hold(literals_: Sequence[Literal], facts: Facts) -> int:
    """Return how many literals hold."""
    return sum((f[1] == f[2] if f[0] == "=" else f in facts) is true for true, f in literals_)


def text_of(literals_: Sequence[Literal]) -> str:
    return ", ".join("not " * (not true) + " ".join(fact) for true, fact in literals_) or "nothing"


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a domain."""

    parameters: Mapping[str, str]
    """Types by variable."""
    needs: tuple[Literal, ...]
    effects: tuple[Literal, ...]


def bound(literals_: Sequence[Literal], values: Mapping[str, str]) -> list[Literal]:
    """Return the literals whose variables all have values."""
    substituted = [
        (true, tuple(values.get(word, word) for word in fact)) for true, fact in literals_
    ]
    return [literal for literal in substituted if not any(word[0] == "?" for word in literal[1])]


class TooManyActions(Exception):
    """A search for possible actions that would keep other dialogues waiting."""


@dataclass(frozen=True)
class Problem:
    """A problem and its domain."""

    actions: Mapping[str, Action]
    parents: Mapping[str, str]
    """Supertypes by type."""
    objects: Mapping[str, str]
    """Types by object."""
    start: Facts
    goal: tuple[Literal, ...]

    @classmethod
    def read(cls, domain: str, problem: str) -> "Problem":
        """Read the texts of two files. Raises ``ValueError``."""
        rules, sections = parse(domain), parse(problem)
        if rules.get("domain") != sections.get(":domain"):
            raise ValueError("it is a problem of another domain")
        actions = {}
        for name, (_, *rest) in rules.items():
            if name.startswith(":action "):
                parts = dict(zip(rest[::2], rest[1::2], strict=True))
                formulas = (parts.get(name, []) for name in (":precondition", ":effect"))
                parameters = typed(parts.get(":parameters", []))
                actions[name.split()[1]] = Action(parameters, *map(literals, formulas))
        objects = typed(rules.get(":constants", [])) | typed(sections.get(":objects", []))
        start = frozenset(
            fact for true, fact in literals(["and", *sections.get(":init", [])]) if true
        )
        goal = literals(["and", *sections.get(":goal", [])])
        if not actions or not goal:
            raise ValueError("there is no action or no goal")
        return cls(actions, typed(rules.get(":types", [])), objects, start, goal)

    def fits(self, name: str, kind: str) -> bool:
        """Return True if an object is of a type, or of one of its subtypes."""
        types = [self.objects[name]]
        while types[-1] in self.parents and self.parents[types[-1]] not in types:
            types.append(self.parents[types[-1]])
        return kind in (*types, OBJECT)

    def possible(
        self,
        name: str,
        facts: Facts,
        choices: Sequence[Sequence[str]],
        tries: Iterator[int],
        values: Fact = (),
    ) -> Iterator[Fact]:
        """Yield the values of an action's parameters, each of its ``choices``, with which it is possible.

        Raises :class:`TooManyActions` after the last of ``tries``.
        """
        action = self.actions[name]
        needs = bound(action.needs, dict(zip(action.parameters, values, strict=False)))
        if hold(needs, facts) < len(needs):
            return
        if len(values) == len(action.parameters):
            yield values
            return
        kind = list(action.parameters.values())[len(values)]
        for value in choices[len(values)]:
            if self.fits(value, kind):
                if next(tries, None) is None:
                    raise TooManyActions
                yield from self.possible(name, facts, choices, tries, (*values, value))

    def after(self, name: str, facts: Facts, values: Fact) -> Facts:
        action = self.actions[name]
        effects = bound(action.effects, dict(zip(action.parameters, values, strict=True)))
        lost = {fact for true, fact in effects if not true}
        return (facts - lost) | {fact for true, fact in effects if true}

    def progress(self, facts: Facts) -> float:
        return hold(self.goal, facts) / len(self.goal)


CHECK, LOOK = "check valid actions", "look around"
MAX_TRIES = 20_000
"""Maximum number of objects tried as parameters for one answer, which take about 0.1 s."""
TOO_MANY = "There are too many actions to list them. Write an action to see if it is possible."
IMPOSSIBLE = f"That is not possible now, so nothing changed. See `{CHECK}`."


class PDDLSettings(ActingSettings):
    """Settings of PDDL games."""

    domain: PathText = key("", "The domain's file (.pddl). It must be given.")
    problems: PathText = key("", "Folder of the problems (.pddl); by default the domain's name.")
    train: int = key(
        0,
        "Number of problems, the first ones by name, for training. The others are held out.",
        source="DensePolicy's code: 3",
        ge=0,
    )


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts that hold, the highest share of goal facts after an action, and the number of actions carried out."""

    facts: Facts
    best: float
    actions: int = 0


class PDDL(Pure, Acting):
    """Problems of one domain."""

    name = "pddl"
    settings_type = PDDLSettings
    max_sessions = Acting.max_sessions
    has_answers = False

    def __init__(self, settings: PDDLSettings) -> None:
        super().__init__(settings.steps)
        file = expanded(settings.domain)
        folder = expanded(settings.problems) if settings.problems else file.parent / file.stem
        paths = sorted(folder.glob("*.pddl"), key=lambda path: (len(path.stem), path.stem))
        if not file.is_file() or not paths:
            problem = (
                f"{folder} has no .pddl file" if file.is_file() else f"there is no domain {file}"
            )
            raise UserError(problem, "give environment.domain=FILE and environment.problems=FOLDER")
        self.problems: dict[str, Problem] = {}
        """Problems by the ids of their tasks."""
        for path in paths:
            try:
                texts = (path_.read_text("utf-8") for path_ in (file, path))
                self.problems[f"{file.stem}-{path.stem}"] = Problem.read(*texts)
            except RecursionError as error:
                problem = f"{path} with {file} nests formulas too deep"
                raise UserError(problem, "flatten nested `and` and `not`") from error
            except (ValueError, IndexError, TypeError) as error:
                problem = f"{path} with {file} can't be read: {error}"
                raise UserError(problem, "use STRIPS with types") from error
        self.train = settings.train
        self.version = (
            f"2 {digest(*map(repr, self.problems), *map(_content, self.problems.values()))[:12]}"
        )

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        ids = list(self.problems)
        every = ids[: self.train] if split == "train" else ids[self.train :]
        chosen = draw_rows(every, split, count, seed, previous_counts)
        return [Task(id_, {"content": _content(self.problems[id_])}) for id_ in chosen]

    def problem(self, task: Task) -> Problem:
        return self.problems[task.id]

    def system_prompt(self, task: Task) -> str:
        actions = "".join(
            f"{' '.join((name, *action.parameters))}: needs {text_of(action.needs)}; "
            f"effect: {text_of(action.effects)}\n"
            for name, action in self.problem(task).actions.items()
        )
        return (
            "Reach a goal by actions. Write an action's name and then its objects, in this order:\n"
            f"{actions}`{LOOK}` shows all facts, `{CHECK}` all actions that are possible now.\n"
            f"{self.form.action_instructions}"
        )

    def commands(self, task: Task) -> Sequence[str]:
        actions = self.problem(task).actions
        return (
            *(name + " {}" * len(action.parameters) for name, action in actions.items()),
            CHECK,
            LOOK,
        )

    async def begin(self, task: Task, session: Any) -> Transition:
        problem = self.problem(task)
        text = f"Goal: {text_of(problem.goal)}.\nFacts: {_listed(problem.start)}."
        return Transition(Situation(problem.start, 0.0), observation(text))

    async def do(self, state: State, action: str, session: Any) -> Transition:
        problem, situation = self.problem(state.task), _situation(state)
        words = re.findall(r"[\w-]+", action.lower())
        if words == LOOK.split():
            return Transition(situation, observation(f"Facts: {_listed(situation.facts)}."))
        if words == CHECK.split():
            sizes = {name: len(action_.parameters) for name, action_ in problem.actions.items()}
            objects, tries = list(problem.objects), iter(range(MAX_TRIES))
            try:
                possible = [
                    (name, *values)
                    for name, size in sizes.items()
                    for values in problem.possible(name, situation.facts, [objects] * size, tries)
                ]
            except TooManyActions:
                return Transition(situation, observation(TOO_MANY))
            return Transition(situation, observation(f"Possible: {_listed(possible)}."))
        name = next((word for word in words if word in problem.actions), None)
        if name is None:
            names = ", ".join(problem.actions)
            return Transition(
                situation, observation(f"There is no action `{action}`. Actions: {names}.")
            )
        values = tuple(word for word in words if word in problem.objects)
        fits = len(values) == len(problem.actions[name].parameters)
        choices = [[value] for value in values]
        if not fits or not [*problem.possible(name, situation.facts, choices, count())]:
            return Transition(situation, observation(IMPOSSIBLE))
        facts = problem.after(name, situation.facts, values)
        share = problem.progress(facts)
        # Goals that hold from the start count after the first change, as in AgentBoard.
        best = situation.best if facts == situation.facts else max(situation.best, share)
        next_situation = Situation(facts, best, situation.actions + 1)
        if share == 1:
            return Transition(next_situation, end=SOLVED)
        new, lost = _listed(facts - situation.facts), _listed(situation.facts - facts)
        return Transition(next_situation, observation(f"Now: {new}. No longer: {lost}."))

    async def grade(self, state: State, session: Any) -> Grade:
        """Score 1 if the goal is reached. ``progress`` is the highest share of goal facts, as in AgentBoard."""
        situation = _situation(state)
        return Grade(
            float(state.end == SOLVED), {"progress": situation.best, "actions": situation.actions}
        )


def _content(problem: Problem) -> str:
    """Hash what a problem says, so that equal ones under two names are found in both splits."""
    parts = (problem.actions, problem.parents, problem.objects, sorted(problem.start), problem.goal)
    return digest(*map(repr, parts))


def _listed(facts: Facts | Sequence[Fact]) -> str:
    return "; ".join(" ".join(fact) for fact in sorted(facts)) or "nothing"


def _situation(state: State) -> Situation:
    assert isinstance(state.data, Situation)
    return state.data
