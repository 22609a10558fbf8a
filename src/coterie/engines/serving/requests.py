"""What a client may ask of the server: the bodies of requests, checked.

Parameters of the OpenAI protocol that the engine has nothing for are taken at the value at which
they do nothing (``presence_penalty: 0``), so that clients which always send them work; any other
value, and any unknown parameter, is refused rather than silently ignored.
"""

import secrets
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.config.text import whole
from coterie.engines.protocol import Sampling
from coterie.trajectories.calls import Tool

COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that does not say, as in OpenAI's protocol."""

Stop = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[int], Field(min_length=1)]


class RequestBody(BaseModel):
    """A body in which nothing is unknown, and all text is text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, values: Any) -> Any:
        if isinstance(values, bytes):
            raise ValueError("the body was not sent as JSON: say Content-Type: application/json")
        return whole(values)


class SamplingRequest(RequestBody):
    """What completions and chats share."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (1,),
        "frequency_penalty": (0,),
        "ignore_eos": (False,),
        "logit_bias": ({},),
        "min_p": (0,),
        "min_tokens": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "top_k": (0, -1),
    }
    """Parameters without an effect here, and the values at which they have none anywhere."""

    model: str
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    """The first choice's; the others have the ones after it. Without: a random one."""
    n: int = Field(1, ge=1, le=256)
    stop: Stop | list[Stop] | None = None
    stop_token_ids: list[int] | None = None
    """Only ids that end a turn of this model anyway."""
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    stream: bool = False
    user: str | None = None
    """Taken and not used."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, accepted in cls.neutral.items():
            if values.get(name) is not None and values[name] not in accepted:
                raise ValueError(f"{name}={values[name]!r} is not supported here; leave it out")
        return {k: v for k, v in values.items() if v is not None and k not in cls.neutral}

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def seeds(self) -> list[int]:
        """One per choice."""
        first = secrets.randbits(31) if self.seed is None else self.seed
        return [first + index for index in range(self.n)]

    def sampling(self, max_tokens: int, timeout: float) -> Sampling:
        """The engine's settings for that many tokens."""
        return Sampling(self.temperature, self.top_p, max_tokens, self.stops, timeout)


class CompletionRequest(SamplingRequest):
    """Body of ``POST /v1/completions``. A list of prompts gives ``n`` choices of each, in order."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingRequest.neutral,
        "add_special_tokens": (True,),
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: str | Ids | Annotated[list[str] | list[Ids], Field(min_length=1)]
    max_tokens: int = Field(COMPLETION_TOKENS, ge=0)
    """0 only with ``prompt_logprobs``: the prompt is scored and nothing is sampled."""
    logprobs: Literal[0] | None = None
    """0: log-probs of the ids that were sampled. Those of others are not to be had."""
    prompt_logprobs: Literal[0] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ValueError("max_tokens is 0, and no prompt_logprobs are wanted")
        if self.stream:
            raise ValueError("stream is only supported by /v1/chat/completions; leave it out")
        return self

    def prompts(self) -> list[str] | list[list[int]]:
        """Each prompt, as text or ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TextPart(RequestBody):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(RequestBody):
    """What a call calls."""

    name: str
    arguments: str
    """JSON text."""


class CallMade(RequestBody):
    """A call in a message of the model's."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """Taken and not used: what a stream's pieces have."""


class ChatMessage(RequestBody):
    """One message of a chat; models here read text only."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    tool_calls: list[CallMade] = []
    tool_call_id: str | None = None
    name: str | None = None
    """Taken and not used: a call names its tool."""

    @model_validator(mode="before")
    @classmethod
    def _drop_none(cls, values: Any) -> Any:
        """Clients send back what they were given, with what is not there as null."""
        if not isinstance(values, dict):
            return values
        found = {key: value for key, value in values.items() if value is not None}
        if "content" in found or found.get("tool_calls"):
            return found
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "content" not in self.model_fields_set and not self.tool_calls:
            raise ValueError("a message needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only messages of the assistant have tool_calls")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("messages of role tool, and no others, have a tool_call_id")
        return self

    @property
    def text(self) -> str:
        """All of its text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class FunctionOffered(RequestBody):
    """A function that the model may call."""

    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool = False
    """Taken and not used: arguments are as the model writes them."""


class ToolOffered(RequestBody):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionOffered


class StreamOptions(RequestBody):
    """What a stream also tells."""

    include_usage: bool = False


class ChatRequest(SamplingRequest):
    """Body of ``POST /v1/chat/completions``."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingRequest.neutral,
        "metadata": ({},),
        "response_format": ({"type": "text"},),
        "top_logprobs": (0,),
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    """Default: as many as the context has room for."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of ``max_tokens``."""
    logprobs: bool = False
    stream_options: StreamOptions = StreamOptions()
    tools: list[ToolOffered] = []
    tool_choice: Literal["none", "auto"] = "auto"
    """``none``: the model is not shown the tools. It can't be made to call one."""
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stream and (self.n > 1 or self.logprobs or self.return_token_ids):
            raise ValueError("a stream has one choice and its text only: no n, logprobs, token ids")
        names = [one.function.name for one in self.tools]
        if len({*names}) < len(names):
            raise ValueError("two tools have the same name")
        if self.tools and not self.parallel_tool_calls:
            raise ValueError(
                "a model can't be held to one call at a time: leave out parallel_tool_calls=false"
            )
        if not self.offered and any(m.tool_calls or m.role == "tool" for m in self.messages):
            raise ValueError("there are calls of tools in the messages: give these tools, too")
        return self

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is shown."""
        found = [one.function for one in self.tools if self.tool_choice == "auto"]
        return tuple(Tool(one.name, one.description, one.parameters) for one in found)


class CheckpointRequest(RequestBody):
    """Body of ``POST /load_checkpoint``."""

    path: str
    version: str


class AdapterRequest(RequestBody):
    """Body of ``POST /v1/load_lora_adapter``."""

    lora_name: str = Field(min_length=1)
    lora_path: str


class AdapterRemoval(RequestBody):
    """Body of ``POST /v1/unload_lora_adapter``."""

    lora_name: str
