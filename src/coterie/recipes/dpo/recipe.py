"""Direct preference optimization (DPO, arXiv 2305.18290) on preferences of a file.

    evaluate   the base model replies to held-out prompts
    measure    its margins on held-out pairs
    train      -log sigmoid(beta (log-ratio of chosen - log-ratio of rejected))
    evaluate, measure   the trained model, on the same pairs

The reference is the base model.
"""

from collections.abc import Sequence
from math import exp, log1p

from coterie.datasets.conversations import Conversation, Preference
from coterie.engines.protocol import POLICY
from coterie.models.chat import ChatRenderer
from coterie.progress import Progress
from coterie.recipes.file_settings import DPOFileSettings
from coterie.recipes.file_training import MEASURE, FileTraining, target_logprobs
from coterie.recipes.trainings import prefer
from coterie.record.rows import Pair, Row
from coterie.record.tree import ItemKey, Metrics
from coterie.rollout.conversation_rows import preference_pair
from coterie.runs.folder import Run


class DPOOnFile(FileTraining):
    """Recipe of ``dpo``."""

    settings: DPOFileSettings
    row = Preference

    def _identity(self) -> tuple[object, ...]:
        return (self.settings.objective.fingerprint(),)

    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Pair]:
        return [preference_pair(renderer, conversation)]

    def rows_of(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    def train(self, run: Run, i: int, progress: Progress) -> Metrics:
        policy, s = self.models(run).load_to_train(POLICY, 0), self.settings
        own = self.seeded(s.train, i)
        return prefer(
            *(run, i, policy, self.training_items, s.objective, own, progress),
            role=POLICY,
            **self.measured_in_training(),
        )

    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Return loss, accuracy and margin of the implicit reward beta * log(p / p_base) on held-out pairs."""
        pairs = self.heldout_items
        rows = [row for pair in pairs for row in self.rows_of(pair)]
        sums = []
        for one in sorted({0, version}):
            engine = self.models(run).embedded(POLICY, one)
            sums.append(await target_logprobs(engine, rows, progress, f"held-out pairs {one}"))
        ratios = [sum(now) - sum(base) for base, now in zip(sums[0], sums[-1], strict=True)]
        margins, at = [], 0
        for pair in pairs:
            middle, stop = at + len(pair.chosen), at + len(self.rows_of(pair))
            beta, key = self.settings.objective.beta, ItemKey(version, MEASURE, pair.name)
            sides = {
                "chosen": beta * sum(ratios[at:middle]),
                "rejected": beta * sum(ratios[middle:stop]),
            }
            margins.append(sides["chosen"] - sides["rejected"])
            if not run.store.finished(key):
                run.store.finish(key, metrics=sides)
            at = stop
        return {
            "held out": len(pairs),
            "loss": sum(log1p(exp(-min(max(m, -30.0), 30.0))) for m in margins) / len(margins),
            "accuracy": sum(m > 0 for m in margins) / len(margins),
            "margin": sum(margins) / len(margins),
        }
