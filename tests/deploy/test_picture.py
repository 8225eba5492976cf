"""The dashboard's picture: every query of a panel is asked of its own site, and every panel is drawn, also without data."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import pytest

from infra.grafana.ask import DASHBOARD, ask
from infra.grafana.picture import svg

START_S, STOP_S = 1000.0, 1100.0
VALUES = [[1000.0, "1"], [1005.0, "2"], [1010.0, "NaN"], [1050.0, "3"]]


@contextmanager
def answering(labels: dict[str, str] | None, asked: list[str]) -> Iterator[str]:
    """A server that has one series for every query, or none, or knows no query."""

    class Prometheus(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.extend(parse_qs(urlparse(self.path).query)["query"])
            found = [] if labels is None else [{"metric": labels, "values": VALUES}]
            body = json.dumps({"status": "success", "data": {"result": found}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Prometheus)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_every_query_is_asked_of_its_own_site_and_drawn() -> None:
    asked_a: list[str] = []
    asked_b: list[str] = []
    with answering({"reason": "<lost & found>"}, asked_a) as a, answering(None, asked_b) as b:
        panels = ask({"pdd-a": a, "pdd-b": b}, START_S, STOP_S)
    targets = [target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", [])]
    assert len(asked_a) + len(asked_b) == len(targets)
    assert len(asked_b) == sum(target["datasource"]["uid"] == "pdd-b" for target in targets) > 0
    assert not any("$" in query for query in asked_a + asked_b)
    assert all(value == value for panel in panels for series in panel.series for _, value in series.points)
    picture = ElementTree.fromstring(svg(panels, START_S, STOP_S, "told"))
    said = [element.text for element in picture.iter() if element.text]
    assert {panel.title for panel in panels} <= set(said)
    assert "<lost & found>" in said


def test_a_hole_in_the_data_is_a_hole_in_the_line() -> None:
    with answering({}, []) as site:
        panels = ask({"pdd-a": site, "pdd-b": site}, START_S, STOP_S)
    drawn = svg(panels, START_S, STOP_S, "")
    series = sum(len(panel.series) for panel in panels)
    assert drawn.count("<polyline") == 2 * series


def test_a_refused_query_is_no_empty_panel() -> None:
    with pytest.raises(OSError):
        ask({"pdd-a": "http://127.0.0.1:9", "pdd-b": "http://127.0.0.1:9"}, START_S, STOP_S)
