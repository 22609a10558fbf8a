"""Environments by the name of their data set, and where its rows are read from."""

from coterie.config.settings import Settings, key
from coterie.datasets.local import checksum
from coterie.environments.debate import Debate
from coterie.environments.dialogue import DialogueEnvironment
from coterie.environments.exchange.environment import Exchange
from coterie.environments.information_exchange import Context, InformationExchange
from coterie.errors import UserError

NAMES = ("exchange", "hotpot_qa", "gsm8k")


class DataSettings(Settings):
    """Where the rows of a data set come from, and what of them is shown."""

    source: str = key(
        "prepared",
        "`prepared` (by `coterie data`), `sample` (the rows that ship with coterie), or a folder "
        "with train.jsonl and heldout.jsonl. Generated worlds need none.",
    )
    context: Context = key(
        "paragraph",
        "Of each paragraph of the context: all, or its first sentence only.",
        source="Optima's code: first_sentence (the supporting sentence is then often lost)",
    )


def content(name: str, data: DataSettings) -> str:
    """A hash of the rows of a data set; empty for a generated world, whose rows its seed makes."""
    return "" if name == "exchange" else checksum(name, data.source)


def environment(name: str, data: DataSettings | None = None) -> DialogueEnvironment:
    """The environment of the data set ``name``; raises :class:`UserError` if there is none."""
    data = data or DataSettings()
    if name == "exchange":
        return Exchange()
    if name == "hotpot_qa":
        return InformationExchange(name, data.source, data.context)
    if name == "gsm8k":
        return Debate(name, data.source)
    raise UserError(f"dataset={name!r} is not known", f"use one of: {', '.join(NAMES)}")
