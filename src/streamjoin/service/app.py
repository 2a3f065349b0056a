"""The ASGI application: routes, errors, the guard before them, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from streamjoin._version import __version__
from streamjoin.service import openapi
from streamjoin.service.config import ServiceConfig
from streamjoin.service.contract import ServedEngine
from streamjoin.service.routes import queries as routes_queries
from streamjoin.service.routes import streams as routes_streams
from streamjoin.service.routes import system as routes_system
from streamjoin.service.state import Service
from streamjoin.service.web import problems
from streamjoin.service.web.cached import Kept
from streamjoin.service.web.guard import Guard

PAGE: Final = Path(__file__).parent / "page"


def create_app(engine: ServedEngine | None, config: ServiceConfig | None = None) -> FastAPI:
    """The application for an engine; without one it reports that it is starting, until `app.state.service.attach`."""
    service = Service(config or ServiceConfig())
    app = FastAPI(
        title="streamjoin",
        version=__version__,
        description=openapi.ABOUT,
        generate_unique_id_function=openapi.operation_id,
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
    openapi.install(app, service.config.token is not None)
    app.add_middleware(Kept, hub=service.hub)
    app.add_middleware(Guard, config=service.config, requests=service.requests)
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
