"""Asks what a process tells on this machine."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Heard:
    """An answer; names of headers are as they were sent."""

    status: int
    text: str
    headers: dict[str, str]


def ask(url: str, method: str = "GET", **headers: str) -> Heard:
    """Sends one request on a connection of its own."""
    there = urlsplit(url)
    connection = http.client.HTTPConnection(there.netloc, timeout=60)
    try:
        connection.request(method, url.partition(there.netloc)[2], headers=headers)
        answer = connection.getresponse()
        return Heard(answer.status, answer.read().decode(), dict(answer.headers))
    finally:
        connection.close()
