"""How harmony writes tools: a TypeScript namespace made of their JSON schemas, as openai/harmony renders it.

The quirks are part of the count: `anyOf` and `$ref` become `any`, a description of several lines is one comment with
line ends in it, numbers of `enum` are left out.
"""

import json
from collections.abc import Mapping, Sequence

Schema = Mapping[str, object]

_NAMES = {"integer": "number", "number": "number", "boolean": "boolean"}
_INDENT = "    "
_VARIANT_INDENT = "   "


def functions_section(tools: Sequence[Schema]) -> str:
    """The section `# Tools` of a developer message, with one namespace `functions`."""
    lines = ["# Tools\n\n## functions\n", "namespace functions {\n"]
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, Mapping)  # noqa: S101 - checked when the body was read
        lines += [f"// {line}" for line in _lines(str(function.get("description") or ""))]
        parameters = function.get("parameters")
        taken = f"_: {_type(parameters, '')}" if isinstance(parameters, Mapping) else ""
        lines.append(f"type {function['name']} = ({taken}) => any;\n")
    lines.append("} // namespace functions")
    return "\n".join(lines)


def _type(schema: object, indent: str) -> str:
    """The type of a schema; `indent` is that of the members of an object."""
    if not isinstance(schema, Mapping):
        return "any"
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return "".join(
            f"\n{indent} | {_variant(variant, indent)}{_trailing(variant, _description(variant), quoted=True)}"
            for variant in variants
        )
    kind = schema.get("type")
    if isinstance(kind, list):
        names = ["number" if name == "integer" else name for name in kind if isinstance(name, str)]
        return " | ".join(names) if names else "any"
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return f"{_type(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    if kind == "string":
        listed = schema.get("enum")
        choices = [f'"{value}"' for value in listed if isinstance(value, str)] if isinstance(listed, list) else []
        return " | ".join(choices) if choices else "string"
    return _NAMES.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: Schema, indent: str) -> str:
    described = _description(schema)
    head = "" if described is None else f"{indent}// {described}\n"
    members = schema.get("properties")
    required = schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    body = [
        _member(name, value if isinstance(value, Mapping) else {}, indent, "" if name in needed else "?")
        for name, value in (members.items() if isinstance(members, Mapping) else ())
    ]
    return f"{head}{{\n{''.join(body)}{indent}}}"


def _member(name: str, schema: Schema, indent: str, mark: str) -> str:
    title, described, examples = schema.get("title"), _description(schema), schema.get("examples")
    comments = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    if "oneOf" not in schema and described is not None:
        comments += f"{indent}// {described}\n"
    if isinstance(examples, list) and examples:
        comments += f"{indent}// Examples:\n"
        comments += "".join(f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))
    variants = schema.get("oneOf")
    if isinstance(variants, list):
        return comments + _member_of_variants(name, schema, variants, indent, mark)
    default = "" if "oneOf" in schema or "default" not in schema else f" // {_default(schema)}"
    return f"{comments}{indent}{name}{mark}: {_nullable(schema, _type(schema, indent + _INDENT))},{default}\n"


def _member_of_variants(name: str, schema: Schema, variants: list[object], indent: str, mark: str) -> str:
    described = _description(schema)
    first = _description(variants[0]) if variants else None
    above = described is not None and described != first
    text = f"{indent}// {described}\n" if above else ""
    if "default" in schema:
        text += f"{indent}// {_default(schema)}\n"
    text += f"{indent}{name}{mark}:\n"
    for index, variant in enumerate(variants):
        own = _description(variant)
        said = None if (index == 0 and above) or own == described else own
        text += f"{indent} | {_variant(variant, indent)}{_trailing(variant, said)}\n"
    return f"{text}{indent},\n"


def _variant(variant: object, indent: str) -> str:
    return _nullable(variant, _type(variant, indent + _VARIANT_INDENT))


def _nullable(schema: object, written: str) -> str:
    null = isinstance(schema, Mapping) and schema.get("nullable") is True and "null" not in written
    return f"{written} | null" if null else written


def _trailing(variant: object, described: str | None, *, quoted: bool = False) -> str:
    comments = [] if described is None else [described]
    if isinstance(variant, Mapping) and "default" in variant:
        comments.append(_default(variant, quoted=quoted))
    return f" // {' '.join(comments)}" if comments else ""


def _default(schema: Schema, *, quoted: bool = False) -> str:
    """Strings in quotation marks, except beside an `enum` (there with them when `quoted`); the rest as compact JSON."""
    value = schema["default"]
    listed = schema.get("enum")
    if isinstance(value, str) and isinstance(listed, list) and listed and not quoted:
        return f"default: {value}"
    if isinstance(value, str) and not (isinstance(listed, list) and listed):
        return f'default: "{value}"'
    return f"default: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _description(schema: object) -> str | None:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return text if isinstance(text, str) else None


def _lines(text: str) -> list[str]:
    """Lines as Rust's `str::lines` cuts them: at line feeds, with a carriage return before one dropped.

    One that no line feed follows stays.
    """
    *ended, rest = text.split("\n")
    return [*(piece.removesuffix("\r") for piece in ended), *([rest] if rest else [])]
