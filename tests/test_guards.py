"""What `make prove-guards` takes out of the code is there, and so are the tests that it asks."""

import re
from collections import Counter

from tests.prove_guards.__main__ import ROOT
from tests.prove_guards.mutants import MUTANTS


def test_every_guard_stands_in_the_code_once() -> None:
    texts = {file: (ROOT / file).read_text() for file in {mutant.file for mutant in MUTANTS}}
    assert [mutant.name for mutant in MUTANTS if texts[mutant.file].count(mutant.old) != 1] == []


def test_every_guard_has_a_test_and_a_name_of_its_own() -> None:
    tests = {file: set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / file).read_text(), flags=re.MULTILINE))
             for file in {mutant.tests for mutant in MUTANTS}}  # fmt: skip
    assert [mutant.name for mutant in MUTANTS if mutant.test not in tests[mutant.tests]] == []
    assert [name for name, number in Counter(mutant.name for mutant in MUTANTS).items() if number > 1] == []
