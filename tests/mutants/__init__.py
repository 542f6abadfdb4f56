"""Mutants: faults that were once survived by the tests of their ledger row, and faults that are feared most."""

from mutants import feared, survivors

MUTANTS = (*survivors.MUTANTS, *feared.MUTANTS)
