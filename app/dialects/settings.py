"""What a client asks for, held against what there is: names, lengths, and what the loaded model can do.

Stands between the protocol, which knows only the shape of a `start`, and the engine, which trusts its settings.
"""

from __future__ import annotations

from enum import StrEnum

from engine.core import ModelInfo
from engine.session.history import MAX_HISTORY_TOKENS
from engine.session.hotwords import MAX_HOTWORD_LENGTH, MAX_HOTWORDS
from engine.types import Stability, Task
from tickscribe.messages import ErrorCode, ProtocolError, Start, quote


def check_settings(start: Start, info: ModelInfo) -> None:
    """Check the settings of a session against the model that is loaded.

    Raises:
        ProtocolError: (bad_setting) the message says which one, and what may stand there.
    """
    _check_name("task", start.task, Task)
    _check_name("stability", start.stability, Stability)
    if start.task == Task.TRANSLATE and not info.multilingual:
        raise _refusal(
            f"The model {info.name} knows English only and cannot translate; leave task out, or run the server with a "
            "multilingual model such as --model base."
        )
    n_tokens = info.count_tokens(start.prompt)
    if n_tokens > MAX_HISTORY_TOKENS:
        raise _refusal(f"The prompt has {n_tokens} tokens, the model takes {MAX_HISTORY_TOKENS}; shorten it.")
    if len(start.hotwords) > MAX_HOTWORDS:
        raise _refusal(f"There are {len(start.hotwords)} hotwords; {MAX_HOTWORDS} are the most, keep the rarest.")
    for word in start.hotwords:
        if not word.strip() or len(word) > MAX_HOTWORD_LENGTH:
            raise _refusal(f"The hotword {quote(word)} must have between 1 and {MAX_HOTWORD_LENGTH} characters.")


def _check_name(field: str, value: str, names: type[StrEnum]) -> None:
    if value not in tuple(names):
        raise _refusal(f"There is no {field} {quote(value)}; it is one of {', '.join(names)}.")


def _refusal(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_SETTING, message)
