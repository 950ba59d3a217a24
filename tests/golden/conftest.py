"""Reports, per family, how many golden cases ran and which are not implemented yet."""

from itertools import groupby

from harness import discover, plan


def pytest_terminal_summary(terminalreporter) -> None:
    made = plan()
    if not made.ran:
        return
    left: dict[str, list[tuple[str, str]]] = {}
    for case, reason in made.left:
        left.setdefault(case.family, []).append((reason, case.name))
    terminalreporter.section("golden cases")
    for family, cases in groupby(discover(), key=lambda case: case.family):
        ids = [case.id for case in cases]
        terminalreporter.line(f"{family}: ran {len(made.ran.intersection(ids))} of {len(ids)}")
        for reason, group in groupby(sorted(left.get(family, [])), key=lambda pair: pair[0]):
            names = ", ".join(name for _, name in group)
            terminalreporter.line(f"  not implemented yet ({reason}): {names}")
