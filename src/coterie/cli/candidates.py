"""Policies of ``coterie evaluate``: the model of each agent, from run folders and model names.

``policy=NAME`` plays all agents, ``policy.AGENT=NAME`` plays one of them. In a run with several roles, each agent is
played by its role, or by the main role if it has no role.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coterie.engines.protocol import POLICY
from coterie.engines.settings import EngineSettings, OptionValue
from coterie.environments.protocol import agents_of
from coterie.errors import UserError, did_you_mean
from coterie.models.loading import LoadedModel, load
from coterie.models.loading import resolve as resolve_model
from coterie.recipes.base import Recipe, recorded_run
from coterie.runs.benchmark import BenchmarkSettings
from coterie.runs.folder import Run

FOLDER = Path("runs/evaluations")
"""Folder for evaluations of models and endpoints. Evaluations of a run go into the run folder."""
AGENT_KEY = "policy."
"""Prefix of the key for the policy of one agent."""


@dataclass(frozen=True, slots=True)
class Player:
    """A model and the agents that it plays."""

    agents: tuple[str, ...]
    version: int
    base: str
    path: Path | str
    load: Callable[[], LoadedModel]
    template_args: Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model to evaluate, or several models that play together."""

    label: str
    version: int
    players: tuple[Player, ...]
    folder: Path

    def role(self, player: Player) -> str:
        """Return the name of a model as author of turns and in log files."""
        return POLICY if len(self.players) == 1 else "-".join(player.agents)


def split_agent_policies(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the policies of single agents by agent, and the other words."""
    own = [word for word in words if word.startswith(AGENT_KEY) and "=" in word]
    named = {word.removeprefix(AGENT_KEY).partition("=")[0]: word.partition("=")[2] for word in own}
    return named, [word for word in words if word not in own]


def agent_policies(
    settings: BenchmarkSettings, policy: str | None, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the name of each agent's policy. Raise ``UserError`` for a missing or unknown agent or policy."""
    agents = agents_of(settings.build_environment())
    for name in own:
        if name not in agents:
            raise UserError(
                f"{settings.played} has no agent {name!r}",
                f"{did_you_mean(name, agents)}its agents are {', '.join(agents)}",
            )
    missing = [agent for agent in agents if agent not in own]
    if missing and policy is None:
        what = f"no policy is given for {', '.join(missing)}" if own else "no policy is given"
        alternative = f", or {AGENT_KEY}{missing[0]}=NAME" if len(agents) > 1 else ""
        raise UserError(what, f"add policy=NAME (a run folder, model or server URL){alternative}")
    named = {agent: own.get(agent, policy or "") for agent in agents}
    for name in dict.fromkeys(named.values()):
        if not is_run(name):
            resolve_model(name)
    return named


def candidates(
    named: Mapping[str, str], engine: EngineSettings, *, every: bool
) -> Iterator[Candidate]:
    """Yield the candidates of named policies: the newest checkpoint of a run, or ``every`` checkpoint."""
    names = list(dict.fromkeys(named.values()))
    if every and (len(names) > 1 or not is_run(names[0])):
        raise UserError(
            f"--checkpoints all: {', '.join(names)} is not one run folder",
            "give one run folder as policy=",
        )
    with ExitStack() as runs:
        parts = []
        for name in names:
            agents = tuple(agent for agent, own in named.items() if own == name)
            before = f"{', '.join(agents)}: " * (len(names) > 1)
            if is_run(name):
                opened = recorded_run(Path(name), _words(engine))
                recipe, run = runs.enter_context(opened)
                part = [
                    (
                        f"{before}{Path(name).name} {version or 'base'}",
                        _of_run(recipe, run, version, agents),
                    )
                    for version in _versions(recipe, run, agents, every=every)
                ]
            else:
                part = [(f"{before}{name}", (_of_model(name, agents, engine),))]
            parts.append(part)
        own_folder = len(names) == 1 and is_run(names[0])
        folder = Path(names[0]) / "evaluations" if own_folder else FOLDER
        for choice in zip(*parts, strict=True):
            players = tuple(player for _, some in choice for player in some)
            newest = max(player.version for player in players)
            yield Candidate("; ".join(label for label, _ in choice), newest, players, folder)


def _words(engine: EngineSettings) -> list[str]:
    """Return settings that override a recorded run."""
    args = [f"engine.template_args={json.dumps(engine.template_args)}"]
    return [f"engine.device={engine.device}", *(args if engine.template_args else [])]


def is_run(name: str) -> bool:
    """Return True if a policy is a run folder."""
    return (Path(name) / "config.yaml").is_file()


def _versions(recipe: Recipe, run: Run, agents: Sequence[str], *, every: bool) -> list[int]:
    """Return all versions of the roles that play, or only the newest."""
    roles = {_role(recipe, agent) for agent in agents}
    versions = sorted({version for role in roles for version in recipe.versions(run, role)})
    return versions if every else versions[-1:]


def _of_run(recipe: Recipe, run: Run, version: int, agents: Sequence[str]) -> tuple[Player, ...]:
    models = {role.name: role.model for role in recipe.roles()}
    roles = dict.fromkeys(_role(recipe, agent) for agent in agents)
    players = []
    for role in roles:
        newest = recipe.newest(run, role, version)
        path = recipe.policy_path(run, newest, role)
        players.append(
            Player(
                tuple(agent for agent in agents if _role(recipe, agent) == role),
                newest,
                models[role],
                path if newest else resolve_model(path),
                partial(recipe.load_policy, run, newest, role),
                recipe.settings.engine.template_args,
            )
        )
    return tuple(players)


def _of_model(name: str, agents: tuple[str, ...], engine: EngineSettings) -> Player:
    source, args = resolve_model(name), engine.template_args
    own = partial(load, source, device=engine.device_name, template_args=args)
    return Player(agents, 0, source, source, own, args)


def _role(recipe: Recipe, agent: str) -> str:
    return recipe.players().get(agent, recipe.main_role)
