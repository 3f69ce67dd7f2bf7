"""The documentation page: the OpenAPI document as plain HTML, with no script and nothing from elsewhere."""

import json
import re
from html import escape
from typing import Any

from sessionstore.errors import SessionStoreError
from sessionstore_api.problems import STATUS, status_of

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f3f4f6; border-radius: 4px; padding: .1em .3em; }
section { border-top: 1px solid #d0d7de; padding: .5rem 0; }
h3 { margin: .6rem 0; } h3 b { display: inline-block; min-width: 4.5rem; color: #0a58ca; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; }
nav a { margin-right: .8rem; } summary { cursor: pointer; color: #0a58ca; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } code, pre { background: #21262d; }
  h3 b, summary, a { color: #6cb6ff; } section { border-color: #30363d; } }
"""


def docs_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    calls = [
        _call(method, path, operation) for path, methods in document["paths"].items() for method, operation in methods.items()
    ]
    version = escape(document["info"]["version"])
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>sessionstore {version}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>
<h1>sessionstore {version}</h1><p>{escape(document["info"]["description"])}
The same as a machine reads it: <a href="/openapi.json">openapi.json</a>.</p>
<nav><a href="#calls">Calls</a><a href="#bodies">Bodies</a><a href="#problems">Problems</a></nav>
<h2 id="calls">Calls</h2>{"".join(calls)}
<h2 id="bodies">Bodies</h2>{"".join(_schema(*pair) for pair in sorted(document["components"]["schemas"].items()))}
<h2 id="problems">Problems</h2><table>{"".join(_problem(error) for error in all_problems())}</table></body></html>"""


def all_problems() -> list[type[SessionStoreError]]:
    """Every error class that a server answers with, by status and code."""
    found = [kind for kind in _descendants(SessionStoreError) if any(parent in STATUS for parent in kind.__mro__)]
    return sorted(found, key=lambda kind: (status_of(kind), kind.code))


def _descendants(kind: type[SessionStoreError]) -> list[type[SessionStoreError]]:
    return [child for direct in kind.__subclasses__() for child in (direct, *_descendants(direct))]


def _call(method: str, path: str, operation: dict[str, Any]) -> str:
    return f"""<section id="{operation["operationId"]}"><h3><b>{method.upper()}</b> <code>{escape(path)}</code></h3>
<p>{_prose(operation["description"])}</p>{_parameters(operation)}{_body(operation)}
<details><summary>Answers</summary><table>{_responses(operation)}</table></details></section>"""


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _parameters(operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}</td><td>{escape(_about(p))}</td></tr>"
        for p in operation["parameters"]
    )
    return f"<table>{rows}</table>" if rows else ""


def _about(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    words = parameter.get("description") or schema.get("description", "")
    choices = " | ".join(map(str, schema.get("enum", [])))
    default = f" (default {json.dumps(schema['default'])})" if schema.get("default") is not None else ""
    return f"{words} {choices}{default}".strip()


def _body(operation: dict[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    return f"<p>Body: {_type(operation['requestBody']['content']['application/json']['schema'])}</p>"


def _responses(operation: dict[str, Any]) -> str:
    return "".join(_response(status, response) for status, response in operation["responses"].items())


def _response(status: str, response: dict[str, Any]) -> str:
    kinds = [_type(content["schema"]) for kind, content in response.get("content", {}).items() if kind == "application/json"]
    words = "<br>".join(map(_prose, response["description"].split("\n\n")))
    return f"<tr><th>{status}</th><td>{words} {' '.join(kinds)}</td></tr>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in schema.get('required', []) else ' ?'}</td>"
        f"<td>{_type(kind)}</td><td>{escape(_words(kind))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    return f'<section id="schema-{name}"><h3><code>{name}</code></h3><p>{about}</p><table>{rows}</table></section>'


def _words(schema: dict[str, Any]) -> str:
    inner: dict[str, Any] = next((choice for choice in schema.get("anyOf", []) if "description" in choice), {})
    return str(schema.get("description") or inner.get("description", ""))


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    kind = schema.get("type", "any JSON")
    return escape(" or ".join(kind) if isinstance(kind, list) else kind)


def _problem(error: type[SessionStoreError]) -> str:
    again = "retryable" if error.retryable else ""
    return (
        f'<tr id="{error.code}"><th>{status_of(error)}</th><td><code>{error.code}</code></td>'
        f"<td>{_prose(error.summary())} {again}</td></tr>"
    )
