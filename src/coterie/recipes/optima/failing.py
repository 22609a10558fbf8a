"""What a person is told when an iteration has nothing to train on."""

from coterie.errors import UserError
from coterie.recipes.optima.settings import DPORoundSettings, OptimaSettings


def nothing_selected(iteration: int, settings: OptimaSettings) -> UserError:
    """No dialogue is good enough to imitate."""
    return UserError(
        f"nothing was selected in iteration {iteration}: no dialogue has a reward of at "
        f"least select.threshold={settings.select.threshold}",
        "lower select.threshold with --fork FOLDER, or look at the rewards in the report",
    )


def nothing_to_compare(iteration: int, settings: DPORoundSettings) -> UserError:
    """No utterance has a sibling that is worse by enough."""
    s = settings.select
    return UserError(
        f"no pair was selected in iteration {iteration}: no utterance has a value above "
        f"dpo.select.theta_filter={s.theta_filter} and a sibling that is worse by "
        f"more than dpo.select.theta_diff={s.theta_diff}",
        "lower them with --fork FOLDER, or grow larger trees (dpo.search)",
    )
