"""dear serve: an HTTP API for an adapted or exported model."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dear.commands.device import add_device_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=8000)
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with a token that every request must send"
    )


def add_server_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    """Arguments of both `dear serve` and `dear app`."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder made by `dear train` or `dear export`")
    parser.add_argument("--gallery", help="gallery to search, made by `dear index` with this run")
    parser.add_argument("--port", type=int, default=port, help=f"port to listen on; 0: any free one (default: {port})")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine alone)"
    )
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> None:
    token = None if args.token_file is None else read_token(args.token_file)
    serve(args, "the API is at {url}/v1, its documentation at {url}/docs", token)


def serve(
    args: argparse.Namespace,
    greeting: str,
    token: str | None = None,
    more: Callable[[Any], Sequence[Any]] = lambda _: (),
) -> None:
    """Serves the API, and the routes that `more` returns for the service."""
    from dear.server import require_packages

    require_packages()
    from dear.server.server import Address, make_app

    with Address(args.host, args.port) as address:  # first, so that a port in use is reported at once
        from dear.server.api import Service

        with Service.open(args.run_folder, args.gallery, args.device, args.precision) as service:
            app = make_app(service, address.hosts, token, more(service))
            print(f"{greeting.format(url=address.url)}    (Ctrl-C stops it)", flush=True)
            if not address.local and token is None:
                print("anyone who can reach this address can use it", flush=True)
            address.serve(app)


def read_token(file: Path) -> str:
    from dear.core.errors import DearError
    from dear.core.files import read_text

    token = read_text(file).strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise DearError(
            f"The token file {file} must contain one word of at least 16 characters: `openssl rand -hex 16` makes one."
        )
    return token
