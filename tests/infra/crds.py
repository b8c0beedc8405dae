"""Schemas of Kubernetes' custom resources, cut from the definitions of their operators, and manifests held to them.

    python -m tests.infra.crds NOTE CRD.yaml... >tests/infra/crds.json

NOTE says where the definitions are from and under which licence. Descriptions, defaults and rules in CEL are left out,
equal parts are written once, and fields that an API server would drop in silence are refused.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).with_name("crds.json")
_LEFT_OUT = {
    "description",
    "default",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
}
_SHORT = 120


def main(arguments: list[str]) -> None:
    """Print the schemas of all versions of all definitions."""
    shared: dict[str, Any] = {}
    kinds = {}
    for path in arguments[1:]:
        definition = yaml.load(Path(path).read_text(), yaml.CSafeLoader)["spec"]
        for version in definition["versions"]:
            name = f"{definition['group']}/{version['name']}/{definition['names']['kind']}"
            kinds[name] = _cut(version["schema"]["openAPIV3Schema"], shared)
    print(json.dumps({"$comment": arguments[0], "kinds": kinds, "$defs": shared}, indent=0, sort_keys=True))


def _cut(schema: Any, shared: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_cut(part, shared) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: _cut(part, shared) for name, part in value.items()}
        elif key not in _LEFT_OUT:
            found[key] = _cut(value, shared)
    if "properties" in found and not found.pop("x-kubernetes-preserve-unknown-fields", False):
        found["additionalProperties"] = False
    text = json.dumps(found, sort_keys=True)
    if len(text) < _SHORT:
        return found
    name = hashlib.sha256(text.encode()).hexdigest()[:8]
    shared[name] = found
    return {"$ref": f"#/$defs/{name}"}


def complaints(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a manifest by the schema of its kind, each with the path to it."""
    import jsonschema

    schemas = json.loads(SCHEMAS.read_text())
    kind = schemas["kinds"][f"{manifest['apiVersion']}/{manifest['kind']}"]
    whole = {**kind, "$defs": schemas["$defs"]}
    for error in jsonschema.Draft202012Validator(whole).iter_errors(manifest):
        yield f"{error.json_path}: {error.message}"


if __name__ == "__main__":
    main(sys.argv[1:])
