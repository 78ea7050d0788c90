"""Turns on the page: its own scripts, run on Node, where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turns.host.app import WEB

NODE = shutil.which("node")
BOUND_SECONDS = 30.0

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node here: the script is only read")

RUNNING: dict[str, Any] = {
    "id": "t1",
    "handleId": "wst_1",
    "prompt": "Count <b>them</b>",
    "state": "running",
    "createdAtMs": 1000,
    "startedAtMs": 2000,
    "critical": False,
    "steered": 0,
}
ENDED = {**RUNNING, "state": "interrupted", "endedAtMs": 65_000, "reason": "interrupted by ada"}
QUESTION: dict[str, Any] = {"requestId": "p_1", "question": "Run: ls", "subject": "shell"}
ASKING: dict[str, Any] = {**RUNNING, "state": "waiting", "question": QUESTION}
CHILD: dict[str, Any] = {
    "id": "subturn-1",
    "parentId": "t1",
    "prompt": "Look",
    "state": "running",
    "createdAtMs": 3000,
    "startedAtMs": 3000,
    "critical": True,
    "steered": 0,
}
ALWAYS = ["Steer", "Stop", "Stop now"]


def tree(folder: Path, *steps: list[Any]) -> dict[str, Any]:
    """What is seen once these steps were taken: messages that came, and what a person did."""
    return _seen(folder, "tree.mjs", "turns.js", steps)


def page(folder: Path, *steps: list[Any]) -> dict[str, Any]:
    """The same of the whole page, once it is connected."""
    return _seen(folder, "app.mjs", "app.js", steps)


def _seen(folder: Path, program: str, script: str, steps: Sequence[list[Any]]) -> dict[str, Any]:
    assert NODE is not None
    scripts = folder / "web"
    shutil.copytree(WEB, scripts)
    (scripts / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        [NODE, str(Path(__file__).with_name("page") / program), str(scripts / script)],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def changed(*nodes: dict[str, Any], gone: tuple[str, ...] = ()) -> list[Any]:
    return ["turns.changed", {"nodes": nodes, "gone": gone}]


def test_a_turn_is_drawn_with_what_is_below_it_and_what_can_be_asked_of_it(tmp_path: Path) -> None:
    seen = tree(tmp_path, ["turns", [RUNNING, CHILD]])

    child: dict[str, Any] = {
        "state": "running",
        "prompt": "Look",
        "about": "critical",
        "question": "",
        "buttons": [],
        "below": [],
    }
    assert seen["drawn"] == [
        {
            "state": "running",
            "prompt": "Count <b>them</b>",
            "about": "",
            "question": "",
            "buttons": ALWAYS,
            "below": [child],
        }
    ]
    assert (seen["isShown"], seen["live"], seen["said"]) == (True, "t1", [])


def test_who_was_there_sees_what_a_newcomer_sees(tmp_path: Path) -> None:
    younger = {**RUNNING, "id": "t2", "handleId": "wst_2", "state": "queued", "prompt": "Next"}
    ended = {**CHILD, "state": "error", "reason": "it broke", "orphan": "parent_finished"}
    there = tree(
        tmp_path / "there",
        ["turns", [{**RUNNING, "id": "t0", "state": "completed"}]],
        changed(RUNNING),
        changed(CHILD),
        changed(younger, gone=("t0",)),
        changed(ASKING),
        changed(ended),
    )
    newcomer = tree(tmp_path / "new", ["turns", [ASKING, ended, younger]])

    assert there["drawn"] == newcomer["drawn"]
    assert [root["prompt"] for root in there["drawn"]] == ["Next", "Count <b>them</b>"]
    assert there["live"] == newcomer["live"] == "t1"


def test_who_comes_again_sees_what_is_there_then(tmp_path: Path) -> None:
    seen = tree(tmp_path, ["turns", [RUNNING, CHILD]], ["turns", [ENDED]])

    (root,) = seen["drawn"]
    assert (root["state"], root["about"]) == ("interrupted", "interrupted by ada")
    assert (root["buttons"], root["below"], seen["live"]) == ([], [], None)


def test_where_no_turns_are_nothing_is_shown(tmp_path: Path) -> None:
    seen = tree(tmp_path, ["turns", [RUNNING]], ["turns", []])

    assert (seen["drawn"], seen["isShown"]) == ([], False)


@pytest.mark.parametrize(("button", "allow"), [("Allow", True), ("Deny", False)])
@pytest.mark.parametrize("remember", [True, False])
def test_a_question_is_answered_by_its_own_id(
    tmp_path: Path, button: str, allow: bool, remember: bool
) -> None:
    seen = tree(
        tmp_path,
        ["turns", [RUNNING]],
        changed(ASKING),
        *([["remember", "t1"]] if remember else []),
        ["button", "t1", button],
    )

    (root,) = seen["drawn"]
    assert root["question"] == "Run: ls"
    assert root["buttons"] == ["Allow", "Deny", *ALWAYS]
    assert seen["asked"] == [
        ["/api/turns/wst_1/permissions/p_1", {"allow": allow, "remember": remember}]
    ]
    assert seen["said"] == ["A turn asks: Run: ls"]


def test_the_wish_to_be_remembered_is_for_one_question(tmp_path: Path) -> None:
    question = {"requestId": "p_2", "question": "Run: rm", "subject": "shell"}
    seen = tree(
        tmp_path,
        ["turns", [ASKING]],
        ["remember", "t1"],
        changed({**ASKING, "question": question}),
        ["button", "t1", "Allow"],
    )

    assert seen["asked"] == [
        ["/api/turns/wst_1/permissions/p_2", {"allow": True, "remember": False}]
    ]


def test_one_that_is_queued_can_only_be_ended(tmp_path: Path) -> None:
    seen = tree(tmp_path, ["turns", [{**RUNNING, "state": "queued"}]], ["button", "t1", "Stop now"])

    (root,) = seen["drawn"]
    assert (root["buttons"], seen["live"]) == (["Stop now"], None)
    assert seen["asked"] == [["/api/turns/wst_1/interrupt", {"hard": True}]]


@pytest.mark.parametrize(("button", "hard"), [("Stop", False), ("Stop now", True)])
def test_a_stop_names_its_turn(tmp_path: Path, button: str, hard: bool) -> None:
    seen = tree(tmp_path, ["turns", [RUNNING]], ["button", "t1", button])

    assert seen["asked"] == [["/api/turns/wst_1/interrupt", {"hard": hard}]]


def test_steering_takes_words_and_says_nothing_without_any(tmp_path: Path) -> None:
    seen = tree(
        tmp_path,
        ["turns", [RUNNING]],
        ["button", "t1", "Steer"],
        ["words", "t1", "  "],
        ["words", "t1", "Only in src"],
    )

    assert seen["asked"] == [["/api/turns/wst_1/steer", {"text": "Only in src"}]]
    assert seen["focus"] == "Steer"  # where it came from


def test_words_that_did_not_arrive_can_be_sent_again(tmp_path: Path) -> None:
    seen = tree(
        tmp_path,
        ["turns", [RUNNING]],
        ["goes wrong"],
        ["button", "t1", "Steer"],
        ["words", "t1", "Only in src"],
    )

    assert seen["focus"] == "input"


def test_the_end_of_a_turn_takes_its_buttons_away_and_is_said(tmp_path: Path) -> None:
    seen = tree(tmp_path, ["turns", [RUNNING]], ["button", "t1", "Steer"], changed(ENDED))

    (root,) = seen["drawn"]
    assert root["buttons"] == []
    assert seen["said"] == ["A turn has ended: interrupted by ada"]
    # Who typed there is not left nowhere.
    assert seen["focus"] == "interrupted Count <b>them</b> 1 min 3 s"


# ---- the whole page


def told(kind: str, **fields: Any) -> list[Any]:
    return ["told", {"type": kind, "workspaceId": "default", **fields}]


CAUGHT_UP = told("caught-up", replay="live", hasOlderHistory=False)
ANSWER = told("stream-start", messageId="a_1", replay=True)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ("running", {"turnId": "t1"}),
        ("waiting", {"turnId": "t1"}),
        ("starting", {"turnId": "t1"}),
        ("queued", {"messageId": "a_1"}),
        ("completed", {"messageId": "a_1"}),
    ],
)
def test_the_stop_names_the_turn_that_runs_else_the_message(
    tmp_path: Path, state: str, named: dict[str, str]
) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[{**RUNNING, "state": state}]),
        CAUGHT_UP,
        ANSWER,
        ["press", "stop"],
    )

    assert seen["asked"] == [["/api/workspaces/default/stop", named]]
    assert ("turn" in seen["stops"]) is ("turnId" in named)


def test_a_turn_that_says_nothing_can_be_stopped_too(tmp_path: Path) -> None:
    """No message is live: its tool runs, or it waits."""
    there = page(tmp_path / "1", told("turns", nodes=[RUNNING]), CAUGHT_UP)
    ended = page(
        tmp_path / "2",
        told("turns", nodes=[RUNNING]),
        CAUGHT_UP,
        told("turns.changed", nodes=[ENDED], gone=[]),
    )

    assert (there["canStop"], ended["canStop"]) == (True, False)


def test_what_is_written_is_sent_as_a_turn_or_as_a_message(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        CAUGHT_UP,
        ["write", "Fix it"],
        ["press", "send-turn"],
        ["write", "Hello"],
        ["submit", "composer-form"],
        ["write", "  "],
        ["press", "send-turn"],
    )

    (turn, message) = seen["asked"]
    assert turn[0] == "/api/workspaces/default/turns"
    assert turn[1] == {"prompt": "Fix it", "clientTurnId": turn[1]["clientTurnId"]}
    assert message[0] == "/api/workspaces/default/messages"
    assert message[1] == {"text": "Hello", "clientMessageId": message[1]["clientMessageId"]}
    assert turn[1]["clientTurnId"] != message[1]["clientMessageId"]


def test_before_a_message_takes_the_place_of_a_turn_the_page_says_so(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[RUNNING]),
        CAUGHT_UP,
        ["write", "Wait"],
        ["submit", "composer-form"],
        ["submit", "composer-form"],
    )

    assert seen["asked"] == [], "also where Enter is pressed twice"
    assert (seen["warned"], seen["text"]) == (True, "Wait")


@pytest.mark.parametrize(
    ("choice", "path", "field"),
    [
        ("steer-instead", "/api/turns/wst_1/steer", "text"),
        ("send-anyway", "/api/workspaces/default/messages", "text"),
    ],
)
def test_then_it_steers_the_turn_or_sends_the_message_once(
    tmp_path: Path, choice: str, path: str, field: str
) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[ASKING]),
        CAUGHT_UP,
        ["write", "Wait"],
        ["submit", "composer-form"],
        ["press", choice, 2],  # the rest of a double click on Send
        ["press", choice, 1],
        ["press", choice, 1],
    )

    assert [(asked, body[field]) for asked, body in seen["asked"]] == [(path, "Wait")]
    assert (seen["warned"], seen["text"]) == (False, "")


def test_steering_that_comes_too_late_says_so_and_leaves_the_words(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[RUNNING]),
        CAUGHT_UP,
        ["write", "Wait"],
        ["submit", "composer-form"],
        ["refuse", "the turn has ended"],
        ["press", "steer-instead", 1],
    )

    assert (seen["error"], seen["text"]) == ("the turn has ended", "Wait")


@pytest.mark.parametrize(
    "gone",
    [
        ["told", {"type": "turns.changed", "nodes": [ENDED], "gone": []}],
        ["told", {"type": "turns.changed", "nodes": [ENDED, {**RUNNING, "id": "t2"}], "gone": []}],
        ["key", "text", "Escape"],
    ],
)
def test_the_warning_is_about_the_turn_that_runs_and_can_be_waved_away(
    tmp_path: Path, gone: list[Any]
) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[RUNNING]),
        CAUGHT_UP,
        ["write", "Wait"],
        ["submit", "composer-form"],
        gone,
    )

    assert (seen["warned"], seen["text"], seen["asked"]) == (False, "Wait", [])


@pytest.mark.parametrize("state", ["queued", "completed"])
def test_a_turn_that_does_not_run_is_in_nobodys_way(tmp_path: Path, state: str) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[{**RUNNING, "state": state}]),
        CAUGHT_UP,
        ["write", "Hello"],
        ["submit", "composer-form"],
    )

    assert [path for path, _ in seen["asked"]] == ["/api/workspaces/default/messages"]
    assert not seen["warned"]


def test_a_further_turn_is_queued_without_a_warning(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        told("turns", nodes=[RUNNING]),
        CAUGHT_UP,
        ["write", "And then"],
        ["press", "send-turn"],
    )

    assert [path for path, _ in seen["asked"]] == ["/api/workspaces/default/turns"]


@pytest.mark.parametrize(
    ("send", "name"),
    [
        (["press", "send-turn"], "clientTurnId"),
        (["submit", "composer-form"], "clientMessageId"),
    ],
)
def test_what_may_have_arrived_is_sent_again_under_the_same_name(
    tmp_path: Path, send: list[Any], name: str
) -> None:
    steps = [CAUGHT_UP, ["write", "Fix it"], ["refuse", "no"], send, ["refuse", None], send]
    seen = page(tmp_path, *steps, ["write", "Fix it"], send)

    first, again, anew = (body[name] for _, body in seen["asked"])
    assert first == again != anew


def test_what_is_refused_stays_written_and_says_why(tmp_path: Path) -> None:
    seen = page(
        tmp_path, CAUGHT_UP, ["write", "Fix it"], ["refuse", "not now"], ["press", "send-turn"]
    )

    assert (seen["text"], seen["error"]) == ("Fix it", "not now")


def test_a_connection_that_tells_of_no_turns_leaves_none_on_the_page(tmp_path: Path) -> None:
    seen = page(tmp_path, told("turns", nodes=[RUNNING]), CAUGHT_UP, told("overflow"), CAUGHT_UP)

    assert (seen["turns"], seen["canStop"]) == (0, False)


def test_after_the_end_of_a_turn_the_page_looks_what_is_left_of_it(tmp_path: Path) -> None:
    """One that was ended at once has taken back what it said."""
    before = page(tmp_path / "1", CAUGHT_UP)
    seen = page(tmp_path / "2", CAUGHT_UP, told("turn.end", turnId="t1", status="aborted"))

    assert seen["looks"] == before["looks"] + 1


def test_the_problem_of_a_turn_is_shown(tmp_path: Path) -> None:
    seen = page(tmp_path, CAUGHT_UP, told("turn.error", turnId="t1", error="not put back"))

    assert seen["error"] == "A turn has a problem: not put back"


def test_a_question_hides_nothing_of_what_it_asks(tmp_path: Path) -> None:
    command = "Run: echo \u202eesle\u202c\u200b; rm -rf \u3164x\r\n\tls \ud83d é"
    asked = {**ASKING, "question": {**QUESTION, "question": command}}
    seen = tree(tmp_path, ["turns", [RUNNING]], changed(asked))

    shown = r"Run: echo \u{202e}esle\u{202c}\u{200b}; rm -rf \u{3164}x\u{d}" + "\n\tls \\u{d83d} é"
    assert seen["drawn"][0]["question"] == shown
    assert seen["said"] == [f"A turn asks: {shown}"]


def test_a_subturn_of_a_new_server_is_drawn_below_its_own_turn(tmp_path: Path) -> None:
    younger = {**RUNNING, "id": "t2", "handleId": "wst_2", "prompt": "Next"}
    child = {**CHILD, "parentId": "t2", "prompt": "Look again"}
    over = tree(tmp_path / "1", ["turns", [RUNNING, CHILD]], ["turns", [ENDED, younger, child]])
    gone = tree(tmp_path / "2", ["turns", [RUNNING, CHILD]], ["turns", [younger, child]])

    assert over["drawn"] == tree(tmp_path / "3", ["turns", [ENDED, younger, child]])["drawn"]
    assert gone["drawn"] == tree(tmp_path / "4", ["turns", [younger, child]])["drawn"]


def test_what_an_ended_turn_has_left_running_can_be_stopped(tmp_path: Path) -> None:
    below = {**CHILD, "id": "subturn-2", "parentId": "subturn-1"}
    over = {**CHILD, "state": "completed"}
    left = tree(tmp_path / "1", ["turns", [ENDED, over, below]], ["button", "t1", "Stop now"])
    done = {**below, "state": "interrupted"}
    after = tree(tmp_path / "2", ["turns", [ENDED, over, below]], changed(done))

    assert left["drawn"][0]["buttons"] == ["Stop now"]
    assert left["asked"] == [["/api/turns/wst_1/interrupt", {"hard": True}]]
    assert after["drawn"][0]["buttons"] == []


def test_a_double_click_answers_one_question(tmp_path: Path) -> None:
    after = {**ASKING, "question": {**QUESTION, "requestId": "p_2"}}
    seen = tree(
        tmp_path,
        ["turns", [ASKING]],
        ["button", "t1", "Allow"],
        changed(after),
        ["button", "t1", "Allow", 2],
    )

    assert [path for path, _ in seen["asked"]] == ["/api/turns/wst_1/permissions/p_1"]
