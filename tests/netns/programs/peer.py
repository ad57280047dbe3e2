"""A server and clients for gRPC and WebSocket, out of Debian's python3-grpcio and python3-websockets.

    peer.py serve NAME            gRPC on 50051 and WebSocket on 8765; every answer begins with NAME
    peer.py grpc|ws HOST:PORT     asks once, prints the answer or the refusal, exits 0 or 1
    peer.py grpc|ws HOST:PORT until   waits for a line on stdin, then asks until there is an answer
    peer.py grpc|ws HOST:PORT hold    opens a stream, prints "open", then how it ended, and for how long it was open
No protoc: messages are bytes, and the methods stand here.
"""

import asyncio
import sys
import time
from concurrent import futures

import grpc
import websockets

PATIENCE = 5.0


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
    act = {"grpc": ask_grpc, "ws": ask_ws}[what] if how != "hold" else {"grpc": hold_grpc, "ws": hold_ws}[what]
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
