"""A double of what PDD uses of Jaeger v2: OTLP over HTTP in, /api/v3 out, health. It keeps spans in memory and judges nothing.

It reads Jaeger's own configuration for its OTLP receivers, their TLS included, and the addresses of query and health.
"""

import argparse
import base64
import gzip
import json
import signal
import ssl
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

import yaml
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MOST_TRACES = 10_000
BINARY_IDS = ("traceId", "spanId", "parentSpanId")  # JSON of OTLP has them in hex, JSON of protobuf in base64


class Traces:
    """By trace id in hex. Each entry: resource, scope and span, in OTLP's JSON."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def add(self, request: ExportTraceServiceRequest) -> None:
        for resource_spans in MessageToDict(request, use_integers_for_enums=True).get("resourceSpans", []):
            for scope_spans in resource_spans.get("scopeSpans", []):
                for span in map(_with_hex_ids, scope_spans.get("spans", [])):
                    self._keep(resource_spans.get("resource", {}), scope_spans.get("scope", {}), span)

    def _keep(self, resource: dict[str, Any], scope: dict[str, Any], span: dict[str, Any]) -> None:
        with self._lock:
            kept = self._spans.setdefault(span["traceId"], [])
            kept.append({"resource": resource, "scopeSpans": [{"scope": scope, "spans": [span]}]})
            while len(self._spans) > MOST_TRACES:
                self._spans.popitem(last=False)

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._spans.get(trace_id.lower().zfill(32), []))

    def all(self) -> Iterator[list[dict[str, Any]]]:
        with self._lock:
            yield from [list(spans) for spans in self._spans.values()]


def _with_hex_ids(span: dict[str, Any]) -> dict[str, Any]:
    named = {name: base64.b64decode(span[name]).hex() for name in BINARY_IDS if name in span}
    return span | named


def service_of(entry: dict[str, Any]) -> str:
    attributes = entry["resource"].get("attributes", [])
    return next((str(one["value"].get("stringValue")) for one in attributes if one["key"] == "service.name"), "")


def name_of(entry: dict[str, Any]) -> str:
    return str(entry["scopeSpans"][0]["spans"][0]["name"])


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    traces: Traces

    def log_message(self, format: str, *args: object) -> None:
        """Each span and each look would be a line."""

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def say(self, status: int, body: object) -> None:
        self.answer(status, json.dumps(body).encode())


class Receiver(Answer):
    """POST /v1/traces in protobuf, as our services send it."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/traces":
            self.say(404, {"message": self.path})
            return
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.traces.add(ExportTraceServiceRequest.FromString(body))
        self.answer(200, b"", "application/x-protobuf")


class Health(Answer):
    def do_GET(self) -> None:
        self.say(200, {"status": "StatusOK"})


class Query(Answer):
    """/api/v3: services, operations, traces (both times are required, as Jaeger wants them), traces/{id}."""

    def do_GET(self) -> None:
        url = urlparse(self.path)
        asked = dict(parse_qsl(url.query))
        entries = [entry for trace in self.traces.all() for entry in trace]
        match url.path.removeprefix("/api/v3/").split("/"):
            case ["services"]:
                self.say(200, {"services": sorted({service_of(entry) for entry in entries})})
            case ["operations"]:
                names = {name_of(entry) for entry in entries if service_of(entry) == asked.get("service")}
                self.say(200, {"operations": [{"name": name, "spanKind": "internal"} for name in sorted(names)]})
            case ["traces"]:
                self._find(asked)
            case ["traces", trace_id]:
                self._tell(self.traces.trace(trace_id))
            case _:
                self.say(404, {"error": {"httpCode": 404, "message": url.path}})

    def _find(self, asked: dict[str, str]) -> None:
        if not all(asked.get(f"query.startTime{end}") for end in ("Min", "Max")):
            missing = "query.startTimeMin and query.startTimeMax are required"
            self.say(400, {"error": {"httpCode": 400, "message": missing}})
            return
        service, name = asked.get("query.serviceName"), asked.get("query.operationName")

        def fits(entry: dict[str, Any]) -> bool:
            return service in (None, service_of(entry)) and name in (None, name_of(entry))

        found = [trace for trace in self.traces.all() if any(map(fits, trace))]
        depth = int(asked.get("query.searchDepth", "100"))
        self._tell([entry for trace in found[-depth:] for entry in trace])

    def _tell(self, entries: list[dict[str, Any]]) -> None:
        if entries:
            self.say(200, {"result": {"resourceSpans": entries}})
        else:
            self.say(404, {"error": {"httpCode": 404, "message": "No traces found"}})


def listen(endpoint: str, answer: type[Answer], tls: dict[str, str] | None = None) -> None:
    """Serves in a thread. `tls` as the configuration has it: cert_file, key_file, client_ca_file."""
    host, _, port = endpoint.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), answer)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls["cert_file"], tls["key_file"])
        context.load_verify_locations(tls["client_ca_file"])
        context.verify_mode = ssl.CERT_REQUIRED
        # The handshake is made by the connection's own thread: a peer that does not finish it holds up nobody.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = yaml.safe_load(parser.parse_args().config.read_text())
    Answer.traces = Traces()
    for name in config["service"]["pipelines"]["traces"]["receivers"]:
        http = config["receivers"][name]["protocols"]["http"]
        listen(http["endpoint"], Receiver, http.get("tls"))
    listen(config["extensions"]["healthcheckv2"]["http"]["endpoint"], Health)
    listen(config["extensions"]["jaeger_query"]["http"]["endpoint"], Query)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # the first process of a container has no default
    print("a double of Jaeger is ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
