"""A JSON value as an HTTP answer."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from appliance.frontend.http.status import NO_HEADERS


def json_response(value: object, headers: Mapping[str, str] = NO_HEADERS) -> web.Response:
    """200 with ``value`` as JSON."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, content_type="application/json", headers=headers)
