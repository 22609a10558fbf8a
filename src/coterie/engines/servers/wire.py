"""The replies of an OpenAI-compatible server that takes and gives token ids, as we read them.

Unknown fields are ignored; what is missing or of a wrong type fails validation.
"""

from pydantic import BaseModel, Field


class PromptTokensDetails(BaseModel):
    """How much of a prompt the server did not have to read."""

    cached_tokens: int | None = None


class ReportedUsage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the server had in its prefix cache."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class Logprobs(BaseModel):
    """Log-probabilities of the sampled ids."""

    token_logprobs: list[float]


class Logprob(BaseModel):
    """One id's log-probability."""

    logprob: float


class ReportedChoice(BaseModel):
    """One completion."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


class CompletionReply(BaseModel):
    """``POST /v1/completions``."""

    model: str
    choices: list[ReportedChoice] = Field(min_length=1, max_length=1)
    usage: ReportedUsage


class ServedModel(BaseModel):
    """A model or adapter that a server serves."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ServedModels(BaseModel):
    """``GET /v1/models``."""

    data: list[ServedModel]


class CacheReset(BaseModel):
    """``POST /reset_prefix_cache``."""

    success: bool = True


class ErrorInfo(BaseModel):
    """What a server says of a request that it refuses."""

    message: str


class ErrorReply(BaseModel):
    """The body of a status of 400 and above."""

    error: ErrorInfo
