"""The document of ``/status.json`` as typed values, and how it is fetched.

Fields that are not known are ignored and fields that are missing are an error, as the document's format promises.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection, InvalidURL
from typing import Any, TypeVar

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.tls import HTTP, Tls, add_arguments, tls_of

DEFAULT_URL = "http://127.0.0.1:8000"
FORMAT = 1
FETCH_S = 5.0

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSnapshot:
    """Durations per bucket, not cumulative, trailing zeros left out; quantiles since the start in microseconds."""

    count: int
    p50_us: float | None
    p99_us: float | None
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """A worker process. ``asked`` and ``leased`` count the requests that the engine and the front end gave it,
    ``leased_now`` says whether the front end may, ``confinement`` what the worker is kept from; all
    nothing where the server does not tell."""

    worker: int
    pid: int
    state: str
    models: tuple[str, ...]
    memory_bytes: int
    restarts: int
    asked: int
    leased: int
    leased_now: bool
    confinement: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSnapshot:
    """A model version. ``requests`` counts those that ended, by outcome, ``leased`` those answered without the engine,
    ``inferences`` rows answered, ``executions`` batches run and ``executed_rows`` their rows, answered or not.
    ``trial`` says how far it is on its way to serving, "" when that is behind it; ``residency`` is how much of it is in
    memory."""

    name: str
    version: int
    state: str
    residency: str
    reason: str
    queued: int
    running: int
    workers: tuple[int, ...]
    requests: Mapping[str, int]
    leased: int
    inferences: int
    executions: int
    executed_rows: int
    batch_mean: float | None
    total: HistogramSnapshot
    trial: str = ""
    loading: str = ""
    tries_left: int = 0
    next_try_ms: int = 0

    @property
    def key(self) -> str:
        """``name/version``."""
        return f"{self.name}/{self.version}"

    @property
    def ended(self) -> int:
        """Requests that ended, whatever their outcome."""
        return sum(self.requests.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An appliance at one moment. ``slots`` are places that the front end keeps for requests it serves by itself;
    ``trouble`` is why its store cannot be read, "" when it can. Models and their workers take ``models_used_bytes`` of
    ``models_budget_bytes`` (0: not told); ``problems`` are what of that cannot be as it is configured. ``over_quota``
    counts requests that were refused for their client's quota, by its name (``*``: all that have none)."""

    server: str
    accepting: bool
    now_ns: int
    started_ns: int
    queued_requests: int
    running_requests: int
    arena_used_bytes: int
    arena_limit_bytes: int
    slots: int
    slots_used: int
    bounds_us: tuple[float, ...]
    workers: tuple[WorkerSnapshot, ...]
    models: tuple[ModelSnapshot, ...]
    trouble: str = ""
    models_used_bytes: int = 0
    models_budget_bytes: int = 0
    problems: tuple[str, ...] = ()
    over_quota: Mapping[str, int] = field(default_factory=dict)

    @property
    def uptime_s(self) -> float:
        """Seconds since the appliance started."""
        return (self.now_ns - self.started_ns) / 1e9


def add_url(parser: argparse.ArgumentParser, whose: str) -> None:
    """Declare where an appliance answers, and over TLS; ``whose`` address that is."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"{whose}, or unix:PATH (default {DEFAULT_URL})")
    add_arguments(parser)


def is_unix(url: str) -> bool:
    """Whether that is the address of a Unix socket."""
    return url.startswith("unix:")


class _OnSocket(HTTPConnection):
    """Over the Unix socket ``path``."""

    def __init__(self, host: str, *, path: str, **rest: Any) -> None:
        super().__init__(host, **rest)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _OverUnix(urllib.request.HTTPHandler):
    """HTTP over a Unix socket, whatever host is asked."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> Any:
        """See HTTPHandler."""
        return self.do_open(_OnSocket, req, path=self._path)  # type: ignore[arg-type]  # as the handler itself does


class _Named(HTTPSConnection):
    """Over TLS to a server that may bear another name than its host's."""

    def __init__(self, host: str, *, tls: Tls, **rest: Any) -> None:
        super().__init__(host, context=tls.context, **rest)
        self._tls = tls

    def connect(self) -> None:
        """Connect and shake hands."""
        HTTPConnection.connect(self)
        self.sock = self._tls.context.wrap_socket(
            self.sock, server_hostname=self._tls.server_name or self.host
        )


class _OverTls(urllib.request.HTTPSHandler):
    """HTTPS as the arguments of a command have it."""

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls

    def https_open(self, req: urllib.request.Request) -> Any:
        """See HTTPSHandler."""
        return self.do_open(_Named, req, tls=self._tls)  # type: ignore[arg-type]  # as the handler itself does


class Source:
    """Where the document comes from: an HTTP address, spoken to over TLS where the arguments say so, or a Unix socket,
    where no server speaks it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """``arguments`` are those of ``add_url``. Raises CommandFailed."""
        tls = tls_of(arguments, HTTP)
        self.url: str = arguments.url
        if is_unix(self.url):
            self._base = "http://localhost"
            path = self.url.removeprefix("unix:").removeprefix("//")
            self._open = urllib.request.build_opener(_OverUnix(path)).open
            return
        base = self.url if "://" in self.url else f"http://{self.url}"
        self._base = (base if tls is None else base.replace("http://", "https://", 1)).rstrip("/")
        self._open = urllib.request.build_opener(*(() if tls is None else (_OverTls(tls),))).open

    def fetch(self) -> bytes:
        """The document. Raises CommandFailed when no server answers there with one."""
        return _fetched(self._open, self._base, self.url)


def _fetched(get: Callable[..., Any], base: str, url: str) -> bytes:
    try:
        with get(f"{base}/status.json", timeout=FETCH_S) as answer:
            document: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            told = error.read(1000)
        hint = "it speaks TLS, so give --ca FILE" if b"speaks TLS" in told else "is it an appliance?"
        raise CommandFailed(f"{base} answered {error.code} {error.reason}; {hint}", Exit.REFUSED) from None
    except InvalidURL as error:
        raise CommandFailed(f"'{url}' is not an address ({error}); give --url as HOST:PORT") from None
    except (HTTPException, ConnectionResetError):
        if base.startswith("https://"):
            text = "but ended the connection; where clients must show a certificate, give --cert and --key"
            raise CommandFailed(f"something answers at {base}, {text}", Exit.UNREACHABLE) from None
        raise _no_appliance(url, "what it says is not HTTP; where that speaks TLS, give --ca FILE") from None
    except (OSError, ValueError) as error:
        reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLError):
            raise _no_tls(base, reason) from None
        where = url if is_unix(url) else base
        raise CommandFailed(
            f"no server answers at {where} ({reason}); start one with 'appliance serve', or give its --url",
            Exit.UNREACHABLE,
        ) from None
    return document


def _no_tls(base: str, error: ssl.SSLError) -> CommandFailed:
    said = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
    return CommandFailed(
        f"something answers at {base}, but TLS with it failed: {said}; --ca "
        "must hold who signed the server's certificate, --server-name a name in it, and --cert and --key what the "
        "server wants to see",
        Exit.UNREACHABLE,
    )


def _server_words(server: Mapping[str, Any]) -> str:
    """Its name and version, and what listens, where it tells."""
    words = f"{server['name']} {server['version']}"
    return f"{words} ({server['front_end']})" if server.get("front_end") else words


def parse(document: bytes, url: str) -> Snapshot:
    """Read the document that came from ``url``; raises CommandFailed when it is not one of FORMAT."""
    return understood(document, url, _snapshot)


def understood(document: bytes, url: str, read: Callable[[Mapping[str, Any]], Read]) -> Read:
    """What ``read`` makes of the document that came from ``url``. Raises CommandFailed when it is not one of FORMAT,
    or lacks what is looked for."""
    try:
        fields = json.loads(document)
        if fields["format"] != FORMAT:
            raise CommandFailed(f"the server speaks status format {fields['format']}, this command {FORMAT}")
        return read(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_appliance(url, f"its status cannot be read: {error!r}") from error


def _no_appliance(url: str, reason: str) -> CommandFailed:
    return CommandFailed(
        f"something answers at {url}, but it is not the HTTP port of an appliance ({reason}); "
        f"give --url the HTTP address that 'appliance serve' shows (default {DEFAULT_URL})",
        Exit.UNREACHABLE,
    )


def _snapshot(fields: Mapping[str, Any]) -> Snapshot:
    residency = fields.get("residency", {})
    return Snapshot(
        server=_server_words(fields["server"]),
        accepting=fields["accepting"],
        now_ns=fields["now_ns"],
        started_ns=fields["started_ns"],
        queued_requests=fields["queued_requests"],
        running_requests=fields["running_requests"],
        arena_used_bytes=fields["arena_used_bytes"],
        arena_limit_bytes=fields["arena_limit_bytes"],
        slots=sum(slots["count"] for slots in fields.get("slots", ())),
        slots_used=sum(slots["used"] for slots in fields.get("slots", ())),
        bounds_us=tuple(fields["bounds_us"]),
        workers=tuple(map(_worker, fields["workers"])),
        models=tuple(map(_model, fields["models"])),
        trouble=(fields.get("store") or {}).get("trouble", ""),
        models_used_bytes=residency.get("used_bytes", 0),
        models_budget_bytes=residency.get("budget_bytes", 0),
        problems=tuple(residency.get("problems", ())),
        over_quota={
            each["label"]: each["rate"] + each["in_flight"]
            for each in (fields.get("quotas") or {}).get("refused", ())
        },
    )


def _worker(fields: Mapping[str, Any]) -> WorkerSnapshot:
    return WorkerSnapshot(
        worker=fields["worker"],
        pid=fields["pid"],
        state=fields["state"],
        models=tuple(fields["models"]),
        memory_bytes=fields["memory_bytes"],
        restarts=fields["restarts"],
        asked=fields.get("asked", 0),
        leased=fields.get("leased", 0),
        leased_now=fields.get("leased_now", False),
        confinement=tuple(fields.get("confinement", ())),
    )


def _model(fields: Mapping[str, Any]) -> ModelSnapshot:
    total = fields["stages"]["total"]
    return ModelSnapshot(
        name=fields["name"],
        version=fields["version"],
        state=fields["state"],
        residency=fields.get("residency", "resident"),
        reason=fields["reason"],
        queued=fields["queued"],
        running=fields["running"],
        workers=tuple(fields["workers"]),
        requests=fields["requests"],
        leased=fields.get("leased", 0),
        inferences=fields["inferences"],
        executions=fields["executions"],
        executed_rows=fields["executed_rows"],
        batch_mean=fields["batch_mean"],
        total=HistogramSnapshot(
            count=total["count"],
            p50_us=total["p50_us"],
            p99_us=total["p99_us"],
            counts=tuple(total["counts"]),
        ),
        trial=_trial(fields.get("trial")),
        loading=_loading(fields.get("loading")),
        tries_left=fields.get("tries_left", 0),
        next_try_ms=fields.get("next_try_ms", 0),
    )


def _loading(fields: Mapping[str, Any] | None) -> str:
    """How far a load is, in words."""
    if fields is None:
        return ""
    total = fields["total_bytes"]
    share = f", {fields['done_bytes'] / total:.0%} read" if fields["stage"] == "reading" and total else ""
    return f"{fields['stage']}{share}"


def _trial(fields: Mapping[str, Any] | None) -> str:
    """A version's trial in words."""
    if fields is None:
        return ""
    said = [str(fields["stage"])]
    if fields["before"]:
        said.append(f"after version {fields['before']}")
    return ", ".join((*said, *trial_words(fields)))


def trial_words(fields: Mapping[str, Any]) -> Iterator[str]:
    """A version's ``trial`` in words: which requests are its own, what was seen of it so far."""
    if fields["percent"]:
        header = str(fields.get("header", ""))
        share, of = f"{fields['percent']:g} %", f"clients by {header}" if header else "requests"
        yield f"requests with {header}" if ":" in header else f"{share} of the {of}"
    if fields["compared"]:
        yield f"{fields['compared']} answers compared, {fields['differing']} different"
    if fields["answered"] or fields["failed"]:
        yield f"{fields['answered']} answered, {fields['failed']} failed"
