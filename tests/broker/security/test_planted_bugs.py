"""Planted bugs replace source text: each text is in its file once, or the bug would never be planted."""

from __future__ import annotations

import pytest

from tests.broker.security import test_acl_mutants, test_authentication_mutants
from tests.broker.security.planted_bugs import Mutant
from tests.kit.broker_process import ROOT

MUTANTS: dict[str, Mutant] = {**test_acl_mutants.MUTANTS, **test_authentication_mutants.MUTANTS}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_text_of_a_bug_is_in_its_file(name: str) -> None:
    mutant = MUTANTS[name]
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.code) == 1
    assert (ROOT / mutant.tests.split()[0].split("::")[0]).exists()
