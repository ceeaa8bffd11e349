"""Clients that are slow, leave, or speak something else."""

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from flide_jax.serving.admission import Limits
from tests.serving.asked import ASKED, head, until
from tests.serving.live import serving


def test_a_client_that_leaves_takes_its_request_with_it(held):
    engine, device = held
    body = json.dumps(ASKED).encode()
    with serving(engine) as live, ThreadPoolExecutor(1) as other:
        running = other.submit(live.ask, ASKED)
        device.round(0)
        with socket.create_connection(live.host_and_port) as connection:
            connection.sendall(head(body) + body)
            until(lambda: "flide_waiting_requests 1.0" in live.client.get("/metrics").text)
        until(lambda: live.service.room.requests == 1)
        assert "flide_waiting_requests 0.0" in live.client.get("/metrics").text
        device.release()
        assert running.result(30).status_code == 200
        assert len(device.rounds) == 1
        assert 'flide_responses_total{route="/v1/systemone",status="499"} 1.0' in live.client.get("/metrics").text


def test_a_body_that_does_not_come_is_408(tiny_engine):
    with serving(tiny_engine, limits=Limits(body_seconds=0.2)) as live:
        with socket.create_connection(live.host_and_port) as connection:
            connection.sendall(head(bytes(100)) + b"{")
            connection.settimeout(10)
            found = b""
            while part := connection.recv(4_096):
                found += part
        assert found.startswith(b"HTTP/1.1 408 ")
        assert live.service.room.requests == 0
        assert live.ask(ASKED).status_code == 200


def test_a_head_that_does_not_come_ends_the_connection(tiny_engine):
    with serving(tiny_engine, limits=Limits(head_seconds=0.5)) as live:
        for sent in (b"", b"\r\n", b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\nx-a: "):
            with socket.create_connection(live.host_and_port) as connection:
                connection.settimeout(10)
                with contextlib.suppress(OSError):  # it may be closed by then
                    for drop in (sent, b"a", b"b", b"c"):  # each of them in time, if it were the first
                        connection.sendall(drop)
                        time.sleep(0.15)
                assert is_closed_by_the_server(connection)
        assert live.ask(ASKED).status_code == 200


def is_closed_by_the_server(connection: socket.socket) -> bool:
    try:
        while connection.recv(4_096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_connection_that_pauses_between_requests_is_no_slow_head(tiny_engine):
    with serving(tiny_engine, limits=Limits(head_seconds=0.5)) as live:
        for _ in range(3):
            assert live.ask(ASKED).status_code == 200
            time.sleep(0.4)
        body = json.dumps(ASKED).encode()
        with socket.create_connection(live.host_and_port) as connection:
            connection.settimeout(10)
            for part in (head(body), body[:50], body[50:]):  # the body may take longer than the head
                connection.sendall(part)
                time.sleep(0.4)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_head_without_end_is_431(live):
    with socket.create_connection(live.host_and_port) as connection:
        connection.settimeout(10)
        connection.sendall(b"GET /health HTTP/1.1\r\nx-a: " + b"a" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection(live.host_and_port) as connection:
        connection.settimeout(10)
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 60_000 + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_refused_early_is_no_head(live):
    """What still comes of it is thrown away, and the next request on the connection is answered."""
    body = bytes(500_000)
    late = f"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(live.host_and_port) as connection:
        connection.settimeout(10)
        connection.sendall(late)
        found = b""
        while not found.endswith(b"}"):
            found += connection.recv(4_096)
        assert found.startswith(b"HTTP/1.1 404 ")
        connection.sendall(body + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_take_its_response_is_left(tiny_engine):
    with serving(tiny_engine, limits=Limits(head_seconds=0.5)) as live:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(live.host_and_port)
            request = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
            with contextlib.suppress(OSError):  # it is left while it still asks
                for _ in range(2_000):
                    connection.sendall(request)
            connections = live.server._server.server_state.connections
            until(lambda: len(connections) == 1)
            until(lambda: len(connections) == 0)
        assert live.ask(ASKED).status_code == 200


def test_a_client_that_leaves_within_its_body_leaves_nothing(live):
    with socket.create_connection(live.host_and_port) as connection:
        connection.sendall(head(bytes(100)) + b"{")
        until(lambda: live.service.room.requests == 1)
    until(lambda: live.service.room.requests == 0 and live.service.room.size == 0)


def test_bytes_that_are_no_http_harm_nobody(live):
    with socket.create_connection(live.host_and_port) as connection:
        connection.sendall(b"\x16\x03\x01\x00nonsense\r\n\r\n")
        connection.settimeout(10)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert live.ask(ASKED).status_code == 200
