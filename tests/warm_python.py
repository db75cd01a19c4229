"""Has a `warm_interpreter.py` do what `python` is asked: `python -IS warm_python.py SOCKET ARGUMENT...`."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    data = json.dumps(request).encode()
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(data)
    code = connection.recv(8)
sys.exit(int(code))
