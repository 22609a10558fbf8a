"""A run folder as the model of another run: the last policy that it has trained."""

from pathlib import Path

from coterie.errors import UserError
from coterie.models.loading import is_adapter
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe


def last_policy(folder: Path) -> str:
    """The weights of a run's newest policy, or its base model if none is trained.

    Raises ``UserError`` for a run whose policies are adapters.
    """
    with recorded_run(folder, recipe) as (found, run):
        path = found.policy_path(run, found.versions(run)[-1])
    if is_adapter(path):
        raise UserError(
            f"model={folder}: the last policy of this run is a LoRA adapter ({path}), and a run starts "
            "from a whole model",
            f"merge the adapter into {found.settings.model} (docs/howto/bring-your-own.md has the lines) "
            f"and give model=MERGED; to evaluate or serve {folder}, no merging is needed",
        )
    return str(path)
