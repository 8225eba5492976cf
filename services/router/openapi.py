"""The OpenAPI page: request bodies as the decoder checks them, from the same declarations."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
STREAMED = (ChatRequest, CompletionRequest)  # answered by events where the body asks for it
TEMPLATE = "#/components/schemas/{name}"


def takes(kind: type) -> dict[str, Any]:
    """For a route whose body is read as `kind`."""
    schema = {"$ref": TEMPLATE.format(name=kind.__name__)}
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    return body | ({"responses": {"200": {"content": {"text/event-stream": {}}}}} if kind in STREAMED else {})


def describe(app: FastAPI) -> None:
    """Makes `app` serve a page that holds the bodies' schemas."""

    def page() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, components = msgspec.json.schema_components(BODIES, ref_template=TEMPLATE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = page  # type: ignore[method-assign]  # FastAPI's documented way to extend the page
