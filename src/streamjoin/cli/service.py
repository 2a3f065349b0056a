"""`streamjoin init` and `streamjoin serve`."""

from __future__ import annotations

import dataclasses
import importlib.resources
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from streamjoin.model.errors import PipelineFileError, SetupError

DEFAULT_FILE = Path("streamjoin.toml")


def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented service file that works without changes, with generated streams and without Spark."""
    if file.exists() and not force:
        raise PipelineFileError(f"{file} exists already: name another file, or overwrite it with --force")
    template = importlib.resources.files("streamjoin") / "service" / "template.toml"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise SetupError(f"can't write {file}: {error.strerror}") from error
    argument = "" if file == DEFAULT_FILE else f" {file}"
    Console(stderr=True).print(
        f"wrote {file}; start it with: streamjoin serve{argument}", markup=False, highlight=False
    )


def serve(
    file: Annotated[Path, typer.Argument(help="The service file; `streamjoin init` writes one.")] = DEFAULT_FILE,
    host: Annotated[
        str | None, typer.Option(help="Overrides the file; any host except loopback needs a token.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Overrides the file; 0 picks a free port.", min=0, max=65_535)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
    quarantine: Annotated[
        list[str] | None,
        typer.Option(help="Pause this query before anything is computed; repeatable."),
    ] = None,
    engine_memory: Annotated[
        int | None,
        typer.Option(help="Overrides the file: bytes of memory, above which the largest queries are paused.", min=1),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Serve ad-hoc joins over live streams: REST, events, metrics and the page, until SIGINT or SIGTERM."""
    console = Console(stderr=True)
    try:
        from streamjoin.service import logs
        from streamjoin.service.clients import Clients
        from streamjoin.service.config_file import read_config
        from streamjoin.service.launch import check_streams, launch
        from streamjoin.service.server import serve as serve_config
        from streamjoin.service.web.tls import Certificate
    except ImportError as error:
        raise SetupError(f"the service is not installed ({error.name}): pip install 'streamjoin[service]'") from error
    if not file.exists():
        raise PipelineFileError(f"{file} does not exist: write one with `streamjoin init`, or name another")
    level = _level(log_level)
    config = read_config(file)
    logs.install(level, config.log)
    changed = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    config = dataclasses.replace(config, quarantine=tuple(quarantine or ()), **changed)  # type: ignore[arg-type]
    if engine_memory is not None:
        config = dataclasses.replace(config, limits=dataclasses.replace(config.limits, engine_memory=engine_memory))
    if config.engine == "embedded":
        check_streams(config)
    if check:
        Clients(config)
        if config.certificate is not None and config.key is not None:
            Certificate(config.certificate, config.key)
        typer.echo(f"{config.url}: streams {', '.join(config.streams)}; sinks {', '.join(config.sinks) or 'none'}")
        return
    report = logs.reporter(config.log, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
    serve_config(config, launch, report)


def _level(level: str) -> int:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise typer.BadParameter(f"--log-level is debug, info, warning or error, not {level!r}")
    return number
