"""`laneway serve`: its options. What it does is `serving.py`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="A Hugging Face repo id, a folder, a .gguf file or a built-in name.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; LANEWAY_CONFIG names one too.", show_default=False)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. \\[default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. \\[default: 8000]")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the settings and stop.")] = False,
) -> None:
    """Serve MODEL, or what the config names, on an OpenAI-compatible API.

    Without MODEL and without backends in the config it serves a small built-in chat model.
    """
    from gateway.cli.serving import serve_until_stopped  # loads the whole gateway

    flags: dict[str, object] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    raise typer.Exit(serve_until_stopped(config, model, flags, check=check))
