"""What the server answers: the bodies of replies, in the shapes of OpenAI's protocol and vLLM's."""

from typing import Literal

from pydantic import BaseModel


class TokenLogprobs(BaseModel):
    """Log-probs of sampled ids, in nats, of the distribution that they were drawn from."""

    tokens: list[str]
    """The text of each id by itself; bytes that are not text alone show as U+FFFD."""
    token_logprobs: list[float]


class CachedTokens(BaseModel):
    """Part of :class:`Usage`."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None


class PromptLogprob(BaseModel):
    """What is known of one prompt token."""

    logprob: float


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None
    """The stop string, or the id of ``stop_token_ids``, that ended it."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None


class CompletionResponse(BaseModel):
    """Reply of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class FunctionCalled(BaseModel):
    """What a call calls."""

    name: str
    arguments: str
    """JSON text."""


class CallReply(BaseModel):
    """A call that the model made."""

    index: int | None = None
    """Of a stream: its place."""
    id: str
    type: Literal["function"] = "function"
    function: FunctionCalled


ChatFinish = Literal["stop", "length", "tool_calls"]


class ChatReply(BaseModel):
    """The message that the model wrote."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """None where it only calls tools."""
    tool_calls: list[CallReply] | None = None


class ChatTokenLogprob(BaseModel):
    """One sampled id of a chat's reply."""

    token: str
    logprob: float
    bytes: list[int]
    """The text in UTF-8."""
    top_logprobs: list[str] = []


class ChatLogprobs(BaseModel):
    """Log-probs of a chat's reply."""

    content: list[ChatTokenLogprob]


class ChatChoice(BaseModel):
    """One reply."""

    index: int
    message: ChatReply
    finish_reason: ChatFinish
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: ChatLogprobs | None = None


class ChatResponse(BaseModel):
    """Reply of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class Delta(BaseModel):
    """What a piece of a stream adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallReply] | None = None


class ChunkChoice(BaseModel):
    """The one choice of a stream."""

    index: int = 0
    delta: Delta
    finish_reason: ChatFinish | None = None


class ChatChunk(BaseModel):
    """One piece of a streamed reply."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One model that can be asked for by name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["coterie"] = "coterie"
    root: str
    """Where its weights came from."""
    parent: str | None = None
    """Of an adapter: the model that it was loaded onto."""
    version: str
    """Of its weights; as given with the last load."""
    max_model_len: int


class ModelList(BaseModel):
    """Reply of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Loaded(BaseModel):
    """Reply to what loads or unloads weights."""

    model: str
    version: str


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    code: int
    param: str | None = None


class ErrorResponse(BaseModel):
    """Every reply with a status of 400 and above."""

    error: ErrorBody
