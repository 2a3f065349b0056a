"""The ASGI application: routes, errors, the guard before them, the page, and the OpenAPI description.

In the description an operation's id is the name of its function and stays the same from version to version; errors are
described as problem details alone, event streams as such, and every operation but the probes by the token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from streamjoin._version import __version__
from streamjoin.queries.engine.engine import Engine
from streamjoin.service.config import ServiceConfig
from streamjoin.service.routes import queries as routes_queries
from streamjoin.service.routes import streams as routes_streams
from streamjoin.service.routes import system as routes_system
from streamjoin.service.routes.examples import EXAMPLES
from streamjoin.service.state import Service
from streamjoin.service.web import problems
from streamjoin.service.web.cached import Kept
from streamjoin.service.web.guard import OPEN, Guard
from streamjoin.service.web.problems import MEDIA_TYPE

PAGE: Final = Path(__file__).parent / "page"


ABOUT: Final = (
    "Create, watch and drop joins of live streams while the streams run. Errors are problem details (RFC 9457). "
    "Every path that answers GET answers HEAD too. Lists take `limit` and `cursor`: `next` of a response is the cursor "
    "of the next one, or null after the last."
)
_TAGS: Final = (
    ("queries", "Joins: create, check, watch, pause, drop."),
    ("streams", "What queries read, and what could not be joined."),
    ("plan", "How queries are computed together, and what happened."),
    ("service", "Probes, metrics, limits."),
)
_SCHEME: Final = "token"
_ONLY_FOR_CHANGES: Final = ("403", "415")


def operation_id(route: APIRoute) -> str:
    """The id of a route's operation."""
    return route.name


def describe_api(app: FastAPI, locked: bool) -> None:
    """Describe an app; `locked` says whether it has a token."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, locked)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _described(app: FastAPI, locked: bool) -> dict[str, Any]:
    tags = [{"name": name, "description": text} for name, text in _TAGS]
    schema = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=tags
    )
    about = "The token of the service, if its file has one."
    components = schema["components"]
    components["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer", "description": about}}
    # FastAPI's own shape of errors, which no response has.
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    schema["security"] = [{_SCHEME: []}] if locked else [{}, {_SCHEME: []}]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if method == "get":
                for status in _ONLY_FOR_CHANGES:
                    operation["responses"].pop(status, None)
            if path in OPEN:
                operation["security"] = []
            for status, response in operation["responses"].items():
                _tidy(response.get("content", {}), EXAMPLES.get((operation["operationId"], status)))
    return schema


def _tidy(content: dict[str, Any], example: Any) -> None:
    if MEDIA_TYPE in content:
        for other in content.keys() - {MEDIA_TYPE}:
            del content[other]
    elif example is not None:
        content["application/json"]["example"] = example


def create_app(engine: Engine | None, config: ServiceConfig | None = None) -> FastAPI:
    """The application for an engine; without one it reports that it is starting, until `app.state.service.attach`."""
    service = Service(config or ServiceConfig())
    app = FastAPI(
        title="streamjoin",
        version=__version__,
        description=ABOUT,
        generate_unique_id_function=operation_id,
        openapi_url="/api/v1/openapi.json",
        # FastAPI's pages load scripts from other sites; the service's own page works offline.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    problems.install(app)
    app.include_router(routes_system.router)
    app.include_router(routes_streams.router)
    app.include_router(routes_queries.router)
    _serve_page(app)
    describe_api(app, service.clients.required)
    app.add_middleware(Kept, hub=service.hub)
    app.add_middleware(Guard, config=service.config, requests=service.requests, clients=service.clients)
    if engine is not None:
        service.attach(engine)
    return app


def _serve_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        index = PAGE / "index.html"
        if not index.is_file():
            raise problems.Problem(404, "no-page", "this build has no page; the API is at /api/v1")
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False), name="static")
