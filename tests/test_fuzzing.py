"""A short fuzzing of every decoder; `make fuzz` goes on for as long as one likes."""

import pytest

from tests.fuzz import decoders

pytestmark = pytest.mark.one_file


def test_the_decoders_stand_a_short_fuzzing(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine everything is slow.
    monkeypatch.setattr(decoders, "SLOW_SECONDS", 600)
    assert decoders.decode_anything(2, 1) == 0
