"""Documents against the definitions that their formats' own projects publish."""

from __future__ import annotations

import json
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement


def invalid(bill: bytes) -> str | None:
    """Why a document does not follow CycloneDX's schema."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode())
    return None if error is None else repr(error)


def checked(statement: bytes) -> dict[str, Any]:
    """A statement, after in-toto's and SLSA's own definitions have read it."""
    document: dict[str, Any] = json.loads(statement)
    read = json_format.ParseDict(document, statement_pb2.Statement())
    Statement.copy_from_pb(read).validate()
    assert read.type == document["_type"]
    predicate = json_format.ParseDict(document["predicate"], provenance_pb2.Provenance())
    assert predicate.build_definition.build_type
    assert predicate.run_details.builder.id
    for dependency in predicate.build_definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(dependency).validate()
    return document
