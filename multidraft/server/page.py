"""The web page, and the headers that keep other pages and other sites away from it.

torch is not imported here: the page is also served while models are loaded, and then waits for them.
"""

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from fastapi.responses import HTMLResponse

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
SCRIPT_HASH = b64encode(sha256(PAGE.partition("<script>")[2].partition("</script>")[0].encode()).digest()).decode()
CONTENT_POLICY = (  # only the page's own script and this server's answers
    f"default-src 'none'; script-src 'sha256-{SCRIPT_HASH}'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}


def html_response(html: str) -> HTMLResponse:
    """An answer with a page of HTML."""
    return HTMLResponse(html, headers=SECURITY_HEADERS)
