"""Decides how messages of Envoy's external processing service, and of gRPC health checks, stand on the wire.

Names and field numbers are those of `envoy.service.ext_proc.v3` (Envoy 1.40) and `grpc.health.v1`; only the fields that
we read or write are here, and protobuf skips the others. They are declared as data instead of being generated, and
protobuf's own C parser runs on the declarations: 1 us a message, where the package with all of Envoy's API
(`envoy-data-plane` 2.2, 21 MB of dataclasses) took 1.3 ms. The pool is private, so that a program that has Envoy's real
descriptors loaded as well is not disturbed.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# kind of field -> descriptor_pb2's number; everything else is the name of a message declared here
_SCALARS: Final = {"double": 1, "bool": 8, "string": 9, "bytes": 12, "int32": 5, "int64": 3, "uint32": 13}
_MESSAGE: Final = 11
_ONCE, _REPEATED = 1, 3

# message -> {field: (number, kind)}; `*` before a kind: repeated; `name>kind`: a map from string. A name behind `|` is
# the oneof that the field belongs to.
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    # google.protobuf.Struct: not the well-known type, so that nothing needs to be imported into the pool
    "Struct": {"fields": (1, "Value>")},
    "Value": {
        "number_value|kind": (2, "double"),
        "string_value|kind": (3, "string"),
        "bool_value|kind": (4, "bool"),
        "struct_value|kind": (5, "Struct"),
        "list_value|kind": (6, "ListValue"),
    },
    "ListValue": {"values": (1, "*Value")},
    "Duration": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Metadata": {"filter_metadata": (1, "Struct>")},
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "HttpStatus": {"code": (1, "int32")},
    # what Envoy says
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "ProcessingRequest": {
        "request_headers|request": (2, "HttpHeaders"),
        "response_headers|request": (3, "HttpHeaders"),
        "request_body|request": (4, "HttpBody"),
        "response_body|request": (5, "HttpBody"),
        "request_trailers|request": (6, "HttpTrailers"),
        "response_trailers|request": (7, "HttpTrailers"),
        "metadata_context": (8, "Metadata"),
        "attributes": (9, "Struct>"),
        "observability_mode": (10, "bool"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    # what we say
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption"), "remove_headers": (2, "*string")},
    "StreamedBodyResponse": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "BodyMutation": {
        "body|mutation": (1, "bytes"),
        "clear_body|mutation": (2, "bool"),
        "streamed_response|mutation": (3, "StreamedBodyResponse"),
    },
    "CommonResponse": {
        "status": (1, "int32"),
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {"header_mutation": (1, "HeaderMutation")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
        "details": (5, "string"),
    },
    "ProcessingResponse": {
        "request_headers|response": (1, "HeadersResponse"),
        "response_headers|response": (2, "HeadersResponse"),
        "request_body|response": (3, "BodyResponse"),
        "response_body|response": (4, "BodyResponse"),
        "request_trailers|response": (5, "TrailersResponse"),
        "response_trailers|response": (6, "TrailersResponse"),
        "immediate_response|response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, "Struct"),
        "override_message_timeout": (10, "Duration"),
    },
    # grpc.health.v1
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}


def _declared() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="kvbudget/extproc.proto", package="kvbudget.extproc")
    file.syntax = "proto3"
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        groups: list[str] = []
        for words, (number, kind) in fields.items():
            field_name, _, group = words.partition("|")
            if kind.endswith(">"):
                _declare_map(message, name, field_name, number, kind[:-1])
                continue
            field = message.field.add(name=field_name, number=number, label=_REPEATED if kind[0] == "*" else _ONCE)
            _set_kind(field, kind.lstrip("*"))
            if group:
                if group not in groups:
                    groups.append(group)
                    message.oneof_decl.add(name=group)
                field.oneof_index = groups.index(group)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"kvbudget.extproc.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def _set_kind(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _MESSAGE, f".kvbudget.extproc.{kind}"


def _declare_map(message: Any, owner: str, name: str, number: int, kind: str) -> None:
    entry_name = name.title().replace("_", "") + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    _set_kind(entry.field.add(name="key", number=1, label=_ONCE), "string")
    _set_kind(entry.field.add(name="value", number=2, label=_ONCE), kind)
    message.field.add(
        name=name, number=number, label=_REPEATED, type=_MESSAGE, type_name=f".kvbudget.extproc.{owner}.{entry_name}"
    )


_CLASSES: Final = _declared()
# Classes of protobuf, made at run time: no type checker can know their fields.
ProcessingRequest: Any = _CLASSES["ProcessingRequest"]
ProcessingResponse: Any = _CLASSES["ProcessingResponse"]
HealthCheckRequest: Any = _CLASSES["HealthCheckRequest"]
HealthCheckResponse: Any = _CLASSES["HealthCheckResponse"]

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
OVERWRITE_OR_ADD: Final = 2  # HeaderValueOption.append_action


class BodyMode:
    """`ProcessingMode.BodySendMode`: how much of a body Envoy sends, and when."""

    NONE: Final = 0
    STREAMED: Final = 1
    BUFFERED: Final = 2
    BUFFERED_PARTIAL: Final = 3
    FULL_DUPLEX: Final = 4
