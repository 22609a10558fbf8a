"""Replies of an OpenAI-compatible server with token ids.

Unknown fields are ignored; a missing field or wrong type fails validation.
"""

from pydantic import BaseModel, Field


class PromptTokensDetails(BaseModel):
    """Details of the prompt tokens."""

    cached_tokens: int | None = None


class ReportedUsage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the server's prefix cache."""
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
    """Model or adapter of a server."""

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
    """Error of a refused request."""

    message: str


class ErrorReply(BaseModel):
    """Body of a reply with a status of 400 or above."""

    error: ErrorInfo
