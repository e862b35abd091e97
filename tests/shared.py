"""Where the large shared test data lies, when it is there. The suite is strong without it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


def shared_path(relative: str) -> Path:
    """The path of a shared file; the test is skipped, with the reason, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"shared data is not here: {relative}")
    return path
