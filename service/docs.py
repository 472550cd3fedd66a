"""The page /docs: Swagger UI from this package's own files, under a strict content security policy."""

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"

# Everything comes from here, nothing is inline but the style attributes that Swagger UI sets, and images it
# draws.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# Paths are relative, so the page also works behind a proxy that serves it under a prefix.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>N-best rescoring</title>
<link rel="icon" type="image/png" href="docs/static/swagger-ui/favicon-32x32.png">
<link rel="stylesheet" href="docs/static/swagger-ui/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/static/swagger-ui/swagger-ui-bundle.js"></script>
<script src="docs/static/docs.js"></script>
</body>
</html>
"""


def install(app: FastAPI) -> None:
    """Serve the page and its files."""

    async def page(_: Request) -> Response:
        return Response(_PAGE, media_type="text/html", headers={"content-security-policy": POLICY})

    app.add_route("/docs", page, include_in_schema=False)
    app.mount("/docs/static", StaticFiles(directory=STATIC), name="static")
