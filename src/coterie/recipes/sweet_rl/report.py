"""Report of a ``sweet_rl`` run: the pairs of dialogues and of turns that its models were trained on."""

from functools import partial

from coterie.environments.coding import CRITIC, with_reference
from coterie.recipes.plain_report import decoder, plain_report, selected_examples
from coterie.recipes.sweet_rl.data import FIRST, PRIVILEGED, SECOND
from coterie.recipes.sweet_rl.recipe import SweetRL
from coterie.record.rows import View, recontext, view
from coterie.record.tree import Selection, Tree
from coterie.reports.page import Report, Section
from coterie.runs.folder import Run, Step


def sweet_report(recipe: SweetRL, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    own = [_pairs(recipe, run, i) for i in (FIRST, SECOND) if run.is_finished(Step(i, "select"))]
    method = (("method", recipe.settings.method),)
    return plain_report(recipe, run, own, method)


def _pairs(recipe: SweetRL, run: Run, i: int) -> Section:
    least = recipe.settings.min_reward

    def see(tree: Tree, leaf: str, one: Selection) -> View:
        if recipe.context(i) is None:
            return view(tree, leaf, one.agent)
        render = partial(decoder(recipe)(one.agent).render, privileges=CRITIC)
        edit = with_reference(run.store.task(tree.task))
        return recontext(tree, leaf, one.agent, name=PRIVILEGED, edit=edit, render=render)

    if i == SECOND:
        who, title = "policy", "Turns that the policy was trained on"
        reason = (
            "Replies after the same turns. A pair: a reply of the upper half of the critic's advantages over one of "
            "the lower half."
        )
    else:
        who = "critic" if recipe.uses_critic else "policy"
        title = f"Dialogues that the {who} was trained on"
        reason = (
            f"A pair: the answer of the chosen dialogue passes a share of {least:g} or more of the tests, the other "
            "one does not."
        )
        if recipe.settings.method == "rejection_ft":
            reason = f"Selected: the answer passes a share of {least:g} or more of the tests."
    privileged = (
        ""
        if recipe.context(i) is None
        else "It sees the reference solution; the policy never does."
    )
    return Section(
        f"pairs-{i}",
        title,
        f"Marked tokens are trained into the {who}. {privileged}",
        examples=selected_examples(recipe, run, i, reason=reason, see=see),
    )  # fmt: skip
