"""Which interrupted answers are taken up again at the start of a process (I10)."""

from __future__ import annotations

import pytest

from streamengine.model import AssistantRow, Row, RowMetadata, TextPart, ToolPart, UserRow
from streamengine.model.note import LastEnd, WorkspaceNote
from streamengine.retry import NOT_RETRIED
from streamengine.startup import startup_verdict

EMPTY = WorkspaceNote()


def asked(sequence: int = 0) -> UserRow:
    return UserRow(
        id=f"u_{sequence}",
        parts=(TextPart(text="why?"),),
        metadata=RowMetadata(history_sequence=sequence),
    )


def answered(sequence: int = 1, *, partial: bool = False, reason: str | None = None) -> Row:
    return AssistantRow(
        id=f"a_{sequence}",
        parts=(TextPart(text="because"),),
        metadata=RowMetadata(
            history_sequence=sequence, partial=partial or None, abort_reason=reason
        ),
    )


def ended(after: int = 0, message: str = "a_1", **what: object) -> WorkspaceNote:
    fields = {"message_id": message, "after_sequence": after, **what}
    return WorkspaceNote(last_end=LastEnd.model_validate(fields))


@pytest.mark.spec("I10")
@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], "nothing-interrupted"),
        ([asked(), answered()], "nothing-interrupted"),
        ([asked()], "retry"),
        ([asked(), answered(), asked(2)], "retry"),
        ([asked(), answered(partial=True)], "retry"),
        ([asked(), answered(partial=True, reason="system")], "retry"),
    ],
)
def test_only_an_interrupted_tail_is_taken_up(rows: list[Row], verdict: str) -> None:
    assert startup_verdict(rows, EMPTY) == verdict


@pytest.mark.spec("E30")
@pytest.mark.parametrize(
    ("reason", "verdict"), [("user", "stopped"), ("startup", "stopped"), ("system", "retry")]
)
def test_who_stopped_it_decides(reason: str, verdict: str) -> None:
    """On the row itself, and in the note where nothing was said yet (R02)."""
    assert startup_verdict([asked(), answered(partial=True, reason=reason)], EMPTY) == verdict
    assert startup_verdict([asked()], ended(abort_reason=reason)) == verdict


def test_a_note_on_an_earlier_answer_says_nothing() -> None:
    note = ended(after=0, abort_reason="user")
    assert startup_verdict([asked(), asked(1)], note) == "retry"
    partial = [asked(), answered(1), asked(2), answered(3, partial=True)]
    assert startup_verdict(partial, note) == "retry"


def test_an_opt_out_counts() -> None:
    assert startup_verdict([asked()], WorkspaceNote(auto_retry=False)) == "opted-out"


@pytest.mark.parametrize("error_type", sorted(NOT_RETRIED))
def test_a_failure_that_another_try_cant_mend_stays(error_type: str) -> None:
    assert startup_verdict([asked()], ended(error_type=error_type)) == "not-retryable"
    partial = [asked(), answered(partial=True)]
    assert startup_verdict(partial, ended(error_type=error_type)) == "not-retryable"


@pytest.mark.parametrize("error_type", ["server_error", "network", "invented_later"])
def test_other_failures_are_tried_again(error_type: str) -> None:
    assert startup_verdict([asked()], ended(error_type=error_type)) == "retry"


def test_a_question_to_a_person_waits() -> None:
    call = ToolPart(tool_call_id="c", tool_name="ask_user", state="input-available")
    row = AssistantRow(
        id="a_1",
        parts=(TextPart(text="Which one?"), call),
        metadata=RowMetadata(history_sequence=1, partial=True),
    )
    assert startup_verdict([asked(), row], EMPTY) == "asks-a-person"
    assert startup_verdict([asked()], ended(asks_a_person=True)) == "asks-a-person"
    result = call.model_copy(update={"state": "output-available", "output": "the red one"})
    over = row.model_copy(update={"parts": (row.parts[0], result)})
    assert startup_verdict([asked(), over], EMPTY) == "retry"


@pytest.mark.spec("I10", "E30")
def test_only_the_last_try_counts() -> None:
    """One that was begun and left no word: how the try before it had ended is no end of it."""
    begun = ended(after=0, message="a_9")
    assert startup_verdict([asked()], begun) == "retry"
    assert startup_verdict([asked(), answered(partial=True, reason="user")], begun) == "retry"
    assert startup_verdict([asked(), answered()], begun) == "nothing-interrupted"
    opted_out = begun.model_copy(update={"auto_retry": False})
    assert startup_verdict([asked()], opted_out) == "opted-out"


def test_a_try_that_was_begun_and_has_a_row_ended_as_that_says() -> None:
    rows = [asked(), answered(partial=True, reason="user")]
    assert startup_verdict(rows, ended(after=0, message="a_1")) == "stopped"


@pytest.mark.spec("I10", "E30")
@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ({"abort_reason": "user"}, "stopped"),
        ({"abort_reason": "system"}, "retry"),
        ({"error_type": "authentication"}, "not-retryable"),
        ({"asks_a_person": True}, "asks-a-person"),
    ],
)
def test_a_later_try_that_ended_before_its_first_word_counts(
    end: dict[str, object], verdict: str
) -> None:
    """It has no row: the one that stands last is of the try before it."""
    rows = [asked(), answered(partial=True, reason="system")]
    assert startup_verdict(rows, ended(after=0, message="a_9", **end)) == verdict


def test_a_later_try_takes_the_place_of_a_stop() -> None:
    rows = [asked(), answered(partial=True, reason="user")]
    failed = ended(after=0, message="a_9", error_type="network")
    assert startup_verdict(rows, failed) == "retry"


def test_a_try_that_was_begun_for_an_earlier_message_says_nothing() -> None:
    rows = [asked(), asked(2), answered(3, partial=True, reason="user")]
    assert startup_verdict(rows, ended(after=0, message="a_9")) == "stopped"


def test_rows_that_nobody_answers_are_passed_over() -> None:
    report = UserRow(id="u_9", metadata=RowMetadata(history_sequence=9))
    rows = [asked(), answered(), report]
    assert startup_verdict(rows, EMPTY) == "retry"
    verdict = startup_verdict(rows, EMPTY, is_relevant=lambda row: row.id != "u_9")
    assert verdict == "nothing-interrupted"
