"""Events over a WebSocket: the same messages as an event stream, each beside its cursor.

The server only tells. What a client sends is read so that its leaving is noticed, and refused.
"""

from __future__ import annotations

import contextlib
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

import fibers as fb

from .hub import Subscription

_GOING_AWAY: Final = 1001
_UNSUPPORTED_DATA: Final = 1003
_TRY_AGAIN_LATER: Final = 1013

_CODES: Final = {"shutting-down": _GOING_AWAY, "overflow": _TRY_AGAIN_LATER}


async def deliver(websocket: WebSocket, subscription: Subscription) -> None:
    """Accept a socket, tell it what there is to tell, close it; gives the subscription back."""
    try:
        await websocket.accept()
        code = await fb.race_first(
            fb.Effect.promise(lambda: _tell(websocket, subscription)),
            fb.Effect.promise(lambda: _listen(websocket)),
        )
        if code is not None:
            await websocket.close(code)
    except WebSocketDisconnect:
        pass  # it left while it was being told something
    finally:
        subscription.close()


async def _tell(websocket: WebSocket, subscription: Subscription) -> int | None:
    """The code to close with, once there is nothing more to tell."""
    last = ""
    async with contextlib.aclosing(subscription.told()) as messages:
        async for told in messages:
            await websocket.send_text(told.as_text)
            last = told.type
    return _CODES.get(last, _TRY_AGAIN_LATER)


async def _listen(websocket: WebSocket) -> int | None:
    """None when it has left."""
    message = await websocket.receive()
    return None if message["type"] == "websocket.disconnect" else _UNSUPPORTED_DATA
