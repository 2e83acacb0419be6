"""A browser for the tests of pages: what a page asks of others, or says to the console, fails its test."""

import pytest
from report.browser import Browser


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path) as running:
        running.size(1400, 1000)
        yield running
        assert running.console() == []
        assert [address for address in running.requests() if not address.startswith("file:")] == []
