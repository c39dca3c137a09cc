"""dear app: a local page around one adapted model."""

import argparse

from dear.commands.serve import add_server_arguments, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=7860)


def run(args: argparse.Namespace) -> None:
    def page(service):
        from dear.server.page.views import Page

        return Page(args.run_folder, service).routes

    serve(args, "the page is at {url}", more=page)
