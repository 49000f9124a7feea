"""GET with a kept connection, on the standard library.

Importing httpx takes six times as long (0.45 s against 0.07 s where it was measured), and that alone would exceed what
`kvtop --once --json` may take.
"""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from launcher.errors import NotServed, ObservationError, Unauthorized, Unparsable, Unreachable

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 3
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    body: str
    location: str | None = None


class HttpReader:
    """One kept connection to one server."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        self._base = _split(url)
        self.url = self._base.geturl()
        self._timeout_s = timeout_s
        self._headers = {"Accept": "*/*", "User-Agent": "kvtune"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> str:
        """The body of a 200. Raises an ObservationError that names the endpoint for everything else."""
        target = self._base.path + path
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._ask(target, path)
            if answer.status not in _REDIRECTS or answer.location is None:
                return _body(answer, path, with_key="Authorization" in self._headers)
            target = self._follow(target, answer.location, path)
        raise Unparsable(f"{path} redirects in a circle")

    def close(self) -> None:
        """Close the connection; the next `get` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, target: str, path: str) -> Answer:
        """Ask once; once more when the kept connection turns out to have been closed meanwhile."""
        kept = self._connection is not None
        try:
            return self._exchange(target)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
            self.close()
            if not kept:
                raise Unreachable(f"{self.url} closed the connection at {path}: {error}") from None
            return self._ask(target, path)
        except TimeoutError:
            self.close()
            raise Unreachable(f"{self.url} did not answer {path} within {self._timeout_s:g} s") from None
        except http.client.HTTPException as error:
            self.close()
            raise Unparsable(f"{self.url} does not speak HTTP ({type(error).__name__})") from None
        except OSError as error:
            self.close()
            raise Unreachable(f"{self.url} cannot be reached: {error.strerror or error}") from None

    def _exchange(self, target: str) -> Answer:
        connection = self._connect()
        connection.request("GET", target, headers=self._headers)
        response = connection.getresponse()
        body = response.read(_MOST_BYTES).decode("utf-8", errors="replace")
        if response.will_close:
            self.close()
        return Answer(response.status, body, response.getheader("Location"))

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            secure = self._base.scheme == "https"
            make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            self._connection = make(self._base.hostname or "", self._base.port, timeout=self._timeout_s)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection

    def _follow(self, target: str, location: str, path: str) -> str:
        """Where a redirect leads, on the same server: a key is not carried to another."""
        there = urlsplit(urljoin(f"{self._base.scheme}://{self._base.netloc}{target}", location))
        if (there.scheme, there.netloc) != (self._base.scheme, self._base.netloc):
            raise Unparsable(f"{path} redirects to {there.scheme}://{there.netloc}: give that address instead")
        return there.path + (f"?{there.query}" if there.query else "")


def _split(url: str) -> SplitResult:
    """A base address in full; `host:port` alone means http."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return parts._replace(path=parts.path.rstrip("/"), query="", fragment="")


def _body(answer: Answer, path: str, *, with_key: bool) -> str:
    if answer.status == 200:
        return answer.body
    raise _refusal(answer, path, with_key=with_key)


def _refusal(answer: Answer, path: str, *, with_key: bool) -> ObservationError:
    if answer.status in (401, 403):
        if with_key:
            return Unauthorized(f"the API key was refused at {path} (--api-key)")
        return Unauthorized(f"{path} needs the server's API key (--api-key)")
    if answer.status in (404, 405, 501):
        said = " ".join(answer.body.split())[:80]
        return NotServed(f"{path} is not served (HTTP {answer.status}{f': {said}' if said else ''})")
    return Unparsable(f"{path} is unavailable (HTTP {answer.status})")
