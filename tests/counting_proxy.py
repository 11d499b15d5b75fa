"""A TCP proxy that counts bytes each way: `counting_proxy.py LISTEN TO FILE`; the file has [up, down] at any time."""

import asyncio
import json
import sys
from pathlib import Path

LISTEN, TO, FILE = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
counts = [0, 0]


def told():
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(counts))
    part.replace(FILE)


async def pump(reader, writer, way):
    try:
        while data := await reader.read(1 << 16):
            counts[way] += len(data)
            told()
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(reader, writer):
    try:
        there = await asyncio.open_connection("127.0.0.1", TO)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, there[1], 0), pump(there[0], writer, 1))


async def main():
    told()
    async with await asyncio.start_server(serve, "127.0.0.1", LISTEN) as server:
        await server.serve_forever()


asyncio.run(main())
