"""The tree of turns on the page, drawn by its own script on Node, where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
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
ASKING = {
    **RUNNING,
    "state": "waiting",
    "question": {"requestId": "p_1", "question": "Run: ls", "subject": "shell"},
}
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


def page(folder: Path, *steps: list[Any]) -> dict[str, Any]:
    """What is seen once these steps were taken: messages that came, and what a person did."""
    assert NODE is not None
    scripts = folder / "web"
    shutil.copytree(WEB, scripts)
    (scripts / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        [NODE, str(Path(__file__).with_name("page") / "tree.mjs"), str(scripts / "turns.js")],
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
    seen = page(tmp_path, ["turns", [RUNNING, CHILD]])

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
    there = page(
        tmp_path / "there",
        ["turns", [{**RUNNING, "id": "t0", "state": "completed"}]],
        changed(RUNNING),
        changed(CHILD),
        changed(younger, gone=("t0",)),
        changed(ASKING),
        changed(ended),
    )
    newcomer = page(tmp_path / "new", ["turns", [ASKING, ended, younger]])

    assert there["drawn"] == newcomer["drawn"]
    assert [root["prompt"] for root in there["drawn"]] == ["Next", "Count <b>them</b>"]
    assert there["live"] == newcomer["live"] == "t1"


def test_who_comes_again_sees_what_is_there_then(tmp_path: Path) -> None:
    seen = page(tmp_path, ["turns", [RUNNING, CHILD]], ["turns", [ENDED]])

    (root,) = seen["drawn"]
    assert (root["state"], root["about"]) == ("interrupted", "interrupted by ada")
    assert (root["buttons"], root["below"], seen["live"]) == ([], [], None)


def test_where_no_turns_are_nothing_is_shown(tmp_path: Path) -> None:
    seen = page(tmp_path, ["turns", [RUNNING]], ["turns", []])

    assert (seen["drawn"], seen["isShown"]) == ([], False)


@pytest.mark.parametrize(("button", "allow"), [("Allow", True), ("Deny", False)])
@pytest.mark.parametrize("remember", [True, False])
def test_a_question_is_answered_by_its_own_id(
    tmp_path: Path, button: str, allow: bool, remember: bool
) -> None:
    seen = page(
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
    seen = page(
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
    seen = page(tmp_path, ["turns", [{**RUNNING, "state": "queued"}]], ["button", "t1", "Stop now"])

    (root,) = seen["drawn"]
    assert (root["buttons"], seen["live"]) == (["Stop now"], None)
    assert seen["asked"] == [["/api/turns/wst_1/interrupt", {"hard": True}]]


@pytest.mark.parametrize(("button", "hard"), [("Stop", False), ("Stop now", True)])
def test_a_stop_names_its_turn(tmp_path: Path, button: str, hard: bool) -> None:
    seen = page(tmp_path, ["turns", [RUNNING]], ["button", "t1", button])

    assert seen["asked"] == [["/api/turns/wst_1/interrupt", {"hard": hard}]]


def test_steering_takes_words_and_says_nothing_without_any(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        ["turns", [RUNNING]],
        ["button", "t1", "Steer"],
        ["words", "t1", "  "],
        ["words", "t1", "Only in src"],
    )

    assert seen["asked"] == [["/api/turns/wst_1/steer", {"text": "Only in src"}]]
    assert seen["focus"] == "Steer"  # where it came from


def test_words_that_did_not_arrive_can_be_sent_again(tmp_path: Path) -> None:
    seen = page(
        tmp_path,
        ["turns", [RUNNING]],
        ["goes wrong"],
        ["button", "t1", "Steer"],
        ["words", "t1", "Only in src"],
    )

    assert seen["focus"] == "input"


def test_the_end_of_a_turn_takes_its_buttons_away_and_is_said(tmp_path: Path) -> None:
    seen = page(tmp_path, ["turns", [RUNNING]], ["button", "t1", "Steer"], changed(ENDED))

    (root,) = seen["drawn"]
    assert root["buttons"] == []
    assert seen["said"] == ["A turn has ended: interrupted by ada"]
    # Who typed there is not left nowhere.
    assert seen["focus"] == "interrupted Count <b>them</b> 1 min 3 s"
