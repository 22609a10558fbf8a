"""Supervised fine-tuning (SFT) on conversations of a file.

    evaluate   the base model replies to held-out prompts
    measure    its loss on held-out rows
    train      -log p of the assistant's tokens, mean over a batch
    evaluate, measure   the trained model, on the same rows

Rows that begin with the same tokens are packed into prefix tries, so shared prefixes are computed once.
"""

from collections.abc import Sequence

from coterie.datasets.conversations import Conversation
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import POLICY
from coterie.environments.conversation import PROBLEMS
from coterie.models.chat import ChatRenderer
from coterie.progress import Progress
from coterie.recipes.file_settings import SFTFileSettings
from coterie.recipes.file_training import FileTraining, target_logprobs
from coterie.recipes.trainings import train_role
from coterie.record.rows import Row
from coterie.record.tree import Metrics
from coterie.rollout.conversation_rows import conversation_rows
from coterie.runs.folder import Run


class SFTOnFile(FileTraining):
    """Recipe of ``sft``."""

    settings: SFTFileSettings
    row = Conversation

    def _identity(self) -> tuple[object, ...]:
        return (self.settings.targets,)

    def trains_on(self, row: type[QuestionRow]) -> bool:
        return row is Conversation or issubclass(row, PROBLEMS)

    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Row]:
        return conversation_rows(renderer, conversation, self.settings.targets)

    def rows_of(self, item: Row) -> Sequence[Row]:
        return (item,)

    def train(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Minimize the mean of -log p over the trained tokens."""
        policy = self.models(run).load_to_train(POLICY, 0)
        own = self.seeded(self.settings.train, i)
        return train_role(
            *(run, i, policy, self.training_items, own, progress),
            role=POLICY,
            **self.measured_in_training(),
        )

    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Return the mean loss of the assistant's tokens in held-out rows, in nats per token."""
        models = self.models(run)
        engine = models.embedded(POLICY, version)
        rows = self.heldout_items
        logprobs = await target_logprobs(engine, rows, progress, f"held-out loss {version}")
        return {
            "held out": len(rows),
            "loss": -sum(map(sum, logprobs)) / max(1, sum(map(len, logprobs))),
            "tokens": sum(map(len, logprobs)),
        }
