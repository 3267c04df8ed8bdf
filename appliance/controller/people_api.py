"""The API for people and their programs: JSON over HTTP, a token, a role. Its OpenAPI document is made from what
validates the requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Struct

from appliance import __version__
from appliance.controller import tokens
from appliance.controller.blobs import BlobStore
from appliance.controller.bodies import Refused, read_body
from appliance.controller.comparing import Comparisons, Question
from appliance.controller.facts import Facts
from appliance.controller.fleet_store import DatabaseTrouble, FleetStore
from appliance.controller.people import LOG_MAX, People, Unknown
from appliance.controller.releases import NoRelease, Releases, withdrawn
from appliance.controller.rollouts import Rollouts
from appliance.controller.schemas import (
    AuditCheck,
    AuditEntry,
    Changed,
    Device,
    DriftEntry,
    EnrolmentTokenRequest,
    Fact,
    Failure,
    Group,
    GroupRequest,
    LogEntry,
    PersonTokenRequest,
    Release,
    Released,
    Replaced,
    ResumeRequest,
    RolloutRequest,
    SettingRequest,
    TokenInfo,
    TokenMade,
    TokenWithdrawn,
    WantRequest,
    WishMade,
    Withdrawn,
)
from appliance.controller.withdrawal import withdraw
from appliance.domain.errors import ApplianceError
from appliance.domain.manifest import INT64_MAX, NAME_RULE, is_name
from appliance.fleet.comparison import LEAST, Comparison
from appliance.fleet.rollout import Rollout

API: Final = "/api/v1"
BODY_BYTES_MAX: Final = 1 << 20
PACKAGE_TYPE: Final = "application/octet-stream"
SILENCE_S: Final = 60.0
SINCE_MS: Final = 7 * 24 * 3_600_000
"""For how long back versions are compared where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that was let in: who asks, the path's names, the query, the body."""

    who: str
    now_ms: int
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None

    def number(self, name: str, otherwise: int) -> int:
        """A number of the query. Raises BadRequest."""
        return whole(self.query.get(name, str(otherwise)), name)

    def group(self) -> str:
        """The group of the query; "": none is named. Raises BadRequest."""
        found = self.query.get("group", "")
        if found and not is_name(found):
            raise BadRequest(f"'group' is no name: {NAME_RULE}")
        return found


def _question(asked: Asked) -> Question:
    """What a comparison is asked about. Raises BadRequest."""
    for name in ("against_model", "device"):
        if (found := asked.query.get(name, "")) and not is_name(found):
            raise BadRequest(f"'{name}' is no name: {NAME_RULE}")
    return Question(
        model=asked.path["model"],
        version=asked.number("version", 0),
        against_model=asked.query.get("against_model", ""),
        against=asked.number("against", 0),
        group=asked.group(),
        device=asked.query.get("device", ""),
        since_ms=asked.number("since_ms", asked.now_ms - SINCE_MS),
        least=max(asked.number("least", LEAST), 1),
    )


class BadRequest(ApplianceError):
    """A request that is none."""


def whole(text: str, name: str) -> int:
    """The number that ``text`` is. Raises BadRequest."""
    short = text.isascii() and text.isdecimal() and len(text) <= len(str(INT64_MAX))
    if not short or (found := int(text)) > INT64_MAX:
        raise BadRequest(f"'{name}' is no number")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked: where, by whom at least, with which body, for which answer."""

    method: str
    path: str
    about: str
    role: str
    answer: Any
    serve: Callable[[Asked], Any]
    body: type[Struct] | None = None
    query: Sequence[str] = ()


class PeopleApi:
    """See the module."""

    def __init__(
        self,
        people: People,
        facts: Facts,
        comparisons: Comparisons,
        rollouts: Rollouts,
        releases: Releases,
        store: FleetStore,
        blobs: BlobStore,
        wall_ms: Callable[[], int],
    ) -> None:
        self._people = people
        self._facts = facts
        self._comparisons = comparisons
        self._rollouts = rollouts
        self._releases = releases
        self._store = store
        self._blobs = blobs
        self._wall_ms = wall_ms

    def operations(self) -> tuple[Operation, ...]:
        """All of it but the upload of a package."""
        return (*self._views(), *self._changes(), *self._rollout_changes(), *self._tokens())

    def _views(self) -> tuple[Operation, ...]:
        people = self._people
        return (
            _get(
                "/devices", "devices of a group, or of all, and how they stand", list[Device],
                lambda asked: people.devices(asked.group()), query=("group",),
            ),
            _get(
                "/facts", "what devices are made of, and how many have which; of one fact also which devices",
                list[Fact], self._made_of, query=("fact", "group"),
            ),
            _get(
                "/comparisons/{model}", "how a version does, site by site, against another one", Comparison,
                lambda asked: self._comparisons.compare(_question(asked), asked.now_ms),
                query=("version", "against", "against_model", "group", "device", "since_ms", "least"),
            ),
            _get("/devices/{name}", "one device", Device, lambda asked: people.device(asked.path["name"])),
            _get(
                "/groups", "groups, or the one, what is wanted in them, and how many devices are there", list[Group],
                lambda asked: people.groups(asked.group(), asked.now_ms), query=("group",),
            ),
            _get("/releases", "versions that were uploaded", list[Release], lambda asked: people.all_releases()),
            _get(
                "/rollouts", "rollouts in waves, of a model or of all, the newest last", list[Rollout],
                lambda asked: self._rollouts.all(asked.query.get("model", "")), query=("model",),
            ),
            _get("/drift", "what operators decided at boxes", list[DriftEntry], lambda asked: people.drift()),
            _get("/tokens", "tokens, without themselves", list[TokenInfo], lambda asked: people.tokens(), "admin"),
            _get(
                "/logs",
                "the newest records of a device, or of all",
                list[LogEntry],
                lambda asked: people.logs(
                    asked.query.get("device", ""), asked.number("after_ms", 0), asked.number("most", LOG_MAX)
                ),
                query=("device", "after_ms", "most"),
            ),
            _get(
                "/audit",
                "lines of the audit log",
                list[AuditEntry],
                lambda asked: people.audit(
                    asked.number("after", 0), asked.number("most", 1000), asked.number("newest", 0)
                ),
                "admin",
                ("after", "most", "newest"),
            ),
            _get(
                "/audit/check", "whether the audit log is whole", AuditCheck,
                lambda asked: people.check_audit(), "admin",
            ),
        )  # fmt: skip

    def _changes(self) -> tuple[Operation, ...]:
        people = self._people
        return (
            _post(
                "/want", "wish for a model in a group or on a device", WishMade, WantRequest,
                lambda asked: people.want(asked.body, asked.who, asked.now_ms),
            ),
            _post(
                "/settings", "change a setting of boxes", Replaced, SettingRequest,
                lambda asked: people.setting(asked.body, asked.who, asked.now_ms),
            ),
            _post(
                "/releases/{model}/{version}/withdraw", "take a release back that nobody needs", Withdrawn, None,
                lambda asked: withdraw(
                    self._store, self._blobs, asked.path["model"], whole(asked.path["version"], "version"),
                    asked.who, asked.now_ms,
                ),
            ),
            _post(
                "/devices/{name}/group", "put a device into a group", Changed, GroupRequest,
                lambda asked: people.regroup(asked.path["name"], asked.body.group, asked.who, asked.now_ms),
            ),
            _post(
                "/devices/{name}/resume", "give a device in conflict what is wanted here", Changed, None,
                lambda asked: people.resume(asked.path["name"], asked.who, asked.now_ms),
            ),
            _post(
                "/resume", "the same for all devices in conflict", Changed, None,
                lambda asked: people.resume("", asked.who, asked.now_ms),
            ),
            _post(
                "/devices/{name}/revoke", "shut a device out", Changed, None,
                lambda asked: people.revoke(asked.path["name"], asked.who, asked.now_ms), "admin",
            ),
        )  # fmt: skip

    def _rollout_changes(self) -> tuple[Operation, ...]:
        rollouts = self._rollouts
        return (
            _post(
                "/rollouts", "have a version go out in waves of groups", Rollout, RolloutRequest,
                lambda asked: rollouts.start(asked.body, asked.who, asked.now_ms),
            ),
            _post(
                "/rollouts/{model}/halt", "have nothing further wished", Rollout, None,
                lambda asked: rollouts.halt(asked.path["model"], asked.who, asked.now_ms),
            ),
            _post(
                "/rollouts/{model}/resume", "have it go on", Rollout, ResumeRequest,
                lambda asked: rollouts.resume(asked.path["model"], asked.body, asked.who, asked.now_ms),
            ),
            _post(
                "/rollouts/{model}/back", "wish for what was before it, as an order", Rollout, None,
                lambda asked: rollouts.back(asked.path["model"], asked.who, asked.now_ms),
            ),
            _post(
                "/rollouts/{model}/stop", "end it; what it wished stays", Rollout, None,
                lambda asked: rollouts.stop(asked.path["model"], asked.who, asked.now_ms),
            ),
        )  # fmt: skip

    def _tokens(self) -> tuple[Operation, ...]:
        people = self._people
        return (
            _post(
                "/tokens/enrolment", "make a token for a box", TokenMade, EnrolmentTokenRequest,
                lambda asked: people.enrolment_token(asked.body, asked.who, asked.now_ms),
            ),
            _post(
                "/tokens/person", "make a token for a person", TokenMade, PersonTokenRequest,
                lambda asked: people.person_token(asked.body, asked.who, asked.now_ms), "admin",
            ),
            _post(
                "/tokens/{name}/revoke", "withdraw a token", TokenWithdrawn, None,
                lambda asked: people.revoke_token(asked.path["name"], asked.who, asked.now_ms), "admin",
            ),
        )  # fmt: skip

    def _made_of(self, asked: Asked) -> list[Fact]:
        name, group = asked.query.get("fact", ""), asked.group()
        return self._facts.holders(name, group) if name else self._facts.counts(group)

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        found = [
            web.route(each.method, API + each.path, partial(self._serve, each)) for each in self.operations()
        ]
        document = msgspec.json.encode(self.document())

        async def described(_: web.Request) -> web.Response:
            return web.Response(body=document, content_type="application/json")

        return [*found, web.post(f"{API}/releases", self._upload), web.get(f"{API}/openapi.json", described)]

    async def _serve(self, operation: Operation, request: web.Request) -> web.Response:
        try:
            who = await self.let_in(request, operation.role)
            body = None
            if operation.body is not None:
                body = msgspec.json.decode(
                    await read_body(request, BODY_BYTES_MAX, SILENCE_S), type=operation.body
                )
            asked = Asked(
                who=who, now_ms=self._wall_ms(), path=request.match_info, query=request.query, body=body
            )
            return _json(200, await asyncio.to_thread(operation.serve, asked))
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            return failed(error)

    async def _upload(self, request: web.Request) -> web.Response:
        """A package, as its file is: verified, kept, made ready to be sent."""
        draft = self._blobs.draft()
        try:
            who = await self.let_in(request, "operator")
            with draft.open("xb") as file:
                while chunk := await _chunk(request):
                    await asyncio.to_thread(file.write, chunk)
            model, version = await asyncio.to_thread(self._releases.upload, draft, who, self._wall_ms())
            found = await asyncio.to_thread(self._people.all_releases)
            golden = await asyncio.to_thread(self._releases.golden_before, model, version)
            there = next((each for each in found if (each.model, each.version) == (model, version)), None)
            if there is None:
                raise withdrawn(f"{model}/{version}")
            return _json(200, Released(**msgspec.structs.asdict(there), golden_before=golden))
        except Exception as error:  # noqa: BLE001  a defect ends its own request
            return failed(error)
        finally:
            draft.unlink(missing_ok=True)

    async def let_in(self, request: web.Request, role: str) -> str:
        """Who asks. Raises Refused."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")

        def known() -> Any:
            with self._store.look() as rows:
                return tokens.person(rows, text.strip(), self._wall_ms())

        found = await asyncio.to_thread(known) if kind.lower() == "bearer" else None
        if found is None:
            wrong = "this token is not known here: it is wrong, too old, or was withdrawn"
            none = "a token of a person is needed: 'Authorization: Bearer NAME:SECRET'"
            raise Refused(401, "no-token", wrong if kind else none)
        if not tokens.may(found.role, role):
            raise Refused(403, "role", f"that takes the role {role}, and {found.name} is {found.role}")
        return str(found.name)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return openapi(self.operations())


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of the API: paths, who may ask, schemas of what validates requests and of answers."""
    kinds = [*(each.answer for each in operations), *(each.body for each in operations if each.body)]
    kinds += [Released, Failure]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    failure = _content("application/json", by_kind[repr(Failure)])
    paths: dict[str, Any] = {}
    for each in operations:
        item: dict[str, Any] = {
            "summary": each.about,
            "operationId": f"{each.method.lower()}{each.path.title().translate(_PLAIN)}",
            "description": f"For the role {each.role}.",
            "responses": {
                "200": {
                    "description": "done",
                    "content": _content("application/json", by_kind[repr(each.answer)]),
                },
                "default": {"description": "refused", "content": failure},
            },
            "parameters": [
                *(
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in _names(each)
                ),
                *({"name": name, "in": "query", "schema": {"type": "string"}} for name in each.query),
            ],
        }
        if each.body is not None:
            item["requestBody"] = {
                "required": True,
                "content": _content("application/json", by_kind[repr(each.body)]),
            }
        paths.setdefault(API + each.path, {})[each.method.lower()] = item
    paths[f"{API}/releases"]["post"] = {
        "summary": "upload a package",
        "operationId": "postReleases",
        "description": "For the role operator. The body is the package's file.",
        "requestBody": {"required": True, "content": _content(PACKAGE_TYPE, {"type": "string", "format": "binary"})},
        "responses": {
            "200": {"description": "released", "content": _content("application/json", _RELEASE)},
            "default": {"description": "refused", "content": failure},
        },
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "Edge appliance controller", "version": __version__},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_PATTERN: Final = re.compile(r"Expected `str` matching regex '\^\S*'")
_RELEASE: Final = {"$ref": "#/components/schemas/Released"}
_PLAIN: Final = str.maketrans("", "", "/{}_-")


def _names(operation: Operation) -> list[str]:
    return [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]


def _content(kind: str, schema: Any) -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _get(
    path: str,
    about: str,
    answer: Any,
    serve: Callable[[Asked], Any],
    role: str = "viewer",
    query: Sequence[str] = (),
) -> Operation:
    return Operation(method="GET", path=path, about=about, role=role, answer=answer, serve=serve, query=query)


def _post(
    path: str,
    about: str,
    answer: Any,
    body: type[Struct] | None,
    serve: Callable[[Asked], Any],
    role: str = "operator",
) -> Operation:
    return Operation(method="POST", path=path, about=about, role=role, answer=answer, serve=serve, body=body)


async def _chunk(request: web.Request) -> bytes:
    """The next bytes of an upload, which may take long but not stand still; none at the end. Raises Refused."""
    try:
        async with asyncio.timeout(SILENCE_S):
            return await request.content.readany()
    except TimeoutError as error:
        raise Refused(408, "too-slow", f"nothing of the upload came for {SILENCE_S:g} s") from error


def failed(error: Exception) -> web.Response:
    status, code = 500, "defect"
    if isinstance(error, Refused):
        status, code = error.status, error.code
    elif isinstance(error, msgspec.MsgspecError | UnicodeError | RecursionError | BadRequest):
        status, code = 400, "bad-request"
    elif isinstance(error, Unknown | NoRelease):
        status, code = 404, "not-there"
    elif isinstance(error, DatabaseTrouble | OSError):
        status, code = 503, "trouble"
    elif isinstance(error, ApplianceError):
        status, code = 422, "refused"
    text = _plain(str(error)) if status != 500 else f"a defect of the controller: {type(error).__name__}"
    return _json(status, Failure(code, text))


def _plain(text: str) -> str:
    """The text without a pattern that only programs read."""
    return _PATTERN.sub("not a name: a-z 0-9 . _ -, at most 64, not a dot first", text)


def _json(status: int, value: Any) -> web.Response:
    """The answer, sent by and by: as one piece, that of a large fleet would keep the event loop from all boxes."""
    body = BytesIO(msgspec.json.encode(value))
    return web.Response(status=status, body=body, content_type="application/json")
