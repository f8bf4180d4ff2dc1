"""The HTTP server of the metrics, which strangers cannot fill."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections import Counter
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import make_wsgi_app
from prometheus_client.registry import Collector

logger = logging.getLogger("kafka.server.Metrics")

MOST_SCRAPES: Final = 16
"""Connections that are open at once, each with a thread."""
PATIENCE_S: Final = 10.0
"""The longest that a client may send nothing, or take to read an answer: Prometheus' default timeout."""


class _Scrape(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Log nothing: requests come every few seconds."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry.

    A connection that is one too many ends the oldest one of the address that has most: clients that send or read
    nothing keep nobody else out.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: Collector) -> None:
        """Raises OSError when the address cannot be had."""
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        """The addresses of clients, the oldest connection first."""
        super().__init__((host, port), _Scrape)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        """Take the address. The library would look up a name for it."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread."""
        with self._lock:
            self._open[request] = client_address[0]
            if len(self._open) > MOST_SCRAPES:
                most, _ = Counter(self._open.values()).most_common(1)[0]
                oldest = next(each for each, address in self._open.items() if address == most)
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say why a connection ended early."""
        logger.debug("A scrape by %s failed: %s", client_address[0], sys.exception())
