"""Requests as types: what may be asked, with limits.

In: JSON. Out: ChatRequest or CompletionRequest, or everything that is wrong with it. Types are strict: "1" is no
number. Names and meanings are those of OpenAI's API reference; `top_k`, `ignore_eos` and `chat_template_kwargs` are
vLLM's.

>>> ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).limit is None
True
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from msparallel.serve.api_error import refuse
from msparallel.serve.api_neutral import without_neutral

MOST_STOPS, MOST_STOP_CHARACTERS = 16, 256
MOST_TOKENS = 2**31 - 1


def _unicode(text: str) -> str:
    """JSON may spell half of a surrogate pair, which no UTF-8 and no tokenizer has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("It holds half of a surrogate pair, so it is not Unicode text") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]
Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS), AfterValidator(_unicode)]
TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
# Lists fail with their first wrong item: a body of megabytes would else have a problem for each, of each type.
_TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_T = TypeVar("_T")
_Few = Annotated[list[_T], Field(max_length=1000, fail_fast=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True,
                              protected_namespaces=())  # fmt: skip


class StreamOptions(_Strict):
    """With `stream` only."""

    include_usage: bool = False
    """One more event, before [DONE], with the numbers of tokens."""
    include_obfuscation: bool = False
    """Accepted; events are not padded."""


class _Request(_Strict):
    model: str
    """As /v1/models names it."""
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    """Tokens of the answer at most."""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    """0 takes the likeliest token. Left out: what the model's generation_config.json says, else 1."""
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Fewest tokens whose probabilities add up to it. Left out: as for temperature."""
    top_k: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = None
    """Likeliest tokens among which one is drawn; 0 or -1: all. Left out: as for temperature."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """The same seed and request give the same answer. Left out: a new one each time."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    """Texts that end the answer and are not part of it."""
    stream: bool | None = None
    """Answer as server-sent events."""
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    """Go on behind the end token, up to max_tokens: for measurements."""
    user: str | None = None
    """Accepted; the server makes nothing of it."""

    @model_validator(mode="before")
    @classmethod
    def _neutral(cls, value: Any) -> Any:
        return without_neutral(value) if isinstance(value, dict) else value

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as texts."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Raises ApiError for stream_options without stream."""
        if self.stream_options is not None and not self.stream:
            raise refuse("stream_options is only for stream: true.", param="stream_options")
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(_Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: Text


class ChatMessage(_Strict):
    """One message. `developer` is told to the template as `system`, the older name for it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True)]
    """A text; of several, each begins on a new line."""
    name: Text | None = None
    """For templates that read it."""

    def for_template(self) -> dict[str, str]:
        """As templates read it."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content} | ({} if self.name is None else {"name": self.name})


class ChatRequest(_Request):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    """The newer name of max_tokens. Both left out: as many as there is room for."""
    logprobs: bool | None = None
    """Tell the log probability of every token."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """And of so many of the likeliest at each place; needs logprobs."""
    chat_template_kwargs: dict[str, bool | int | float | Text | None] | None = None
    """Options of the model's template, such as Qwen3's {"enable_thinking": false}."""

    @property
    def limit(self) -> int | None:
        """Tokens of the answer, None where nothing is said. Raises ApiError for two different limits."""
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise refuse(f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}: "
                         "two names for one limit; give one.", param="max_tokens")  # fmt: skip
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """As Sampling.logprobs. Raises ApiError for top_logprobs without logprobs."""
        if self.top_logprobs is not None and not self.logprobs:
            raise refuse("top_logprobs needs logprobs: true.", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Request):
    """POST /v1/completions"""

    prompt: Text | _TokenIds | _Few[Text] | _Few[_TokenIds]
    """A text or token ids, or a list with one of them."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """Tell the log probability of every token, and of so many of the likeliest at each place."""

    @property
    def limit(self) -> int:
        """OpenAI's default for this endpoint is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def one_prompt(self) -> str | list[int]:
        """Raises ApiError for several prompts, or none."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) != 1:
                raise refuse(f"prompt holds {len(prompt)} prompts; this server takes one a request and runs many "
                             "requests at once.", param="prompt")  # fmt: skip
            prompt = prompt[0]
        if not prompt:
            raise refuse("prompt is empty; it needs at least one token.", param="prompt")
        return prompt  # type: ignore[return-value] - lists of lists were taken apart
