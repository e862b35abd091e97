"""All checks in the order of the screen."""

from __future__ import annotations

from tengtune.doctor import access, cards, frameworks, links, machine, software
from tengtune.doctor.finding import Case, Finding

CHECKS = (cards.check, software.check, frameworks.check, access.check, links.check, machine.check)


def examine(case: Case) -> list[Finding]:
    """Everything that is found, the run's own last."""
    found = [finding for check in CHECKS for finding in check(case)]
    if case.recipe is not None:
        from tengtune.doctor import run  # brings pydantic, which takes as long as all the rest

        found += run.check(case, case.recipe)
    return found
