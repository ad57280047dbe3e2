"""A server and clients for gRPC and WebSocket, out of Debian's python3-grpcio and python3-websockets, and for sessions of UDP.

    peer.py serve NAME            gRPC on 50051, WebSocket on 8765, UDP on 7002; every answer begins with NAME
    peer.py grpc|ws|udp HOST:PORT         asks once, prints the answer or the refusal, exits 0 or 1
    peer.py grpc|ws|udp HOST:PORT until   waits for a line on stdin, then asks until there is an answer
    peer.py grpc|ws|udp HOST:PORT hold    opens a stream, prints "open", then how it ended; of UDP, all that it hears
No protoc: messages are bytes, and the methods stand here.
"""

import asyncio
import socket as sockets
import sys
import threading
import time
from concurrent import futures

import grpc
import websockets

PATIENCE = 5.0
UDP_PORT = 7002
# Between two datagrams of a session that is held open, and after how many of them without an answer it is given up.
TICK = 0.05
TICKS_MISSED = 16


def datagrams():
    socket = sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM)
    socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    return socket


def serve_udp(name):
    """A client that asks is answered; one that holds hears a tick after another until ICMP says that it is gone."""
    door = datagrams()
    door.bind(("0.0.0.0", UDP_PORT))

    def tick(client):
        own = datagrams()
        own.bind(("0.0.0.0", UDP_PORT))
        own.connect(client)
        try:
            for number in range(1 << 30):
                own.send(f"{name} {number}".encode())
                time.sleep(TICK)
        except ConnectionRefusedError:
            print("the session ended", file=sys.stderr, flush=True)

    while True:
        message, client = door.recvfrom(2048)
        if message == b"hold":
            threading.Thread(target=tick, args=(client,), daemon=True).start()
        else:
            door.sendto(f"{name} {message.decode()}".encode(), client)


def serve(name):
    def say(request, context):
        context.set_trailing_metadata((("lab-server", name),))
        return f"{name} {request.decode()}".encode()

    def count(request, context):
        for number in range(3):
            yield f"{name} {number}".encode()

    def tick(request, context):
        context.add_callback(lambda: print("the call ended", file=sys.stderr, flush=True))
        number = 0
        while context.is_active():
            yield f"{name} {number}".encode()
            number += 1
            time.sleep(0.05)

    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(say),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Tick": grpc.unary_stream_rpc_method_handler(tick),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lab.Lab", handlers),))
    server.add_insecure_port("0.0.0.0:50051")
    server.start()

    async def echo(socket):
        try:
            async for message in socket:
                await socket.send(f"{name} {message}")
        finally:
            print("the socket ended", file=sys.stderr, flush=True)

    async def run():
        async with websockets.serve(echo, "0.0.0.0", 8765, ping_interval=None):
            await asyncio.Future()

    threading.Thread(target=serve_udp, args=(name,), daemon=True).start()
    asyncio.run(run())


def ask_grpc(target):
    """A call with one answer and trailers, and one with several answers: both must come from the same server."""
    with grpc.insecure_channel(target) as channel:
        answer, call = channel.unary_unary("/lab.Lab/Say").with_call(b"hello", timeout=PATIENCE)
        name = answer.decode().removesuffix(" hello")
        trailers = dict(call.trailing_metadata())
        counted = [part.decode() for part in channel.unary_stream("/lab.Lab/Count")(b"", timeout=PATIENCE)]
    if trailers.get("lab-server") != name or counted != [f"{name} {number}" for number in range(3)]:
        raise ValueError(f"{answer} with trailers {trailers} and then {counted}")
    return name


def ask_ws(target):
    async def ask():
        async with websockets.connect(f"ws://{target}/", open_timeout=PATIENCE, ping_interval=None) as socket:
            await socket.send("hello")
            return (await asyncio.wait_for(socket.recv(), PATIENCE)).removesuffix(" hello")

    return asyncio.run(ask())


def session(target):
    host, port = target.rsplit(":", 1)
    socket = datagrams()
    socket.connect((host, int(port)))
    return socket


def ask_udp(target):
    with session(target) as socket:
        socket.settimeout(1)
        socket.send(b"hello")
        try:
            return socket.recv(2048).decode().removesuffix(" hello")
        except TimeoutError:
            raise ValueError("nobody answers") from None


def hold_udp(target):
    """Its last line is the last that it heard, because nobody tells it that it is over. Until then it goes on sending."""
    socket = session(target)
    socket.settimeout(PATIENCE)
    socket.send(b"hold")
    socket.recv(2048)
    print("open", flush=True)
    socket.settimeout(TICK)
    missed = 0
    while missed < TICKS_MISSED:
        try:
            print(socket.recv(2048).decode(), flush=True)
            missed = 0
        except TimeoutError:
            socket.send(b"still there")
            missed += 1
    sys.exit(0)


def hold_grpc(target):
    with grpc.insecure_channel(target) as channel:
        ticks = channel.unary_stream("/lab.Lab/Tick")(b"", wait_for_ready=True)
        next(ticks)
        print("open", flush=True)
        for _ in ticks:
            pass


def hold_ws(target):
    async def hold():
        async with websockets.connect(f"ws://{target}/", ping_interval=None) as socket:
            await socket.send("hello")
            await socket.recv()
            print("open", flush=True)
            await socket.recv()

    asyncio.run(hold())


def refusal(error):
    """In the words of the protocol."""
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, websockets.InvalidStatusCode):
        return f"HTTP {error.status_code}: {error.headers.get('causeway-refusal')}"
    return f"{type(error).__name__}: {error}"


def main(what, where, how="once"):
    if what == "serve":
        return serve(where)
    asks = {"grpc": ask_grpc, "ws": ask_ws, "udp": ask_udp}
    holds = {"grpc": hold_grpc, "ws": hold_ws, "udp": hold_udp}
    act = (holds if how == "hold" else asks)[what]
    if how == "until":
        print("ready", flush=True)
        sys.stdin.readline()
    while True:
        try:
            print(act(where) or "ended", flush=True)
            return 0
        except Exception as error:
            if how != "until":
                print(refusal(error), flush=True)
                return 1
            time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
