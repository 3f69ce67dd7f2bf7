"""The command line. Data goes to stdout, words about it to stderr; exit codes are those of sysexits where they say something.

0 done · 1 refused or failed · 2 wrong usage · 69 database unavailable · 74 file trouble · 75 busy or being generated, try again
"""

from sessionstore.cli import keys, looking, upkeep
from sessionstore.cli.group import EX_TEMPFAIL, EX_UNAVAILABLE, main
from sessionstore.cli.options import database_option, settings_of

__all__ = ["EX_TEMPFAIL", "EX_UNAVAILABLE", "database_option", "keys", "looking", "main", "settings_of", "upkeep"]
