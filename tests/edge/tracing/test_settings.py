"""Where traces go, by flag and by OpenTelemetry's environment; what is wrong there stops no gate."""

import logging

import pytest

from kvbudget.edge.tracing.context import RECORD_ALL, Sampler
from kvbudget.edge.tracing.settings import tracing_settings
from kvbudget.errors import BadValueError

HERE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_nothing_is_traced_unless_somebody_says_where_to() -> None:
    assert tracing_settings(None, {}) is None
    assert tracing_settings(None, {HERE: " ", "OTEL_SERVICE_NAME": "x"}) is None


@pytest.mark.parametrize(
    ("flag", "environment", "url"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {HERE: "http://other:1"}, "http://c:4318/v1/traces"),
        ("https://c/otlp", {}, "https://c/otlp/v1/traces"),
        ("http://[::1]:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://[::1]:4318/v1/traces"),
        (None, {HERE: "http://c:4318"}, "http://c:4318/v1/traces"),
        (None, {HERE: "http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x"}, "http://t:1/x"),
        (None, {HERE: "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http://c:4318/v1/traces"),
    ],
)
def test_the_address_is_made_as_opentelemetry_makes_it(flag: str | None, environment: dict[str, str], url: str) -> None:
    found = tracing_settings(flag, environment)
    assert found is not None
    assert found.url == url


@pytest.mark.parametrize("more", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_environment_can_switch_itself_off_and_the_flag_stands_above_it(more: dict[str, str]) -> None:
    assert tracing_settings(None, {HERE: "http://c:4318", **more}) is None
    assert tracing_settings("http://c:4318", more) is not None


@pytest.mark.parametrize("damage", ["c:4318", "grpc://c:4317", "http://", "http://user:secret@c:1", "http://c:x",
                                    "http://c:1?x=1", "http://ü:1"])  # fmt: skip
def test_an_address_that_cannot_be_is_refused_by_flag_and_only_logged_by_environment(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadValueError, match="--otlp-endpoint"):
        tracing_settings(damage, {})
    assert tracing_settings(None, {HERE: damage}) is None
    assert HERE in caplog.text


def test_a_protocol_that_is_not_spoken_is_said_and_nothing_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    assert tracing_settings(None, {HERE: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    assert "4318" in caplog.text


@pytest.mark.parametrize(
    ("name", "argument", "sampler"),
    [
        ("", "", RECORD_ALL),
        ("always_on", "0.5", Sampler(1.0, False)),
        ("always_off", "", Sampler(0.0, False)),
        ("traceidratio", "0.25", Sampler(0.25, False)),
        ("traceidratio", "", Sampler(1.0, False)),
        ("parentbased_always_on", "", Sampler(1.0, True)),
        ("parentbased_always_off", "", Sampler(0.0, True)),
        ("parentbased_traceidratio", "0.1", Sampler(0.1, True)),
    ],
)
def test_samplers_have_their_standard_names(name: str, argument: str, sampler: Sampler) -> None:
    found = tracing_settings("http://c:1", {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument})
    assert found is not None
    assert found.sampler == sampler


@pytest.mark.parametrize(
    "more",
    [{"OTEL_TRACES_SAMPLER": "jaeger_remote"}]
    + [{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": x} for x in ("2", "-1", "nan", "all")],
)
def test_a_sampler_that_is_not_known_is_said_and_all_are_recorded(
    more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found = tracing_settings("http://c:1", more)
    assert found is not None
    assert found.sampler.ratio == 1.0
    assert "OTEL_TRACES_SAMPLER" in caplog.text


def test_headers_are_read_and_shown_nowhere() -> None:
    told = "Authorization=Bearer%20secret, x-b = 2,"
    found = tracing_settings("http://c:1", {"OTEL_EXPORTER_OTLP_HEADERS": told})
    assert found is not None
    assert found.headers == ((b"authorization", b"Bearer secret"), (b"x-b", b"2"))
    assert "secret" not in repr(found)
    other = tracing_settings(
        "http://c:1", {"OTEL_EXPORTER_OTLP_HEADERS": told, "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=1"}
    )
    assert other is not None
    assert other.headers == ((b"a", b"1"),)


@pytest.mark.parametrize("damage", ["secret", "=secret", "na me=secret", "a=secret%0d%0ax:y", "a=%ff"])
def test_headers_that_cannot_be_sent_are_refused_without_telling_them(damage: str) -> None:
    with pytest.raises(BadValueError) as refused:
        tracing_settings("http://c:1", {"OTEL_EXPORTER_OTLP_HEADERS": damage})
    assert "%0d" not in str(refused.value)
    assert damage == "secret" or "secret" not in str(refused.value)


def test_names_of_the_service_have_the_order_of_the_specification() -> None:
    def resource(**environment: str) -> dict[str, str]:
        found = tracing_settings("http://c:1", environment)
        assert found is not None
        return dict(found.resource)

    assert resource() == {"service.name": "kvbudget"}
    attributes = "service.name=a,deployment.environment.name=x%20y,nonsense,"
    assert resource(OTEL_RESOURCE_ATTRIBUTES=attributes) == {
        "service.name": "a",
        "deployment.environment.name": "x y",
    }
    assert resource(OTEL_RESOURCE_ATTRIBUTES=attributes, OTEL_SERVICE_NAME="b")["service.name"] == "b"
