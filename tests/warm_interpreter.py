"""An interpreter that has imported what is slow to import, and becomes, in a fork each, the Pythons that are asked for.

    python warm_interpreter.py SOCKET MODULE...

Who connects to the socket sends its standard files, what `python` was given, its folder and its environment, as
`warm_python.py` does, and gets the exit code. Nothing of this package is imported before the fork; a fork ends as any
interpreter does, and is killed where who asked for it is gone.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import warnings
from pathlib import Path


def serve(address):
    """Fork for every connection; returns what was asked in the fork that is to do it, and nowhere else."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                break
            connection.close()
    with connection:
        size, files, _, _ = socket.recv_fds(connection, 8, 3)
        request = json.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
        process = os.fork()
        if process:
            for file in (0, 1, 2, *files):
                os.close(file)
            ended = os.pidfd_open(process)
            if ended not in select.select([connection, ended], [], [])[0]:
                os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            with contextlib.suppress(OSError):
                connection.sendall(str(code if code >= 0 else 128 - code).encode())
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return request


def become(arguments, folder, environment):
    """Run `-W ACTION`, then `-c CODE`, `-m MODULE` or a file, each with its own arguments."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    first = (
        {"-c": "", "-m": folder}.get(arguments[0])
        if arguments[0][0] == "-"
        else str(Path(arguments[0]).resolve().parent)
    )
    sys.path[:1] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    for module in sys.argv[2:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # what is there already need not be looked at in every fork
    become(**serve(sys.argv[1]))
