"""`python -m sessionstore.cli`."""

from sessionstore.cli import main

main()
