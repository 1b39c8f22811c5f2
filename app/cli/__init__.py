"""The command line, one file per command; importing it imports nothing heavy."""

from app.cli.main import cli as cli
