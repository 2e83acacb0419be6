"""Where things are, for all tests."""

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def shared(repo: Path) -> Path:
    """Reference material kept beside the project; a user's clone has none of it."""
    folder = repo.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference material at {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def device_is_cpu(request: pytest.FixtureRequest) -> None:
    """MindSpore takes a device only before its first kernel, whichever test of the process that is in."""
    if any(item.get_closest_marker("cpu") for item in request.session.items):
        import mindspore as ms

        ms.set_device("CPU")
