"""The committed test vectors are what Python gives today; forge holds Solidity to the same files."""

from scripts.contract_vectors import TARGET, vectors


def test_vectors_are_current() -> None:
    for name, text in vectors().items():
        assert (TARGET / name).read_text() == text, f"{name} is stale: python scripts/contract_vectors.py"
