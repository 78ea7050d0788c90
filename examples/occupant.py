"""An occupant of the app scope: reminders, of which none is lost at a shutdown.

python -m examples.occupant
"""

from __future__ import annotations

from collections.abc import Mapping

import fibers as fb
from fibers import Effect, Fiber, Scope
from fibers.app import AppScope, Shutdown, Startup, occupy


class Reminders:
    """Says something later. What has not been said at a shutdown is written down."""

    name = "reminders"

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._waiting: dict[str, float] = {}
        self._scope: Scope | None = None

    def start(self, scope: Scope) -> Effect[None]:
        def begin() -> None:
            self._scope = scope

        return Effect.sync(begin)

    def describe(self) -> Mapping[str, object]:
        return {"waiting": list(self._waiting)}

    def remind(self, text: str, after: float) -> Fiber[None]:
        """Say ``text`` in ``after`` seconds: a plain call, for callbacks too."""
        if self._scope is None:
            raise RuntimeError("reminders have not moved in: await occupy(app_scope, reminders)")
        work = self._say(text, after).on_interrupt(lambda _: self._write_down(text))
        # At once, so that also one that comes during the shutdown is written down.
        fiber = self._scope.fork(work, start_immediately=True)
        fiber.set_name(f"reminder: {text}")
        return fiber

    @fb.effect
    async def _say(self, text: str, after: float) -> None:
        self._waiting[text] = after
        await fb.sleep(after)
        del self._waiting[text]
        print(f"{text}!")

    def _write_down(self, text: str) -> Effect[None]:
        return Effect.sync(lambda: self._notes.append(text))


@fb.effect(raises=Exception)
async def main() -> None:
    notes = list[str]()
    app_scope, reminders = AppScope(), Reminders(notes)

    async def save() -> None:
        print(f"saved: {', '.join(notes)}")

    shutdown = Shutdown(app_scope, [("notes.save", save)])
    startup = Startup(
        [("reminders.start", lambda: occupy(app_scope, reminders))], shutdown=shutdown
    )
    await startup.run()
    await reminders.remind("tea is ready", after=0.01)
    reminders.remind("call home", after=3600)
    print(next(line.strip() for line in fb.dump().splitlines() if "occupant" in line))
    await shutdown.dispose()


if __name__ == "__main__":
    fb.run(main())
