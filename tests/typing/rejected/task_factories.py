"""What both checkers have to refuse about the task factory: the marked lines, no other."""

from __future__ import annotations

import fibers as fb


def a_factory_without_an_owner() -> None:
    fb.task_factory()  # rejected: call-arg, reportCallIssue


def an_owner_that_is_no_scope() -> None:
    fb.task_factory(scope="service")  # rejected: arg-type, reportArgumentType
