"""Prints what the classes of `declared.txt` are in the fake (or in the real package, where that comes first)."""

import asyncio
import dataclasses
import importlib
import inspect
import json
import sys
from enum import Enum


def described(cls):
    """A class's own fields and methods."""
    if issubclass(cls, Enum):
        return {"members": {member.name: member.value for member in cls}}
    names = vars(cls)
    fields = {}
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if field.name in names.get("__annotations__", {}):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
            fields[field.name] = [kind, "" if default is dataclasses.MISSING else str(default)]
    for name, field in getattr(cls, "model_fields", {}).items():  # a pydantic model
        default = "(made)" if field.default_factory else "" if field.is_required() else field.default
        kind = field.annotation
        fields[name] = [kind.__name__ if isinstance(kind, type) else str(kind), str(getattr(default, "value", default))]
    methods = {}
    for name, value in names.items():
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if inspect.isfunction(function):
            methods[name] = [
                str(parameter.replace(annotation=inspect.Parameter.empty))
                for parameter in inspect.signature(function).parameters.values()
            ]
    return {"fields": fields, "methods": methods}


def sees_instances(worker_cls, task):
    """Whether handlers that are set on an instance are found."""

    class OnInstance(worker_cls):
        pass

    async def serve(worker, asked):
        return None

    worker = OnInstance()
    worker.task_handlers = {type(task): serve}
    return asyncio.run(worker.run_task(task)) is None


found = {}
for place in json.loads(sys.argv[1]):
    module, _, name = place.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:  # of another release
        cls = None
    found[name] = None if cls is None else described(cls)
    if name == "Worker":
        found[name]["look-up"] = "instance" if sees_instances(cls, importlib.import_module(module).Task()) else "class"
    if name == "ExecutionScope" and cls is not None:
        scope = cls("7", (0, 2))
        found[name]["scope"] = [scope.scope_id, scope.branch_path_list]
sys.stdout.write(json.dumps(found))
