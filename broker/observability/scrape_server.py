"""The HTTP server of the metrics, with a limit on open connections."""

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
"""Connections open at once; each has a thread."""
PATIENCE_S: Final = 10.0
"""How long a client may stay silent or take to read an answer: Prometheus' default timeout."""


class _Scrape(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the library's
        """Log nothing: requests come every few seconds."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry.

    When a connection exceeds the limit, the oldest one of the address with the most connections ends: idle clients
    cannot keep others out.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: Collector) -> None:
        """Raises OSError when the address is not available."""
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        self._lock = threading.Lock()
        self._open: dict[socket.socket, str] = {}
        """Addresses of the clients, by connection, oldest first."""
        super().__init__((host, port), _Scrape)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def start(self) -> None:
        """Serve on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        """Bind the address, without the library's reverse lookup of its name."""
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
        """Log the reason why a connection ended early."""
        logger.debug("A scrape by %s failed: %s", client_address[0], sys.exception())
