"""What /openapi.json describes, asked with whatever schemathesis makes of it: no error of the server's own, no status,
content type or document that is not described."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from fake_engine import FakeEngine, next_letter
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import MODEL, served

pytestmark = pytest.mark.pure
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server():
    with served(FakeEngine(speaks=next_letter)) as running:
        yield running


def ask(server, examples: int, random: bool) -> dict[str, set[int]]:
    """Statuses by path."""
    schema = schemathesis.openapi.from_url(server.address + "/openapi.json")
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode])

        @settings(max_examples=examples, deadline=None, phases=[Phase.generate], database=None, derandomize=not random,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(cases, st.sampled_from(["as it is", "of this model", "the least"]))
        def each(case, changed):
            if changed != "as it is" and isinstance(case.body, dict):  # else most are about another model, or too long
                if changed == "the least":
                    case.body = {key: value for key, value in case.body.items() if key in ("messages", "prompt")}
                case.body |= {"model": MODEL, "max_tokens": 4}
                case.body.pop("max_completion_tokens", None)
            response = case.call(base_url=server.address)
            seen.setdefault(case.operation.path, set()).add(response.status_code)
            case.validate_response(response, checks=CHECKS)

        each()
    return seen


def check(server, examples: int, random: bool) -> None:
    seen = ask(server, examples, random)
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}", "/healthz", "/readyz",
            "/metrics"} <= set(seen)  # fmt: skip
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert {200, 400} <= seen[path], seen
    assert httpx.get(server.address + "/readyz").status_code == 200


def test_what_is_described(server):
    check(server, 80, random=False)


@pytest.mark.slow
def test_what_is_described_at_length(server):
    check(server, 1000, random=True)
