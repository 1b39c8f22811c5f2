"""`python -m app`: the same as the command `tickscribe`."""

from app.cli import main

main()
