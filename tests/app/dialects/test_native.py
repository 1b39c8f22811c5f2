"""The native protocol without a socket: what may be said, in which order, and how rubbish is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.dialects.native import Connection, fault_of
from engine.types import (
    CloseReason,
    EndReason,
    Final,
    Partial,
    Segment,
    SessionClosed,
    SessionSettings,
    SpeechStarted,
    Suppressed,
    SuppressReason,
    Word,
)
from tickscribe.messages import (
    CLOSE_CODES,
    MAX_MESSAGE_BYTES,
    Audio,
    ClosedMessage,
    DebugMessage,
    EndOfSession,
    ErrorCode,
    ErrorMessage,
    FinalMessage,
    Finish,
    PartialMessage,
    ProtocolError,
    ReadyMessage,
    ServerMessage,
    SpeechStartedMessage,
    Start,
    WarningCode,
    WarningMessage,
    WireSegment,
    WireWord,
    decode_client_message,
    decode_server_message,
    encode,
)

START = '{"type":"start"}'
FINISH = '{"type":"finish"}'


def make_connection(*frames: str | bytes) -> Connection:
    """A conversation in which `frames` were already said."""
    connection = Connection(session_id="s1", model="tiny.en", languages=("en",))
    for frame in frames:
        connection.receive(frame)
    return connection


def test_start_has_a_default_for_every_field() -> None:
    start = make_connection().receive(START)
    assert start == Start(
        format="pcm16",
        sample_rate=16_000,
        channels=1,
        language=None,
        interim=True,
        pause_ms=None,
        min_speech_ms=64,
        threshold=0.5,
        max_utterance_s=30.0,
        task="transcribe",
        stability="balanced",
        prompt="",
        hotwords=(),
        previous_text=False,
        debug=False,
    )
    assert isinstance(start, Start) and start.settings == SessionSettings()


def test_hotwords_of_a_query_stand_between_commas() -> None:
    start = make_connection().start(
        [("hotwords", "Zürich,al Zaman"), ("prompt", "News, at ten"), ("previous_text", "true")]
    )
    assert (start.hotwords, start.prompt, start.previous_text) == (("Zürich", "al Zaman"), "News, at ten", True)
    assert make_connection().start([("hotwords", "")]).hotwords == ()


def test_start_audio_finish_become_typed_events() -> None:
    connection = make_connection()
    start = connection.receive(
        '{"type":"start","format":"float32","sample_rate":48000,"channels":2,"language":"en","interim":false}'
    )
    assert start == Start(format="float32", sample_rate=48_000, channels=2, language="en", interim=False)
    assert connection.receive(b"\0\0") == Audio(b"\0\0")
    assert connection.receive(FINISH) == Finish()


@pytest.mark.parametrize(
    ("frames", "code", "words"),
    [
        ([""], ErrorCode.BAD_MESSAGE, "start"),
        (["hello"], ErrorCode.BAD_MESSAGE, "JSON"),
        (["[1]"], ErrorCode.BAD_MESSAGE, "object"),
        (["null"], ErrorCode.BAD_MESSAGE, "object"),
        (["{}"], ErrorCode.BAD_MESSAGE, "type"),
        (['{"type":"stop"}'], ErrorCode.BAD_MESSAGE, "stop"),
        (['{"type":7}'], ErrorCode.BAD_MESSAGE, "type"),
        (['{"type":"start","colour":1}'], ErrorCode.BAD_MESSAGE, "colour"),
        ([START, '{"type":"finish","now":true}'], ErrorCode.BAD_MESSAGE, "now"),
        (['{"type":"start","sample_rate":"16000"}'], ErrorCode.BAD_MESSAGE, "sample_rate"),
        (['{"type":"start","sample_rate":1e999}'], ErrorCode.BAD_MESSAGE, "sample_rate"),
        (['{"type":"start","interim":1}'], ErrorCode.BAD_MESSAGE, "interim"),
        (['{"type":"start","format":null}'], ErrorCode.BAD_MESSAGE, "format"),
        (['{"type":"start","format":"mp3"}'], ErrorCode.AUDIO_FORMAT, "pcm16 or float32"),
        (['{"type":"start","sample_rate":0}'], ErrorCode.AUDIO_FORMAT, "between 8000 and 96000"),
        (['{"type":"start","sample_rate":-1}'], ErrorCode.AUDIO_FORMAT, "between 8000 and 96000"),
        (['{"type":"start","sample_rate":96001}'], ErrorCode.AUDIO_FORMAT, "96001"),
        (['{"type":"start","channels":0}'], ErrorCode.AUDIO_FORMAT, "between 1 and 8"),
        (['{"type":"start","channels":9}'], ErrorCode.AUDIO_FORMAT, "between 1 and 8"),
        (['{"type":"start","language":"tlh"}'], ErrorCode.UNKNOWN_LANGUAGE, "'tlh'"),
        ([b"\0\0"], ErrorCode.WRONG_STATE, "start message first"),
        ([FINISH], ErrorCode.WRONG_STATE, "after start"),
        ([START, START], ErrorCode.WRONG_STATE, "new socket"),
        ([START, FINISH, b"\0\0"], ErrorCode.WRONG_STATE, "after finish"),
        ([START, FINISH, FINISH], ErrorCode.WRONG_STATE, "once"),
        ([START, FINISH, START], ErrorCode.WRONG_STATE, "new socket"),
        ([START, b"\0" * (MAX_MESSAGE_BYTES + 1)], ErrorCode.TOO_BIG, "1048576"),
        (["x" * (MAX_MESSAGE_BYTES + 1)], ErrorCode.TOO_BIG, "1048576"),
        (['{"x":' * 100_000], ErrorCode.BAD_MESSAGE, "recursion"),
        (['{"x":' + "[" * 100_000 + "]" * 100_000 + ',"type":"start"}'], ErrorCode.BAD_MESSAGE, "recursion"),
        (["[" * 1_000_000], ErrorCode.BAD_MESSAGE, "object"),
        (["\ud800"], ErrorCode.BAD_MESSAGE, "utf-8"),
    ],
)
def test_what_is_wrong_has_a_code_and_a_sentence(frames: list[str | bytes], code: ErrorCode, words: str) -> None:
    connection = make_connection(*frames[:-1])
    with pytest.raises(ProtocolError) as caught:
        connection.receive(frames[-1])
    assert caught.value.code is code
    assert words in caught.value.message
    assert decode_server_message(connection.error(caught.value)) == ErrorMessage(
        code=code, message=caught.value.message
    )


def test_every_error_code_has_a_close_code() -> None:
    assert set(CLOSE_CODES) == set(ErrorCode)


def test_an_unknown_field_is_an_error_that_names_it() -> None:
    with pytest.raises(ProtocolError, match="`diarize`"):
        make_connection().receive('{"type":"start","diarize":true}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(
    ["type", "format", "sample_rate", "channels", "language", "interim", "pause_ms", "threshold", "x"]
)
almost_messages = st.dictionaries(
    fields, json_values | st.sampled_from(["start", "finish", "pcm16", 16_000, 1, True, "en"])
)
frames = st.one_of(
    st.binary(max_size=64),
    st.text(st.characters()),
    json_values.map(json.dumps),
    almost_messages.map(json.dumps),
    st.sampled_from([START, FINISH]),
)


@given(st.lists(frames, max_size=6))
@example(["\ud800"])
@example(['{"type":"start","sample_rate":' + "9" * 6000 + "}"])
def test_rubbish_never_raises_anything_but_protocol_error(said: list[str | bytes]) -> None:
    connection = make_connection()
    for frame in said:
        try:
            event = connection.receive(frame)
        except ProtocolError as error:
            assert error.message
            assert connection.error(error)
        else:
            assert isinstance(event, Start | Finish | Audio)


@given(st.lists(st.tuples(fields | st.text(max_size=8), st.text(max_size=8)), max_size=5))
def test_a_rubbish_query_never_raises_anything_but_protocol_error(query: list[tuple[str, str]]) -> None:
    try:
        assert isinstance(make_connection().start(query), Start)
    except ProtocolError as error:
        assert error.message


def test_a_query_starts_the_session() -> None:
    connection = make_connection()
    start = connection.start([("format", "float32"), ("sample_rate", "8000"), ("language", ""), ("interim", "false")])
    assert start == Start(format="float32", sample_rate=8_000, interim=False)
    assert connection.receive(b"\0\0\0\0") == Audio(b"\0\0\0\0")


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ([("colour", "red")], ErrorCode.BAD_MESSAGE, "colour"),
        ([("sample_rate", "fast")], ErrorCode.BAD_MESSAGE, "sample_rate"),
        ([("sample_rate", "8000"), ("sample_rate", "16000")], ErrorCode.BAD_MESSAGE, "twice"),
        ([("sample_rate", "0")], ErrorCode.AUDIO_FORMAT, "8000"),
        ([("interim", "perhaps")], ErrorCode.BAD_MESSAGE, "interim"),
        ([("pause_ms", "half a second")], ErrorCode.BAD_MESSAGE, "pause_ms"),
        ([("pause_ms", "0.5")], ErrorCode.BAD_MESSAGE, "pause_ms"),
    ],
)
def test_a_wrong_query_has_a_code_and_a_sentence(query: list[tuple[str, str]], code: ErrorCode, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        make_connection().start(query)
    assert caught.value.code is code
    assert words in caught.value.message


SERVER_MESSAGES: list[ServerMessage] = [
    ReadyMessage(session_id="s1", model="tiny.en", sample_rate=16_000, languages=("en",)),
    SpeechStartedMessage(utterance=0, start=0.61),
    PartialMessage(utterance=0, revision=3, committed="he hoped there", tentative=" would be", start=0.61, end=2.1),
    FinalMessage(
        utterance=0,
        text="he hoped",
        start=0.61,
        end=4.2,
        reason=EndReason.PAUSE,
        language="en",
        segments=(WireSegment("he hoped", 0.61, 4.2),),
        words=(WireWord("he", 0.61, 0.74, 0.98),),
    ),
    DebugMessage(
        utterance=0,
        reason=SuppressReason.NO_SPEECH,
        text="you",
        start=0.61,
        end=1.5,
        avg_logprob=-1.2,
        no_speech_prob=0.7,
    ),
    WarningMessage(code=WarningCode.AUDIO_SUSPICIOUS, message="Is it float32?"),
    ErrorMessage(code=ErrorCode.AUDIO_FORMAT, message="Send whole samples."),
    ClosedMessage(reason=EndOfSession.FINISHED),
]


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=lambda message: type(message).__name__)
def test_every_server_message_survives_the_wire(message: ServerMessage) -> None:
    assert decode_server_message(encode(message)) == message


@pytest.mark.parametrize("message", [Start(), Start(format="float32", language="en", interim=False), Finish()])
def test_every_client_message_survives_the_wire(message: Start | Finish) -> None:
    assert decode_client_message(encode(message)) == message


def test_a_client_overlooks_fields_that_later_servers_add() -> None:
    assert decode_server_message('{"type":"closed","reason":"finished","bill":3}') == ClosedMessage(
        reason=EndOfSession.FINISHED
    )


def test_suppressed_text_is_written_with_the_probabilities_that_decided() -> None:
    suppressed = Suppressed(2, SuppressReason.LOOP, "you", 9_760, 33_600, -1.23456, 0.87654)
    assert json.loads(make_connection(START).send(suppressed)) == {
        "type": "debug",
        "utterance": 2,
        "reason": "loop",
        "text": "you",
        "start": 0.61,
        "end": 2.1,
        "avg_logprob": -1.235,
        "no_speech_prob": 0.877,
    }


def test_events_are_written_in_seconds_without_leading_spaces() -> None:
    connection = make_connection(START)
    partial = Partial(0, 3, " he hoped there", " would be", 9_760, 33_600, 40_000, language="de", language_prob=0.87654)
    assert json.loads(connection.send(partial)) == {
        "type": "partial",
        "utterance": 0,
        "revision": 3,
        "committed": "he hoped there",
        "tentative": " would be",
        "start": 0.61,
        "end": 2.1,
        "language": "de",
        "language_probability": 0.877,
    }
    undecided = json.loads(connection.send(Partial(0, 1, "", " he", start=0, end=1, heard=1)))
    assert (undecided["committed"], undecided["tentative"]) == ("", "he")
    final = Final(
        0,
        " he hoped",
        start=16_000,
        end=32_000,
        heard=40_000,
        reason=EndReason.PAUSE,
        language="en",
        segments=(Segment(" he hoped", 16_000, 32_000),),
        words=(Word(" he", (1,), 16_000, 17_600, 0.98765),),
    )
    assert json.loads(connection.send(final)) == {
        "type": "final",
        "utterance": 0,
        "text": "he hoped",
        "start": 1.0,
        "end": 2.0,
        "reason": "pause",
        "language": "en",
        "language_probability": 1.0,
        "segments": [{"text": "he hoped", "start": 1.0, "end": 2.0}],
        "words": [{"word": "he", "start": 1.0, "end": 1.1, "probability": 0.988}],
    }
    assert json.loads(connection.send(SpeechStarted(0, 8_000))) == {
        "type": "speech_started",
        "utterance": 0,
        "start": 0.5,
    }


def test_closed_is_the_last_message_exactly_once() -> None:
    connection = make_connection(START)
    assert json.loads(connection.close(EndOfSession.FINISHED)) == {"type": "closed", "reason": "finished"}
    with pytest.raises(AssertionError, match="after closed"):
        connection.close(EndOfSession.FINISHED)
    with pytest.raises(AssertionError, match="after closed"):
        connection.send(SpeechStarted(0, 0))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CloseReason.FINISHED, None),
        (CloseReason.ABANDONED, None),
        (CloseReason.FAILED, ErrorCode.INTERNAL),
        (CloseReason.SHUTDOWN, ErrorCode.SHUTTING_DOWN),
    ],
)
def test_a_session_closed_by_the_engine_tells_why(reason: CloseReason, code: ErrorCode | None) -> None:
    fault = fault_of(SessionClosed(reason))
    assert (fault.code if fault else None) is code
