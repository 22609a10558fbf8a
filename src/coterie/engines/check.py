"""Before an engine first uses a model: are the log-probs of its steps those of the model's own pass?"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.engines.rows import DecodingRows
from coterie.errors import UserError
from coterie.models.check import CheckedModel
from coterie.models.context import context_length
from coterie.models.loading import LoadedModel

STEPS = 3
"""Last tokens of each row, which come one by one after the prompt."""
DO = "use the vLLM engine for this model"
Score = Callable[[Sequence[tuple[int, ...]], int], list[list[float]]]


def check_context(loaded: LoadedModel) -> None:
    """Refuse (``UserError``) a context in which a model's numbers would not hold."""
    max_length = context_length(loaded.model.config)
    if max_length is not None and loaded.context_length > max_length:
        raise UserError(
            f"sequences of up to {loaded.context_length} tokens are wanted of {loaded.source}, whose "
            f"numbers hold up to {max_length}",
            f"give context_length={max_length} or less",
        )


def check_steps(
    checked: CheckedModel, own: Sequence[Tensor], rows: DecodingRows, score: Score
) -> None:
    """Refuse (``UserError``) a model that reads, decodes or scores otherwise than its ``own`` pass does.

    Of ``rows`` none may be in use, and none is afterwards.
    """
    own = [one.cpu() for one in own]
    last = [one[-STEPS - 1 :] for one in own]
    checked.demand("when sampled with cached keys", lambda: _stepped(checked, rows), last, DO)
    checked.demand(
        "when scored by the engine",
        lambda: list(map(torch.tensor, score(checked.rows, 1))),
        own,
        DO,
    )


@torch.inference_mode()
def _stepped(checked: CheckedModel, rows: DecodingRows) -> list[Tensor]:
    """Log-probs of the last tokens of each row: of the first after a prompt, of the others step by step."""
    prompts = [row[: -STEPS - 1] for row in checked.rows]
    lasts = [row[-STEPS - 1 :] for row in checked.rows]
    logits, _ = rows.prefill(range(len(prompts)), prompts)
    steps = [logits]
    for step in range(STEPS):
        places = [len(prompt) + step for prompt in prompts]
        steps.append(rows.decode([last[step] for last in lasts], places))
    for row, ids in reversed(list(enumerate(checked.rows))):
        rows.leave(row, ids[:-1], row, len(ids) - 1)
    rows.forget()
    logprobs = torch.stack(steps).float().cpu().log_softmax(-1)
    return list(logprobs.gather(2, torch.tensor(lasts).T[..., None]).squeeze(2).T)
