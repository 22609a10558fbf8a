"""Columns of users' files: unread ones, ones with media, and ones that change the trained messages."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

FLAGS = (
    "weight", "train", "training", "trainable", "loss", "loss_mask", "step_loss_mask", "loss_scale", "loss_weight",
)  # fmt: skip
"""Keys of a message that say whether it is trained, in other frameworks: 1 or true, 0 or false."""
_TEXTS = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}
"""Flags as tables of texts have them."""
PARTIAL_FLAGS = ("train_detail", "masked", "prefix")
"""Keys of a message that train a part of it, or that have another meaning."""
_ROLES, _TOKENS = "only the assistant's messages are trained", "give texts or messages, not tokens"
_JUDGED = "replies that are not to be imitated cannot be trained"
ROW_KEYS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("weight", "sample_weight", "loss_weight", "loss_scale"), ((1,), "repeat rows instead")),
    **dict.fromkeys(("train_on_inputs", "train_on_input"), ((0,), _ROLES)),
    **dict.fromkeys(("mask_inputs", "mask_prompt", "output_with_loss"), ((1,), _ROLES)),
    "roles_to_train": ((["assistant"], ["gpt"]), _ROLES),
    "mask": (("user", "User", "human"), _ROLES),
    "mask_history": ((0,), "use targets=last"),
    "initial_reason_steps": ((), "append them to the prompt as a message"),
    **dict.fromkeys(("label", "kto_tag"), ((1,), _JUDGED)),
    **dict.fromkeys(
        ("chat_template_kwargs", "enable_thinking"), ((), "use engine.template_args for the whole file")
    ),
    **dict.fromkeys(
        ("input_ids", "assistant_masks", "completion_mask", "loss_mask", "token_weights"), ((), _TOKENS)
    ),
}  # fmt: skip
"""Columns that change what is trained: the values that mean what is trained anyway, and what to do instead."""
_MEDIA = re.compile(
    r"(image|picture|video|audio)s?(_(path|url|file|id)s?)?|objects|pixel_values|bbox", re.I
)
_PLACEHOLDER = re.compile(
    r"<image(?: ?\d+)?>|<\|(?:image|video|audio)(?:_pad|_\d+)?\|>|^<(?:video|audio)>|<(?:video|audio)>$",
    re.MULTILINE,
)
"""Place of media in a text. ``<video>`` and ``<audio>`` are also tags of HTML, mostly within a line or closed."""
_TEMPLATED = re.compile(
    r"\A\s*(?:(?:<s>|<\|begin_of_text\|>)\s*)?(?:\[INST\]|<\|(?:im_start|start_header_id|start|user|system)\|>"
    r"|<start_of_turn>|Human:(?=.*\n\nAssistant:))"
    r"|(?:<\|(?:im_end|eot_id|endoftext|end_of_text|end)\|>|<end_of_turn>|(?<!\S)</s>|(?<=[.!?])</s>)\s*\Z",
    re.DOTALL,
)
"""Beginning or end of a text that a chat template has already been applied to."""


class Columns(dict[str, Any]):
    """A row or message that records which of its values were read."""

    def __init__(self, values: Mapping[str, Any], ignored: Collection[str] = ()) -> None:
        # Ignored columns are dropped here, so that no reader sees them and none is reported as
        # unread.
        super().__init__({name: values[name] for name in values if name not in ignored})
        self.raw = values
        """The unchanged row, with ignored columns."""
        self.read = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    @property
    def unread(self) -> Iterator[str]:
        """Names of values that were not read, and ``COLUMN.KEY`` of messages in columns that were."""
        # The keys of messages are reported only if their column was read; else the column itself
        # is.
        for name, value in self.items():
            if name not in self.read:
                # Columns that only a conversion has added are not the user's.
                if not is_empty(value) and name in self.raw:
                    yield name
            elif isinstance(value, list):
                messages = [message for message in value if isinstance(message, Columns)]
                yield from (f"{name}.{key}" for message in messages for key in message.unread)


def peek(row: Mapping[str, Any], name: str) -> Any:
    """Return a value without recording that it was read."""
    # `dict.get` is not overridden, so this does not mark the column as read.
    return dict.get(row, name) if isinstance(row, Columns) else row.get(name)


def check_media(row: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` for a column or key that holds media."""
    for name, value in row.items():
        if _MEDIA.fullmatch(name) and not is_empty(value):
            raise ValueError(f"{where} has media in {name!r}, which are not read")


def check_text(text: str, where: str, *, is_shown: bool = True) -> None:
    """Raise ``ValueError`` for a text that is written in a chat template, or is shown and has a place of media."""
    if match := _TEMPLATED.search(text):
        token = match[0].strip()
        raise ValueError(f"{where} has {token!r} of a chat template; give its messages without it")
    # A tag that is closed later in the text is HTML about media and not a placeholder.
    for match in _PLACEHOLDER.finditer(text) if is_shown else ():
        if f"</{match[0][1:]}" not in text:
            raise ValueError(f"{where} has {match[0]}, a place of media, which are not read")


def check_training_keys(row: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a column that trains something else than coterie does."""
    for name in sorted(row.keys() & ROW_KEYS.keys()):
        value, (accepted, fix) = peek(row, name), ROW_KEYS[name]
        # Tables such as CSV hold the flags as texts.
        flag = _TEXTS.get(str(value).strip().lower(), value)
        is_class = name == "label" and flag not in (0, 1)  # of a text, not a judgment of a reply
        if is_empty(value) or is_class:
            continue
        if flag not in accepted:
            raise ValueError(f"it has {name}={row[name]!r:.40}; {fix}")
        row.get(name)  # is obeyed


def message_is_trained(message: Mapping[str, Any], role: str, number: int) -> bool:
    """Return whether the keys of a message let it be trained; True without such a key.

    Raises:
        ValueError: If a weight is not 0 or 1, keys disagree, a part is trained, or the role is not the assistant's.
    """
    # Parquet fills keys that a message does not have with null, so null is no flag.
    flags = {key: message[key] for key in FLAGS if key in message and message[key] is not None}
    listing = ", ".join(f"{key}={value!r}" for key, value in flags.items())
    if any(value not in (0, 1) for value in flags.values()) or len(set(flags.values())) > 1:
        raise ValueError(f"message {number} has {listing}; a message is trained (1) or not (0)")
    if any(flags.values()) and role != "assistant":
        raise ValueError(f"message {number} ({role}) has {listing}; {_ROLES}")
    for key in PARTIAL_FLAGS:
        if message.get(key):
            raise ValueError(f"message {number} has {key}={message[key]!r:.40}; {_ROLES}")
    return all(flags.values())


def is_empty(value: Any) -> bool:
    """Return True for a value that says nothing: ``None``, NaN, and an empty text, list or object."""
    if isinstance(value, float):
        # NaN, the empty cell of a numeric column, is the only float that differs from itself.
        return value != value
    return value is None or (isinstance(value, str | list | dict) and not value)
