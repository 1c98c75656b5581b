"""`/docs`: the routes and the fields of their bodies on a page of plain HTML, which loads nothing from elsewhere."""

from html import escape

from multidraft.server.tools import Json

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse;width:100%}"
    "td{border-top:1px solid #8884;padding:.2em .6em .2em 0;vertical-align:top}code{font-size:.95em}"
)


def docs_page(schema: Json) -> str:
    """The page of an OpenAPI schema."""
    routes = [
        route_section(path, verb, route) for path, verbs in schema["paths"].items() for verb, route in verbs.items()
    ]
    title = f"{schema['info']['title']} {schema['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>"
        f'<p>An OpenAI-compatible server. The same as a schema: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{''.join(routes)}</html>"
    )


def route_section(path: str, verb: str, route: Json) -> str:
    """A route, and a line for each field of its body."""
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = content.get("schema", {})
    about = f"<p>{escape(body['description'])}</p>" if "description" in body else ""
    required = body.get("required", ())
    rows = [field_row(name, field, name in required) for name, field in body.get("properties", {}).items()]
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    return f"<h2><code>{verb.upper()} {escape(path)}</code></h2>{about}{table}"


def field_row(name: str, field: Json, required: bool) -> str:
    """A field's name, type and description."""
    kind = type_of(field) + (", required" if required else "")
    return f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{escape(field.get('description', ''))}"


def type_of(field: Json) -> str:
    """A field's type in words; null stands for leaving it out."""
    kinds = [type_of(part) for part in field.get("anyOf", ()) if part.get("type") != "null"]
    if field.get("type") == "array":
        return f"list of {type_of(field.get('items', {}))}"
    return " or ".join(dict.fromkeys(kinds)) or field.get("type", "anything")
