"""A web server, a CDN or an object store as a source of files: plain GET, with Range to go on.

Importing this needs the library urllib3, of the extra `deliver`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from orchestrator.packs.fetching import CutError, DeliveryError, FetchLimits, FileStream, Source
from orchestrator.version import VERSION

_REDIRECTS: Final = 3
_REFUSALS: Final = {
    404: "it is not there",
    407: "the proxy wants another name or password",
    416: "it is shorter than the release says",
}
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": f"orchestrator/{VERSION}"}


def http_source(address: str, limits: FetchLimits | None = None) -> Source:
    """The files below an address, http or https, through the proxy that the environment names for it."""
    address, limits = address.rstrip("/"), limits or FetchLimits()
    pool = _pool(address, limits)

    @contextmanager
    def opened(name: str, start: int) -> Iterator[FileStream]:
        path, headers = f"{address}/{name}", _HEADERS | ({"Range": f"bytes={start}-"} if start else {})
        try:
            with closing(_answer(pool, path, headers)) as response:
                yield _stream(path, start, response)
        except urllib3.exceptions.HTTPError as error:
            why = str(error.args[-1]).rpartition("): ")[2]  # behind "HTTPSConnection(host=...): "
            raise CutError(why[:200].strip()) from error

    return Source(address, opened, limits)


def _pool(address: str, limits: FetchLimits) -> urllib3.PoolManager:
    parts = urlsplit(address)
    proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    if not proxy:
        return urllib3.PoolManager(retries=False, timeout=limits.wait_s)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        user = urlsplit(proxy).netloc.rpartition("@")[0]
        headers = urllib3.make_headers(proxy_basic_auth=unquote(user)) if user else None
        return urllib3.ProxyManager(proxy, retries=False, timeout=limits.wait_s, proxy_headers=headers)
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        said = f"the proxy that the environment names for it cannot be used: {error}"
        raise DeliveryError(address, said, f"mend {parts.scheme}_proxy, or set no_proxy") from None


def _answer(pool: urllib3.PoolManager, path: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
    """Redirects are followed here, since urllib3 would leave https, and read an answer that has no end."""
    at = path
    for _ in range(1 + _REDIRECTS):
        response = pool.request("GET", at, headers=headers, preload_content=False, redirect=False)
        if not (location := response.get_redirect_location()):
            return response
        response.close()
        allowed = ("https://",) if at.startswith("https://") else ("http://", "https://")
        with suppress(ValueError):
            at = urljoin(at, location)
            if at.startswith(allowed):
                continue
        raise DeliveryError(path, f"the server redirects to {location[:200]!r}, and not to {allowed[0]}")
    raise DeliveryError(path, f"the server redirects more than {_REDIRECTS} times")


def _stream(path: str, start: int, response: urllib3.BaseHTTPResponse) -> FileStream:
    status, headers = response.status, response.headers
    if status == 429 or status >= 500:
        raise CutError(f"the server answers {status}")
    is_part = status == 206 and headers.get("Content-Range", "").startswith(f"bytes {start}-")
    if not is_part and status != 200:
        why = _REFUSALS.get(status, "no file")
        raise DeliveryError(path, f"{why}: the server answers {status}")
    if headers.get("Content-Encoding", "identity") != "identity":
        raise DeliveryError(path, "the server encodes it, and its hash is of what is not encoded")
    read = partial(response.read1, decode_content=False)
    return FileStream(start if is_part else 0, response.length_remaining, read)
