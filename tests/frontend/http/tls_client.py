"""Whom a client of a test trusts and who it is."""

from __future__ import annotations

import ssl

from tests.frontend.grpc.certificate_files import Pair


def trusting(authority: Pair, own: Pair | None = None, *protocols: str) -> ssl.SSLContext:
    """A client that trusts ``authority``, shows ``own``, and asks for one of ``protocols``."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
