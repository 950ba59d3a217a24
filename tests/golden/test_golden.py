"""Runs every golden case that a check takes; the others are listed at the end of the run."""

import pytest
from harness import Case, check_for, plan


@pytest.mark.parametrize("case", plan().ready, ids=lambda case: case.id)
def test_golden(case: Case) -> None:
    plan().ran.add(case.id)
    check_for(case)(case)


def test_case_names_are_unique() -> None:
    ids = [case.id for case in plan().ready] + [case.id for case, _ in plan().left]
    assert len(ids) == len(set(ids))
