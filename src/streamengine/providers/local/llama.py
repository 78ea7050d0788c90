"""The real model: a GGUF file, run by ik-llama-cpp-python through its C interface.

The only module that touches the engine. Its own Python loop is not used: it makes a whole answer
before it gives any of it, and fills 49 152 candidates one by one for each token. Its chat format is
that of another family of models.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, final

from .errors import LocalModelError
from .files import INSTALL, REINSTALL
from .generation import PROMPT_STEP_TOKENS
from .model import LanguageModel, ModelContext, Sampling
from .prompt import BEGIN

THREADS: Final = 1
"""One is the fastest that is always good. The engine's threads wait for each other in busy loops:
on two cores of which one has something else to do, two threads make 6 tokens a second, one makes
about 100.
"""

_ERROR_LEVEL: Final = 4  # of the engine's log
_ERROR_PREFIX: Final = "llama_model_load: error loading model: "
_PIECE_BYTES: Final = 256  # more than the longest token of the packaged model

_log_callback_type: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def load_model(path: Path, *, context_tokens: int) -> LanguageModel:
    """Load a model; takes some 150 ms. Raises LocalModelError ("model_unusable")."""
    try:
        api: Any = importlib.import_module("ik_llama_cpp._ctypes_api")
        numpy: Any = importlib.import_module("numpy")
    except (ImportError, OSError) as error:
        raise LocalModelError(
            "model_unusable", f"the engine of the local model can't be loaded ({error})", INSTALL
        ) from error
    _take_log(api)
    _bind(api)
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.use_mmap = True
    _errors.clear()
    _table.take(_MODEL_PLACES)
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        # Its places are not given back: the engine keeps some of them after a failure.
        why = _errors[0].removeprefix(_ERROR_PREFIX) if _errors else "the engine gives no reason"
        raise LocalModelError("model_unusable", f"{path} can't be loaded: {why}", REINSTALL)
    return LlamaModel(api, numpy, model, context_tokens)


# ---- the engine's table


_TABLE_PLACES: Final = 60
_MODEL_PLACES: Final = 1
_CONTEXT_PLACES: Final = 2


@final
class _Table:
    """The engine keeps what it has in a table of 64 places for the whole process, and doesn't look
    whether one is free: it crashes. So the places are counted here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_places = _TABLE_PLACES

    def take(self, places: int) -> None:
        with self._lock:
            if self._free_places < places:
                raise LocalModelError(
                    "model_failed",
                    "this process has as many local models and lanes as the engine can keep",
                    "Close a provider, or use fewer lanes.",
                )
            self._free_places -= places

    def give_back(self, places: int) -> None:
        with self._lock:
            self._free_places += places


_table: Final = _Table()


# ---- the engine's log


_errors: deque[str] = deque(maxlen=8)


def _note(level: int, text: bytes | None, _data: object) -> None:
    if level >= _ERROR_LEVEL and text:
        _errors.append(text.decode(errors="replace").strip())


# Held for as long as the process: the engine has its address.
_note_callback: Final = _log_callback_type(_note)


def _take_log(api: Any) -> None:
    """Hundreds of lines on stderr otherwise. The switch is the engine's own and process-wide."""
    set_log = api._lib.llama_log_set
    set_log.argtypes = [_log_callback_type, ctypes.c_void_p]
    set_log.restype = None
    set_log(_note_callback, None)


def _bind(api: Any) -> None:
    """What the Python package leaves out of its bindings."""
    remove = api._lib.llama_kv_cache_seq_rm
    remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
    remove.restype = ctypes.c_bool


# ---- model and context


@final
class LlamaModel:
    """See LanguageModel. Freed by `close`, or when nothing refers to it any more."""

    def __init__(self, api: Any, numpy: Any, handle: int, context_tokens: int) -> None:
        self._api = api
        self._numpy = numpy
        self._handle = handle
        self._context_tokens = context_tokens
        self._vocabulary_size: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(handle))
        self._contexts: list[int] = []
        self._piece = ctypes.create_string_buffer(_PIECE_BYTES)
        self._freed = weakref.finalize(self, _free, api, handle, self._contexts)
        # At the exit of the process the thread may still be in the engine.
        self._freed.atexit = False
        self._begin = self.marker(BEGIN)

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    def tokens_of(self, text: str) -> list[int]:
        return self._tokenize(text, with_markers=False)

    def marker(self, text: str) -> int:
        tokens = self._tokenize(text, with_markers=True)
        if len(tokens) != 1:
            raise LocalModelError(
                "model_unusable",
                f"the model doesn't know the marker {text}: it isn't one for ChatML",
                "Give the file of a model that is.",
            )
        return tokens[0]

    def _tokenize(self, text: str, *, with_markers: bool) -> list[int]:
        # Half of a character that was cut in two has no UTF-8.
        data = text.encode(errors="replace")
        tokenize = self._api.llama_tokenize
        room = len(data)
        buffer = (self._api.llama_token * room)()
        count = tokenize(self._handle, data, len(data), buffer, room, False, with_markers)
        if count < 0:
            raise LocalModelError("model_failed", "the text has too many tokens", "Shorten it.")
        return list(buffer[:count])

    def bytes_of(self, token: int) -> bytes:
        size = self._api.llama_token_to_piece(
            self._handle, token, self._piece, len(self._piece), 0, False
        )
        if size < 0:
            self._piece = ctypes.create_string_buffer(-size)
            return self.bytes_of(token)
        return self._piece.raw[:size]

    def is_end(self, token: int) -> bool:
        # The beginning of another message is the end of this one.
        return token == self._begin or bool(self._api.llama_token_is_eog(self._handle, token))

    def new_context(self) -> ModelContext:
        api = self._api
        params = api.llama_context_default_params()
        params.n_ctx = self._context_tokens
        params.n_batch = params.n_ubatch = PROMPT_STEP_TOKENS
        params.n_threads = params.n_threads_batch = THREADS
        # The engine's own fails on longer prompts where the processor has no AVX-VNNI.
        params.flash_attn = False
        _table.take(_CONTEXT_PLACES)
        handle = api.llama_init_from_model(self._handle, params)
        if not handle:
            raise LocalModelError(
                "model_failed",
                f"there is no memory for a context of {self._context_tokens} tokens",
                "Use fewer lanes or a smaller context.",
            )
        self._contexts.append(handle)
        return LlamaContext(api, self._numpy, handle, self._vocabulary_size, self)

    def close(self) -> None:
        self._freed()


def _free(api: Any, model: int, contexts: list[int]) -> None:
    for context in contexts:
        api.llama_free(context)
    api.llama_free_model(model)
    _table.give_back(_MODEL_PLACES + _CONTEXT_PLACES * len(contexts))


@final
class LlamaContext:
    """See ModelContext."""

    def __init__(
        self, api: Any, numpy: Any, handle: int, vocabulary_size: int, model: LlamaModel
    ) -> None:
        self._api = api
        self._numpy = numpy
        self._handle = handle
        self._shape = (vocabulary_size,)
        self._model = model  # which frees this with itself, and so must outlive it

    def keep(self, count: int) -> None:
        if not self._api._lib.llama_kv_cache_seq_rm(self._handle, 0, count, -1):
            raise _failed("forget")

    def read(self, tokens: Sequence[int], position: int) -> None:
        api = self._api
        batch = api.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = i == len(tokens) - 1
            if api.llama_decode(self._handle, batch) != 0:
                raise _failed("read on")
        finally:
            api.llama_batch_free(batch)

    def next_token(self, sampling: Sampling, random: Random, said: Sequence[int]) -> int:
        np = self._numpy
        logits = np.ctypeslib.as_array(
            self._api.llama_get_logits_ith(self._handle, -1), shape=self._shape
        ).copy()
        for token in set(said[-sampling.repeat_window_tokens :]):
            factor = sampling.repeat_penalty
            logits[token] *= 1 / factor if logits[token] > 0 else factor
        likely = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
        likely = likely[np.argsort(-logits[likely])]
        if not said:
            likely = np.array([t for t in likely if not self._model.is_end(int(t))])
        if sampling.temperature == 0:
            return int(likely[0])
        scaled = logits[likely].astype(float) / sampling.temperature
        chances = np.exp(scaled - scaled[0])
        total = np.cumsum(chances / chances.sum())
        # The likeliest that together reach top_p, then one of them, by chance.
        count = min(int(np.searchsorted(total, sampling.top_p)) + 1, len(likely))
        at = int(np.searchsorted(total[:count], random.random() * total[count - 1], side="right"))
        return int(likely[min(at, count - 1)])


def _failed(what: str) -> LocalModelError:
    return LocalModelError("model_failed", f"the local model could not {what}", "Try again.")
