"""Each listed mutation changes a text that is there, and names tests that are there."""

import pytest

from tests.mutants.__main__ import ROOT, Mutation, mutations


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.name)
def test_a_mutation_applies(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.applied(text) != text
    assert mutation.tests
    assert all((ROOT / name).exists() for name in mutation.tests)
