"""One call over the network: as a whole, or line by line."""

from collections.abc import AsyncIterator, Iterable

import httpx

from .exchange import Call

# Sending is slowed down by a server that scores as it reads, and stands still while its queue is full.
_LINES_TIMEOUT = httpx.Timeout(connect=5.0, read=300.0, write=600.0, pool=None)


def carry(http: httpx.Client, call: Call) -> httpx.Response | httpx.TransportError:
    """Send a call; what came of it, or what the connection failed with."""
    try:
        if call.on_line is None:
            return http.request(call.method, call.path, content=call.body, headers=call.headers)
        with http.stream(
            call.method, call.path, content=call.body, headers=call.headers, timeout=_LINES_TIMEOUT
        ) as response:
            if response.is_success:
                for line in response.iter_lines():
                    call.on_line(line)
            else:
                response.read()
            return response
    except httpx.TransportError as error:
        return error


async def carry_async(http: httpx.AsyncClient, call: Call) -> httpx.Response | httpx.TransportError:
    """The same for asyncio."""
    body = call.body if call.body is None or isinstance(call.body, bytes) else _one_by_one(call.body)
    try:
        if call.on_line is None:
            return await http.request(call.method, call.path, content=body, headers=call.headers)
        async with http.stream(
            call.method, call.path, content=body, headers=call.headers, timeout=_LINES_TIMEOUT
        ) as response:
            if response.is_success:
                async for line in response.aiter_lines():
                    call.on_line(line)
            else:
                await response.aread()
            return response
    except httpx.TransportError as error:
        return error


async def _one_by_one(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
