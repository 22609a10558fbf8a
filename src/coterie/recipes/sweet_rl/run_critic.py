"""Critic of a finished run, used to pick the best of several candidates of any policy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coterie.environments.coding import CRITIC
from coterie.errors import UserError
from coterie.recipes.description import OpenCritic
from coterie.recipes.sweet_rl.data import FIRST, SECOND
from coterie.recipes.sweet_rl.recipe import SweetRL, TrainedCritic, open_critic
from coterie.runs.folder import Run, Step
from coterie.training.checkpoint import weight_hash


@dataclass(frozen=True, slots=True)
class SweetCritic:
    """The critic trained in round 0, or the judge."""

    recipe: SweetRL

    def fingerprint(self, run: Run) -> str:
        """Hash of the settings and weights that the scores depend on."""
        self._check(run)
        settings = self.recipe.fingerprint(Step(SECOND, "reward"))
        if self.recipe.settings.critic.kind == "judge":
            return settings
        return f"{settings} {weight_hash(run.training_folder(FIRST, CRITIC) / 'final')}"

    @asynccontextmanager
    async def open(self, run: Run) -> AsyncIterator[OpenCritic]:
        self._check(run)
        async with open_critic(self.recipe, run) as critic:
            renderer = critic.model.renderer if isinstance(critic, TrainedCritic) else None
            yield OpenCritic(renderer, critic.advantages)

    def _check(self, run: Run) -> None:
        trained = (run.training_folder(FIRST, CRITIC) / "final").is_dir()
        if not trained and self.recipe.settings.critic.kind != "judge":
            raise UserError(
                f"the critic of {run.folder} is not trained",
                f"train it with: coterie train {run.folder}",
            )


def sweet_critic(recipe: SweetRL) -> SweetCritic | None:
    """Return the critic of a recipe's runs; ``None`` for methods without one."""
    return SweetCritic(recipe) if recipe.settings.method == "sweet" else None
