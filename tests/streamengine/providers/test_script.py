"""Script files: what they may say, and what a bad one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamengine.model.parts import Finish
from streamengine.providers.script import Answer, Give, Repeat, Say, Script, ScriptError

from .kit import SCRIPTS

FINISH = Give(part=Finish(finish_reason="stop", raw_finish_reason="stop"))


@pytest.mark.parametrize("path", sorted(SCRIPTS.iterdir()), ids=lambda path: path.name)
def test_the_scripts_of_the_tests_are_scripts(path: Path) -> None:
    assert Script.load(path).answers


def test_json_lines_are_the_steps_of_one_answer() -> None:
    expected = Script(answers=(Answer(steps=(Say(text="line by line"), FINISH)),))

    assert Script.load(SCRIPTS / "lines.jsonl") == expected


def test_a_script_can_be_built_in_python() -> None:
    text = (
        '{"answers": [{"when": {"textContains": "x"}, "cleanupMs": 5, "steps": ['
        '{"do": "repeat", "times": 2, "steps": [{"do": "say", "text": "ha ", "everyMs": 3}]}]}]}'
    )

    built = Script(
        answers=(
            Answer.model_validate({"when": {"textContains": "x"}, "cleanupMs": 5}).model_copy(
                update={"steps": (Repeat(times=2, steps=(Say(text="ha ", every_ms=3),)),)}
            ),
        )
    )

    assert Script.parse(text) == built


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('{"answers": [\n{"steps": [\n{"do": "say",\n"txt": "x"}]}]}', 3, "steps[0].text"),
        ('{"answers": [\n{"steps": [\n{"do": "wait",\n"ms": "long"}]}]}', 4, "steps[0].ms"),
        ('{"answers": [\n{"steps": [\n{"do": "wait", "ms": -1}]}]}', 3, "steps[0].ms"),
        ('{"answers": [\n{"steps": [\n{"do": "wait", "ms": 0}]}]}', 3, "steps[0].ms"),
        ('{"answers": [\n{"steps": [{"do": "say", "text": "", "everyMs": -1}]}]}', 2, "everyMs"),
        ('{"answers": [\n{"steps": [\n{"do": "dance"}]}]}', 3, "'wait-for-ever'"),
        ('{"answers": [\n{"steps": [\n{"text": "x"}]}]}', 3, "'do'"),
        ('{"answers": [\n{"steps": [{"do": "repeat", "steps": []}]}]}', 2, "at least 1"),
        ('{"answers": [\n{"on_abrt": "stop"}]}', 2, "on_abrt"),
        ('{"answers": [\n{"onAbort": "explode"}]}', 2, "'stop', 'ignore' or 'raise'"),
        ('{"answers": [\n{"cleanupMs": "a while"}]}', 2, "cleanupMs"),
        ('{"answers": [\n{"when": {"textContains": ""}}]}', 2, "textContains"),
        (
            '{"answers": [{"steps": [\n{"do": "give", "part":\n{"type": "text-delta"}}]}]}',
            2,
            "part.text",
        ),
        ('{"answers": []}', 1, "answers"),
        ("{}", 1, "answers: Field required"),
        ("[]", 1, "the whole"),
        ('{"answers":\n [,]}', 2, "it isn't JSON"),
        ("", 1, "it isn't JSON"),
    ],
)
def test_a_bad_script_is_told_where_and_what(text: str, line: int, says: str) -> None:
    with pytest.raises(ScriptError) as raised:
        Script.parse(text, name="demo.json")

    assert raised.value.line == line
    assert str(raised.value).startswith(f"demo.json, line {line}: ")
    assert says in str(raised.value)
    assert "docs/providers.md" in str(raised.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"answers": ' + "9" * 5000 + "}"])
def test_a_text_that_no_parser_takes_is_a_script_error_too(text: str) -> None:
    with pytest.raises(ScriptError) as raised:
        Script.parse(text)

    assert raised.value.line is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"do": "wait", "ms": 1}\n\n{"do": "wait"}', 3),
        ('{"do": "wait", "ms": 1}\n{"do": ', 2),
        ('{"do": "wait", "ms": 1}\n[]', 2),
    ],
)
def test_in_json_lines_the_line_is_that_of_the_step(text: str, line: int) -> None:
    with pytest.raises(ScriptError) as raised:
        Script.parse_lines(text)

    assert raised.value.line == line


def test_json_lines_without_a_step_are_no_script() -> None:
    with pytest.raises(ScriptError, match="no step"):
        Script.parse_lines("\n\n")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"

    with pytest.raises(ScriptError) as raised:
        Script.load(missing)

    assert (raised.value.path, raised.value.line) == (str(missing), None)
    assert "No such file" in raised.value.message


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.json"
    path.write_bytes('{"answers": "é"}'.encode("latin-1"))

    with pytest.raises(ScriptError, match="UTF-8"):
        Script.load(path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"answers": [{}]}')

    assert Script.load(path) == Script(answers=(Answer(),))
