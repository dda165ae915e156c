"""The command line; one file a command."""

from hessblocks.cli.app import main
