"""The page and the one thing it asks for: what the run says of the image in a request's body."""

from __future__ import annotations

import asyncio
import io
from dataclasses import asdict
from importlib import resources

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deepauc.data.images.decode import MAX_FILE_BYTES
from deepauc.reporting.document.blocks import shown
from deepauc.reporting.document.sections import NOT_A_DEVICE
from deepauc.serve.judgement import ServedRun

UPLOAD_SECONDS = 60.0  # for a whole body, which comes from this computer
BODY_TYPE = "application/octet-stream"  # no form can send it from another site


class Refused(Exception):
    """A body that is not read, or not to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def served_app(run: ServedRun) -> Starlette:
    """GET / and its style and script; POST /judge takes a file's bytes. One job at a time; nothing is kept."""
    page, style, script = _page(run), _style(), _file("page.js")
    at_work = asyncio.Lock()

    async def judge(request: Request) -> Response:
        if at_work.locked():  # before the body is read: two would take twice the memory
            return _error(503, "Another image is being scored. Try again when it is done.")
        async with at_work:
            try:
                async with asyncio.timeout(UPLOAD_SECONDS):
                    content = await _body(request)
                found = await run_in_threadpool(run.judge, content)
            except TimeoutError:
                return _error(408, f"The image did not arrive within {UPLOAD_SECONDS:g} seconds.", close=True)
            except Refused as refusal:
                return _error(refusal.status, str(refusal), close=True)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except ValueError as error:  # ImageError among them
                return _error(422, _sentence(str(error)))
        return JSONResponse({"labels": [asdict(one) for one in found]})

    def fixed(path: str, content: str, media_type: str) -> Route:
        async def answer(_: Request) -> Response:
            return Response(content, media_type=media_type)

        return Route(path, answer)

    return Starlette(
        routes=[
            fixed("/", page, "text/html"),
            fixed("/page.css", style, "text/css"),
            fixed("/page.js", script, "text/javascript"),
            Route("/judge", judge, methods=["POST"]),
        ],
        exception_handlers={Exception: _fault},
    )


async def _fault(_: Request, __: Exception) -> Response:
    return _error(500, "The program failed on this image.")


async def _body(request: Request) -> bytes:
    """The raw body, refused by its declared size before it is read, by its real one while it is."""
    if request.headers.get("content-type") != BODY_TYPE:
        raise Refused(415, f"Send the bytes of one file as {BODY_TYPE}.")
    declared = request.headers.get("content-length")
    if declared is None:
        raise Refused(411, "Say how many bytes the file has (Content-Length).")
    too_large = Refused(413, f"The file is larger than {MAX_FILE_BYTES:,} bytes.")
    if int(declared) > MAX_FILE_BYTES:
        raise too_large
    content = io.BytesIO()
    async for chunk in request.stream():
        if content.tell() + len(chunk) > MAX_FILE_BYTES:  # chunks may be more than was declared
            raise too_large
        content.write(chunk)
    if not content.tell():
        raise Refused(422, "The file is empty.")
    return content.getvalue()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _error(status: int, message: str, *, close: bool = False) -> JSONResponse:
    """close: the rest of a body was not read, so nothing else can follow on this connection."""
    return JSONResponse({"error": message}, status, headers={"Connection": "close"} if close else None)


def _page(run: ServedRun) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("page.html.j2")).render(
        run=shown(run.folder.resolve().name),
        not_a_device=NOT_A_DEVICE,
        probability_note=run.probability_note,
        map_note=run.map_note,
        copies=run.copies,
        cautions=run.cautions,
        facts={
            "folds": run.folds,
            "max_bytes": MAX_FILE_BYTES,
            "body_type": BODY_TYPE,
            "labels": [{**asdict(label), "shown": shown(label.name)} for label in run.labels],
        },
    )


def _style() -> str:
    """The report's, so that both look alike, then the page's own."""
    report = resources.files("deepauc.reporting") / "templates" / "report.css"
    return report.read_text(encoding="utf-8") + _file("page.css")


def _file(name: str) -> str:
    return (resources.files("deepauc.serve") / "page" / name).read_text(encoding="utf-8")
