"""Use of a run folder as the model of another run."""

from pathlib import Path

from coterie.errors import UserError
from coterie.models.loading import is_adapter
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe


def last_policy(folder: Path) -> str:
    """Return the weights of a run's newest policy, or its base model if no policy is trained.

    Raises ``UserError`` for a run whose policies are adapters.
    """
    with recorded_run(folder, recipe) as (source, run):
        path = source.policy_path(run, source.versions(run)[-1])
    if is_adapter(path):
        raise UserError(
            f"model={folder}: the last policy of this run is a LoRA adapter ({path}), and a run needs a full model",
            f"merge the adapter into {source.settings.model} (docs/howto/bring-your-own.md has the lines) "
            f"and give model=MERGED; to evaluate or serve {folder}, no merging is needed",
        )
    return str(path)
